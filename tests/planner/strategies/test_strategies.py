"""Published planners: what each proposes, held against brute force over its own cost model and against its paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations, count, islice, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor_cloud import catalog, network, workload
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import RequestError
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.space.candidates import collect
from sailor_cloud.planner.strategies import STRATEGIES, strategy_named
from sailor_cloud.planner.strategies.cluster import Cluster, balanced_cuts, clusters_of, even_cuts, shares
from sailor_cloud.planner.strategies.driver import Outcome, best_of, carried_out, computing_s, iteration_s
from sailor_cloud.planner.strategies.grid import even_microbatches
from sailor_cloud.planner.strategies.published import (
    aceso,
    amp,
    atlas,
    dtfm,
    flashflex,
    galvatron,
    metis,
    oobleck,
    piper,
    sailor_paper,
    varuna,
)
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy
from sailor_cloud.simulator import Evaluation, Scenario, evaluate

JOB = """
name: small
model: {{model_type: gpt2, vocab_size: 5000, hidden_size: 512, num_hidden_layers: {blocks}, num_attention_heads: 8,
        max_position_embeddings: 512}}
training: {{global_batch_size: {batch}, sequence_length: 512, precision: fp32}}
resources:
  - {{provider: gcp, zones: [{zones}], markets: [on-demand], accelerators: {{{accelerators}}},
      instance_types: [a2-highgpu-2g, a2-highgpu-4g, n1-standard-16]}}
"""

PAGE = Path(__file__).resolve().parents[3] / "docs" / "strategies.md"


@cache
def clusters(
    accelerators: str = "A100-40: 8, V100-16: 4", zones: str = "us-central1-a", blocks: int = 6, batch: int = 32
) -> tuple[Cluster, ...]:
    job = parse_job(JOB.format(accelerators=accelerators, zones=zones, blocks=blocks, batch=batch))
    prices = catalog.load()
    candidates = collect(job, prices)
    scenario = Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers={pool.offer.id: pool.offer for pool in candidates.pools},
        catalog=prices,
        network=network.load(),
        profiles=workload.profiles.load(),
        as_of=SystemClock().now(),
    )
    return clusters_of(scenario, candidates)


def cluster(*args: str, **kwargs: str | int) -> Cluster:
    return clusters(*args, **kwargs)[0]  # type: ignore[arg-type]


@cache
def outcomes(name: str) -> tuple[Outcome, ...]:
    """Return a strategy's own plan for the usual cluster, and the one that the oracle chooses."""
    return tuple(carried_out(strategy_named(name), cluster()))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_every_strategy_comes_to_a_plan_that_fits_and_always_to_the_same(strategy: Strategy) -> None:
    first, second = outcomes(strategy.name)[0], next(carried_out(strategy, cluster()))
    assert first.plan is not None
    assert first.evaluation is not None
    assert first.evaluation.fits
    assert first.plan.global_batch_size == 32
    first.plan.check(layers=cluster().layers, global_batch_size=32)
    assert (first.plan, first.estimate_s) == (second.plan, second.estimate_s)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_oracle_never_chooses_a_plan_slower_than_the_strategy_s_own(strategy: Strategy) -> None:
    own, oracle = outcomes(strategy.name)
    assert own.evaluation is not None
    assert oracle.evaluation is not None
    assert oracle.evaluation.prediction.iteration_s_replay <= own.evaluation.prediction.iteration_s_replay


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if not s.mixed], ids=lambda strategy: strategy.name)
def test_a_planner_for_one_kind_of_gpu_uses_one(strategy: Strategy) -> None:
    for proposal in list(strategy.propose(cluster()))[:50]:
        kinds = {node.offer for node in proposal.build().nodes}
        assert len(kinds) == 1


def test_plans_that_do_not_fit_are_skipped_and_counted() -> None:
    large = cluster("V100-16: 4", blocks=160, batch=256)
    outcome = next(carried_out(strategy_named("amp"), large))
    assert outcome.evaluation is None or outcome.evaluation.fits
    assert outcome.out_of_memory > 0, "it has no model of memory"


