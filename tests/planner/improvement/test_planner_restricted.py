"""Even layers as a smaller space of their own, and even plans made of known ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factories.brute_force import every_plan
from factories.planning import AS_OF, data, example, make_space, plan, quota, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.model.plan import Pipeline, Plan
from sailor_cloud.planner import Restriction, SearchOptions, search
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement.choice import best_that_holds
from sailor_cloud.planner.improvement.restricted import even_drafts, is_even
from sailor_cloud.planner.solving import solve
from sailor_cloud.planner.space.draft import to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.space import Seat
from sailor_cloud.simulator import evaluate

ONE_ZONE = {"resources__0__zones": ["us-central1-a"], "constraints": {}}
SPOT = {**ONE_ZONE, "resources__0__markets": ["spot"]}
# The best plan of the first job has uneven layers, that of the second uneven batches.
UNEVEN_LAYERS = {
    "model": {"preset": "gpt2-xl"},
    "training__sequence_length": 1024,
    "training__global_batch_size": 32,
    "resources__0__accelerators": {"A100-40": 2, "V100-16": 2},
    **SPOT,
}
UNEVEN_BATCHES = {"resources__0__accelerators": {"A100-40": 2, "V100-16": 4}, **SPOT}


def searched(job, **options):
    prices, links, times = data()
    return search(
        job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), options=SearchOptions(**options)
    )


@cache
def beside_one_accelerator(limits: tuple[tuple[str, float], ...]):
    """Plans of one accelerator with those beside them."""
    job = example("gcp-a100-v100.yaml", **{**SPOT, "constraints": dict(limits)}, training__max_zero_stage=0)
    return searched(job, restrictions=(Restriction.ONE_ACCELERATOR,), alternatives=True)


@cache
def under_pressure():
    """A model that is too large for some devices without ZeRO-1, and plans of it."""
    few = {"resources__0__accelerators": {"A100-40": 4, "V100-16": 4}}
    space = make_space(example("gcp-a100-v100.yaml", **{**UNEVEN_LAYERS, **few}))
    target = target_of(space.scenario.job)
    answer = solve(space, target)
    return space, target, [*answer.drafts, *answer.others]


def lengths(pipeline: Pipeline) -> list[int]:
    return [stage.end_layer - stage.first_layer for stage in pipeline.stages]


def has_even_layers(plan: Plan) -> bool:
    return all(max(lengths(pipeline)) - min(lengths(pipeline)) <= 1 for pipeline in plan.pipelines)


def has_even_batches(plan: Plan) -> bool:
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    shapes = {(tuple(lengths(pipeline)), pipeline.microbatch_size) for pipeline in plan.pipelines}
    return len(shapes) == 1 and max(counts) - min(counts) <= 1


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    blocks=st.integers(1, 3),
    batch=st.integers(1, 3),
    zones=st.sampled_from([("local-a",), ("local-a", "local-b")]),
    accelerators=st.sampled_from([{"CPU-fast": 2}, {"CPU-fast": 1, "CPU-slow": 1}, {"CPU-fast": 1, "CPU-slow": 2}]),
)
def test_small_searches_of_even_layers_or_even_batches_equal_brute_force(blocks, batch, zones, accelerators):
    job = tiny_job(blocks=blocks, batch=batch, zones=zones, accelerators=accelerators, constraints={"max_nodes": 3})
    space, goal = make_space(job), target_of(job).goal
    every = [(found, evaluate(found, space.scenario)) for found in every_plan(space.scenario)]
    for restriction, stands in (
        (Restriction.EVEN_LAYERS, has_even_layers),
        (Restriction.EVEN_BATCHES, has_even_batches),
    ):
        least = min(each.prediction.iteration_s_replay for plan, each in every if each.fits and stands(plan))
        answer = solve(space, target_of(job), (restriction,))
        chosen = best_that_holds(space, target_of(job), answer.drafts)
        assert stands(to_plan(space, chosen.draft))
        assert replayed(chosen.draft, chosen.evaluation)[goal] == pytest.approx(least, rel=1e-9)
        assert answer.bound <= least * (1 + 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(stages=st.integers(1, 6), size=st.sampled_from([1, 2, 4]), slow=st.integers(0, 63), replicas=st.integers(1, 2))
def test_no_other_even_cut_has_a_faster_busiest_stage(gcp, stages, size, slow, replicas):
    names = ("A100-40", "V100-16")
    pools = [next(n for n, pool in enumerate(gcp.pools) if pool.accelerator.name == name) for name in names]
    seats = tuple(Seat(pools[slow >> s & 1], 1, s) for s in range(stages))
    times = [gcp.stages_s(seat, size, in_flight=stages - s, replicas=replicas) for s, seat in enumerate(seats)]
    best = np.inf
    for inner in combinations(range(1, gcp.layers), stages - 1):
        spans = list(pairwise((0, *inner, gcp.layers)))
        if max(end - first for first, end in spans) - min(end - first for first, end in spans) <= 1:
            best = min(best, max(float(each[span]) for each, span in zip(times, spans, strict=True)))
    cutter = Cutter(gcp.restricted(even_layers=True), transfers=False)
    found = cutter.cut(seats, size=size, microbatches=64, replicas=replicas)
    if found is None:
        assert best == np.inf
        return
    held = [end - first for first, end in pairwise(found[0])]
    assert (len(held), sum(held), max(held) - min(held) <= 1) == (stages, gcp.layers, True)
    assert max(float(each[span]) for each, span in zip(times, pairwise(found[0]), strict=True)) <= best * 1.001


@pytest.fixture(scope="module")
def gcp():
    return make_space(example("gcp-a100-v100.yaml", **SPOT))


def test_even_layers_and_even_batches_are_kept_and_a_larger_space_has_no_worse_plan():
    job = example("gcp-a100-v100.yaml", **UNEVEN_LAYERS)
    layers, both, whole = (
        plan(job, *chosen)
        for chosen in ((Restriction.EVEN_LAYERS,), (Restriction.EVEN_LAYERS, Restriction.EVEN_BATCHES), ())
    )
    assert not has_even_layers(whole.plan)
    assert has_even_layers(layers.plan)
    assert has_even_layers(both.plan)
    assert has_even_batches(both.plan)
    seconds = [each.prediction.iteration_s_replay for each in (whole, layers, both)]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize(
    ("changes", "name", "check"),
    [(UNEVEN_LAYERS, "even-layers", has_even_layers), (UNEVEN_BATCHES, "even-batches", has_even_batches)],
    ids=["even-layers", "even-batches"],
)
def test_the_best_even_plans_are_alternatives_unless_the_chosen_one_is_even(changes, name, check):
    document = searched(example("gcp-a100-v100.yaml", **changes), alternatives=True)
    even = {
        each.restrictions[0]: each
        for each in document.alternatives
        if "".join(each.restrictions[:1]).startswith("even")
    }
    assert not check(document.plan)
    assert set(even) == {name}
    assert even[name].label == name.replace("-", " ")
    assert check(even[name].plan)
    assert even[name].iteration_s >= document.prediction.iteration_s_replay
    # A search of its own may find a better one, but none that is far better.
    alone = plan(document.job, Restriction(name)).prediction.iteration_s_replay
    assert even[name].iteration_s <= 1.25 * alone


def test_an_account_s_quotas_leave_layers_even():
    """Quotas over several zones are shared out to parts of the space of their own."""
    quotas = (
        quota("spot", 4, {"A100-40": Market.SPOT}, provider=Provider("gcp"), region="us-central1"),
        quota("on-demand", 0, {"A100-40": Market.ON_DEMAND}, provider=Provider("gcp"), region="us-central1"),
    )
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "opt-6.7b"},
        training__global_batch_size=64,
        training__max_zero_stage=0,
        resources__0__accelerators={"A100-40": 4, "V100-16": 8},
        constraints={},
    )
    assert not has_even_layers(plan(job, quotas=quotas).plan)
    assert has_even_layers(plan(job, Restriction.EVEN_LAYERS, quotas=quotas).plan)


@pytest.mark.parametrize("restriction", [Restriction.EVEN_BATCHES, Restriction.EVEN_LAYERS])
def test_reported_progress_of_an_even_search_never_falls(restriction):
    """Models that press on memory have plans at two ZeRO stages, which are evened one after the other."""
    space, target, known = under_pressure()
    assert {draft.zero_stage for draft in known} == {0, 1}
    shares: list[float] = []
    even_drafts(space, target, known, (restriction,), replace(NORMAL, tell=shares.append))
    assert len(shares) > 20
    assert shares == sorted(shares)


@pytest.mark.parametrize("restriction", [Restriction.EVEN_BATCHES, Restriction.EVEN_LAYERS])
def test_even_rows_are_no_worse_than_other_even_rows(restriction):
    """Where no plan keeps the limits, either: then all of them break some."""
    check = has_even_batches if restriction is Restriction.EVEN_BATCHES else has_even_layers
    for limits in ((("max_nodes", 5),), (("max_usd_per_hour", 8), ("min_throughput", 0.06))):
        document = beside_one_accelerator(limits)
        rows = [row for row in document.alternatives if check(row.plan)]
        own = [row for row in rows if row.restrictions[-1] == restriction]
        assert own
        for row in own:
            alike = [
                other
                for other in rows
                if {node.offer for node in other.plan.nodes} == {node.offer for node in row.plan.nodes}
            ]
            assert row.iteration_s <= min(other.iteration_s for other in alike) * 1.001


def test_even_plans_are_even_and_no_known_plan_is_better(gcp):
    answer = solve(gcp, target_of(gcp.scenario.job))
    known = [*answer.drafts, *answer.others]
    for restriction in (Restriction.EVEN_BATCHES, Restriction.EVEN_LAYERS):
        standing = [draft for draft in known if is_even(gcp, draft, (restriction,))]
        assert 0 < len(standing) < len(known)
        found = even_drafts(gcp, target_of(gcp.scenario.job), known, (restriction,), NORMAL)
        assert all(is_even(gcp, draft, (restriction,)) for draft in found)
        least = min(draft.foreseen[draft.goal] for draft in standing)
        assert min(draft.foreseen[draft.goal] for draft in found) <= least


def test_no_plan_of_even_layers_is_better_than_that_of_the_whole_space_by_far():
    """Models of many large layers are cut over long pipelines, which are guessed too slow unless layers are even."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "opt-30b"},
        training__global_batch_size=128,
        constraints={},
        resources__0__markets=["on-demand"],
        resources__0__accelerators={"A100-40": 80, "V100-16": 384},
    )
    whole, even = (plan(job, *chosen).prediction.iteration_s_replay for chosen in ((), (Restriction.EVEN_LAYERS,)))
    assert whole <= 1.01 * even