def test_plans_that_break_a_limit_are_skipped_and_counted() -> None:
    unlimited = next(carried_out(strategy_named("metis"), cluster()))
    assert unlimited.evaluation is not None
    most = unlimited.evaluation.cost.usd_per_hour
    limited = next(carried_out(strategy_named("metis"), cluster(), allowed=lambda e: e.cost.usd_per_hour < most))
    assert limited.over_limits > 0
    assert limited.evaluation is None or limited.evaluation.cost.usd_per_hour < most


def test_a_proposal_that_our_plans_can_t_state_is_counted_and_the_next_one_taken() -> None:
    def propose(given: Cluster) -> list[Proposal]:
        def refused() -> None:
            raise RequestError("no")

        good = min(strategy_named("varuna").propose(given), key=lambda proposal: proposal.estimate_s)
        return [Proposal(estimate_s=0.0, build=refused), good]  # type: ignore[arg-type]

    made_up = Strategy(name="made-up", paper="", summary="", propose=propose)
    outcome = next(carried_out(made_up, cluster()))
    assert (outcome.inexpressible, outcome.plan is not None) == (1, True)


def test_each_cluster_has_another_instance_type_and_the_one_of_most_usable_devices_comes_first() -> None:
    assert [{machine.devices for machine in each.machines} for each in clusters("A100-40: 8")] == [{4}, {2}]
    six = clusters("A100-40: 6")
    assert [(each.devices, each.machines[0].devices) for each in six] == [(6, 2), (4, 4)]


def test_a_strategy_gets_the_instance_type_that_suits_it_best() -> None:
    both = clusters("A100-40: 6", batch=24)
    for strategy in STRATEGIES:
        each = [next(carried_out(strategy, one)) for one in both]
        times = [iteration_s(outcome.evaluation) for outcome in each if outcome.evaluation is not None]
        best = next(best_of(strategy, both))
        assert best.evaluation is not None
        assert iteration_s(best.evaluation) == min(times)
    assert len({machine.devices for machine in both[0].machines + both[1].machines}) == 2


def test_a_strategy_that_the_clock_ends_comes_to_the_best_of_what_it_has_proposed() -> None:
    looks = count()
    outcome = next(best_of(strategy_named("metis"), clusters("A100-40: 6", batch=24), expired=lambda: next(looks) >= 5))
    assert outcome.cut_short
    assert outcome.proposals == 5
    assert outcome.evaluation is not None
    assert outcome.evaluation.fits
    at_once = next(best_of(strategy_named("metis"), clusters("A100-40: 6", batch=24), expired=lambda: True))
    assert (at_once.plan, at_once.cut_short) == (None, True)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_no_iteration_takes_less_than_its_busiest_stage_computes(strategy: Strategy) -> None:
    mixed = cluster("A100-40: 2, V100-16: 4", batch=24)
    looked_at = 0
    for proposal in islice(sorted(strategy.propose(mixed), key=lambda each: each.order), 0, 40, 4):
        plan = proposal.build()
        assert computing_s(plan, mixed) <= iteration_s(evaluate(plan, mixed.scenario)) * (1.0 + 1e-12)
        looked_at += 1
    assert looked_at


@pytest.mark.parametrize("name", ["amp", "galvatron", "flashflex"])
def test_the_oracle_judges_the_same_plan_best_without_looking_at_those_that_compute_too_long(name: str) -> None:
    (_, some), (_, every) = (
        carried_out(strategy_named(name), cluster(), score=score) for score in (iteration_s, lambda e: iteration_s(e))
    )
    assert some == every


def test_one_search_serves_a_strategy_and_its_oracle() -> None:
    searches = []

    def propose(given: Cluster) -> Iterable[Proposal]:
        searches.append(given)
        return strategy_named("metis").propose(given)

    own, oracle = best_of(Strategy(name="counted", paper="", summary="", propose=propose), clusters("A100-40: 6"))
    assert len(searches) == len(clusters("A100-40: 6")) > 1
    assert (own.oracle, oracle.oracle) == (False, True)
    assert own.evaluation is not None
    assert oracle.evaluation is not None
    assert iteration_s(oracle.evaluation) <= iteration_s(own.evaluation)


def test_the_oracle_chooses_by_the_goal_of_the_job() -> None:
    def usd(evaluation: Evaluation) -> float:
        return evaluation.cost.usd_per_iteration

    fast, cheap = (
        list(carried_out(strategy_named("atlas"), cluster(), score=score))[1] for score in (iteration_s, usd)
    )
    assert fast.evaluation is not None
    assert cheap.evaluation is not None
    assert usd(cheap.evaluation) < usd(fast.evaluation)
    assert iteration_s(cheap.evaluation) > iteration_s(fast.evaluation)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_no_strategy_has_a_plan_without_nodes(strategy: Strategy) -> None:
    outcome = next(carried_out(strategy, cluster().part(())))
    assert (outcome.plan, outcome.proposals) == (None, 0)


def test_the_page_says_what_each_strategy_can_express_as_the_registry_does() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {row[1].strip(" `"): [cell.strip() != "no" for cell in row[3:7]] for row in rows}
    assert told == {each.name: [each.mixed, each.zones, each.money, each.memory] for each in STRATEGIES}


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="no strategy 'mettis'; did you mean 'metis'"):
        strategy_named("mettis")


@given(
    st.lists(st.floats(0.1, 5.0), min_size=2, max_size=8),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_balanced_cuts_are_the_best_of_all(layer_s: list[float], stages: int, random: object) -> None:
    stages = min(stages, len(layer_s))
    speeds = np.array([[1.0 + s * 0.5] * len(layer_s) for s in range(stages)]) * np.array(layer_s)

    def slowest(bounds: list[int]) -> float:
        return max(speeds[s, a:b].sum() for s, (a, b) in enumerate(pairwise(bounds)))

    every = [[0, *inner, len(layer_s)] for inner in combinations(range(1, len(layer_s)), stages - 1)]
    assert slowest(balanced_cuts(speeds, stages)) == pytest.approx(min(map(slowest, every)))


@given(st.integers(1, 500), st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=9))
def test_shares_make_up_the_batch_or_are_refused(batch: int, sizes: list[int]) -> None:
    try:
        counts = shares(batch, sizes)
    except RequestError:
        assert sum(sizes) > batch or len(set(sizes)) > 1 or batch % sizes[0]
        return
    assert min(counts) >= 1
    assert sum(count * size for count, size in zip(counts, sizes, strict=True)) == batch


def test_piper_s_programme_equals_brute_force() -> None:
    small = cluster("A100-40: 8", blocks=3, batch=16)
    modes = [piper.Mode(tp=tp, recompute=kind) for tp in (1, 2) for kind in (Recompute.NONE, Recompute.FULL)]
    for devices, microbatches in ((2, 8), (4, 4), (5, 2)):
        seconds = piper.stage_tables(small, modes, 2, 1, microbatches)
        found = piper.pipeline(seconds, modes, devices)
        layers, best = small.layers, np.inf
        for stages in range(1, layers + 1):
            for inner in combinations(range(1, layers), stages - 1):
                bounds = [0, *inner, layers]
                for chosen in product(range(len(modes)), repeat=stages):
                    if sum(modes[m].tp for m in chosen) <= devices:
                        spans = zip(chosen, pairwise(bounds), strict=True)
                        best = min(best, max(seconds[stages - s, m, a, b] for s, (m, (a, b)) in enumerate(spans)))
        assert found is not None
        assert found[0] == pytest.approx(best)


def test_piper_counts_the_microbatches_in_flight_of_every_stage() -> None:
    """The memory term is the paper's point: the first of more stages holds more activations, so it may not fit."""
    deep = cluster("V100-16: 8", blocks=60, batch=512)
    modes = [piper.Mode(tp=1, recompute=Recompute.NONE)]
    seconds = piper.stage_tables(deep, modes, 1, 16, 32)
    fits = [np.isfinite(seconds[stages, 0, 0, 4]) for stages in range(1, deep.layers)]
    assert fits[0]
    assert not fits[-1]
    assert sorted(fits, reverse=True) == fits


def test_amp_s_ranking_is_that_of_its_own_formula_over_all_grids() -> None:
    mixed = cluster("A100-40: 2, V100-16: 2", blocks=4, batch=8)
    best = np.inf
    for tp in mixed.tp_degrees():
        slots = mixed.slots(tp)
        for replicas, size in product((1, 2, 4), (1, 2, 4, 8)):
            if len(slots) % replicas or 8 % (replicas * size):
                continue
            times = amp.average_layer_s(mixed, tp, size)
            assert times is not None
            stages = len(slots) // replicas
            rows = tuple(tuple(slots[s * replicas : (s + 1) * replicas]) for s in range(stages))
            for inner in combinations(range(1, mixed.layers), stages - 1):
                best = min(best, amp.estimate_s(mixed, rows, [0, *inner, mixed.layers], times, size))
    found = min(proposal.estimate_s for proposal in amp.propose(mixed))
    # Cuts are chosen for the slowest stage alone; its formula also counts the all-reduce of the largest one.
    assert best <= found <= 1.05 * best


def test_atlas_crosses_zones_between_stages_only() -> None:
    two = cluster("A100-40: 4", zones="us-central1-a, us-east1-b")
    assert len(two.zones) == 2
    names = {machine.name: machine.zone for machine in two.machines}
    seen = 0
    for proposal in atlas.propose(two):
        plan = proposal.build()
        for stage in zip(*(pipeline.stages for pipeline in plan.pipelines), strict=True):
            assert len({names[each.node] for each in stage}) == 1
        seen += len({names[stage.node] for stage in plan.pipelines[0].stages}) > 1
    assert seen, "some pipelines span both zones"


def test_varuna_cuts_blocks_evenly_and_recomputes() -> None:
    for proposal in varuna.propose(cluster()):
        stages = proposal.build().pipelines[0].stages
        assert {stage.recompute for stage in stages} == {Recompute.FULL}
        blocks = [min(s.end_layer, 7) - max(s.first_layer, 1) for s in stages]
        assert len(set(blocks)) == 1


@given(st.integers(1, 6), st.integers(1, 60))
def test_any_number_of_nodes_from_the_smallest_template_on_is_a_sum_of_templates(least: int, nodes: int) -> None:
    sizes = list(range(least, 2 * least))
    found = list(oobleck.sums(sizes, nodes, 1))
    assert bool(found) is (nodes >= least)
    assert all(sum(size * count for size, count in each.items()) == nodes for each in found)


def test_oobleck_has_one_pipeline_more_than_failures_to_survive() -> None:
    for proposal in list(oobleck.propose(cluster()))[:20]:
        assert len(proposal.build().pipelines) > oobleck.FAULTS


def test_sailor_s_tensor_parallelism_is_the_smallest_that_fits_and_is_doubled_where_that_pays() -> None:
    alone = cluster("A100-40: 8")
    (order,) = sailor_paper.orders(alone)
    bounds = even_cuts(alone.layers, 2)
    chosen = sailor_paper.degrees_of(alone, order, bounds, 4)
    for (name, stage), tp in chosen.items():
        first, end = bounds[stage], bounds[stage + 1]
        table, half = alone.table(name, tp, 4), alone.table(name, tp // 2, 4) if tp > 1 else None
        assert table is not None
        assert table.memory_bytes(first, end, in_flight=2 - stage) <= table.limit_bytes
        if half is not None and half.memory_bytes(first, end, in_flight=2 - stage) <= half.limit_bytes:
            assert half.compute_s(first, end) >= sailor_paper.WORTH_DOUBLING * table.compute_s(first, end)


def test_sailor_s_layers_are_even_with_the_rest_on_the_last_stages() -> None:
    assert even_cuts(8, 3) == [0, 2, 5, 8]
    for proposal in list(sailor_paper.propose(cluster()))[:30]:
        stages = proposal.build().pipelines[0].stages
        sizes = [stage.end_layer - stage.first_layer for stage in stages]
        assert sizes == sorted(sizes)
        assert max(sizes) - min(sizes) <= 1


def cuts_of(layers: int, stages: int) -> list[list[int]]:
    return [[0, *inner, layers] for inner in combinations(range(1, layers), stages - 1)]


class EveryShare(sailor_paper._Programme):
    """Sailor's programme with all ways to share a stage's replicas among kinds."""

    def _shares(self, stage: int, region: int, left: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        tps = [self.degrees.get((kind.accelerator, stage)) for kind in self.regions[region]]
        for split in product(range(self.replicas + 1), repeat=len(left)):
            taken = zip(split, tps, left, strict=True)
            if sum(split) == self.replicas and all(n * (tp or 10**6) <= free for n, tp, free in taken):
                yield split


def test_sailor_s_programme_loses_nothing_by_looking_at_few_ways_to_share_a_stage() -> None:
    mixed = cluster("A100-40: 4, V100-16: 4", blocks=4, batch=16)
    (regions,) = sailor_paper.orders(mixed)
    for stages, replicas in ((1, 4), (2, 2), (2, 3), (3, 2)):
        bounds = even_cuts(mixed.layers, stages)
        given = (mixed, regions, bounds, sailor_paper.degrees_of(mixed, regions, bounds, 2), 2, replicas, 4)
        few, every = sailor_paper._Programme(*given), EveryShare(*given)
        found, best = few.rest(0, 0, few.full), every.rest(0, 0, every.full)
        assert found is not None
        assert best is not None
        assert best.seconds(4) <= found.seconds(4) <= 1.02 * best.seconds(4)


def test_varuna_takes_the_largest_microbatch_that_fits_for_every_number_of_stages() -> None:
    alone = cluster("V100-16: 8", blocks=60, batch=512)
    for proposal in varuna.propose(alone):
        [pipeline, *_] = proposal.build().pipelines
        stages, larger = len(pipeline.stages), pipeline.microbatch_size * 2
        table = alone.table("V100-16", 1, larger, Recompute.FULL)
        count = even_microbatches(alone, alone.devices // stages, larger)
        if table is None or not count or larger not in alone.microbatch_sizes():
            continue
        spans = [(stage.first_layer, stage.end_layer) for stage in pipeline.stages]
        needed = [table.memory_bytes(a, b, in_flight=min(stages - s, count)) for s, (a, b) in enumerate(spans)]
        assert max(needed) > table.limit_bytes


def test_aceso_ends_near_the_best_of_all_configurations() -> None:
    small = cluster("A100-40: 4", blocks=3, batch=8)
    best = np.inf
    for stages in (1, 2):
        for bounds, degrees, again in product(
            cuts_of(small.layers, stages), product((1, 2), repeat=stages), product((False, True), repeat=stages)
        ):
            for replicas, size in product((1, 2, 4), small.microbatch_sizes()):
                rating = aceso._rated(
                    small,
                    aceso.Configuration(
                        bounds=tuple(bounds), degrees=degrees, recompute=again, replicas=replicas, size=size
                    ),
                )
                if rating is not None and rating.fits:
                    best = min(best, rating.seconds)
    found = min(proposal.estimate_s for proposal in aceso.propose(small))
    assert found <= 1.02 * best


def test_dtfm_finds_the_cheapest_grouping_of_all() -> None:
    two = cluster("A100-40: 4", zones="us-central1-a, us-east1-b", blocks=4, batch=8)
    slots = two.slots(1)
    for stages in (2, 4):
        each = len(slots) // stages
        search = dtfm._Search(two, each)
        best = min(
            search.cost_s(search._grouping([*first, *(slot for slot in slots if slot not in first)], stages))
            for first in combinations(slots, each)
        )
        assert search.cost_s(search.evolved(slots, stages)[0]) <= best * (1.0 + 1e-9)


def test_metis_gives_layers_to_kinds_as_well_as_any_cut_does() -> None:
    mixed = cluster("A100-40: 2, V100-16: 2", blocks=4, batch=8)
    tables = [mixed.table(name, 1, 2) for name in ("A100-40", "V100-16", "V100-16")]
    known = [table for table in tables if table is not None]
    slots = {name: [s for s in mixed.slots(1) if s.machine.accelerator == name] for name in mixed.accelerators}
    rows = tuple((slots[name][place],) for name, place in (("A100-40", 0), ("V100-16", 0), ("V100-16", 1)))
    bounds = metis.layers_of(mixed, known, 4)
    best = min(metis.estimate_s(mixed, rows, known, cut, 4) for cut in cuts_of(mixed.layers, 3))
    assert metis.estimate_s(mixed, rows, known, bounds, 4) <= 1.05 * best


def test_galvatron_s_cuts_come_near_the_best_of_all_for_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    small = cluster("A100-40: 4", blocks=4, batch=8)

    def least(stages: int, replicas: int) -> float:
        return min(each.estimate_s for each in galvatron._of_grid(small, 1, stages, replicas, 1, 0))

    grids = [(2, 2), (4, 1)]
    found, best = [least(*grid) for grid in grids], []
    for stages, replicas in grids:
        every = []
        for cut in cuts_of(small.layers, stages):
            monkeypatch.setattr(galvatron, "balanced_cuts", lambda weights, stages, cut=cut: cut)
            every.append(least(stages, replicas))
        best.append(min(every))
    assert all(a <= b <= 1.05 * a for a, b in zip(best, found, strict=True))


@given(st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_flashflex_parts_have_the_most_even_power_that_any_parting_has(pipelines: int, tp: int) -> None:
    mixed = cluster("A100-40: 2, V100-16: 4", blocks=4, batch=8)
    slots = mixed.slots(1)[: 2 + tp]
    speeds = {"A100-40": 2.0, "V100-16": 1.0}

    def least(groups: list[list[float]]) -> float:
        return min(map(sum, groups))

    best = max(
        least(
            [
                [speeds[s.machine.accelerator] for s, p in zip(slots, where, strict=True) if p == k]
                for k in range(pipelines)
            ]
        )
        for where in product(range(pipelines), repeat=len(slots))
    )
    parts = flashflex.parted(slots, pipelines, speeds)
    assert least([[speeds[s.machine.accelerator] for s in part] for part in parts]) == best


def test_oobleck_s_templates_come_near_the_best_cut_for_their_formula() -> None:
    small = cluster("A100-40: 8", blocks=4, batch=16)
    for nodes, template in oobleck.templates(small, 1).items():
        table = small.table("A100-40", template.tp, 1)
        assert table is not None
        best = np.inf
        for cut in cuts_of(small.layers, len(template.bounds) - 1):
            compute = [float(table.compute_s(a, b)) for a, b in pairwise(cut)]
            slowest = max(range(len(compute)), key=lambda s: compute[s])
            steady = (4 * len(compute) - len(compute) + slowest) * compute[slowest]
            best = min(best, sum(compute) + steady + sum(compute[slowest:]))
        assert best <= template.iteration_s * (1.0 + 1e-12), nodes
        assert template.iteration_s <= 1.05 * best


def test_atlas_ranks_every_number_of_stages_and_pipelines_of_a_region() -> None:
    alone = cluster("A100-40: 8", blocks=4, batch=16)
    shapes = {
        (len(plan.pipelines), len(plan.pipelines[0].stages), plan.pipelines[0].microbatch_size)
        for proposal in atlas.propose(alone)
        if (plan := proposal.build())
    }
    tp = max(alone.tp_degrees())
    slots = len(alone.slots(tp))
    assert {shape[:2] for shape in shapes} == {
        (d, p) for d in range(1, slots + 1) for p in range(1, alone.layers + 1) if d * p <= slots
    }
