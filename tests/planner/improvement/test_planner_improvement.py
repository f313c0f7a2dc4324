"""The local search: an evaluator that is the replay, neighbours that are plans, and ever better ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from factories.brute_force import every_plan
from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.evaluate.assess import Assessor, Shape, shapes_of
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement import Evaluator, Improver, Neighbourhood, improved
from sailor_cloud.planner.improvement.local_search import _Descent
from sailor_cloud.planner.seeds.mixed import mix
from sailor_cloud.planner.space.draft import nodes_of, to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, Limit, target_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.simulator import evaluate

ONE_ZONE = {"resources__0__zones": ["us-central1-a"], "constraints": {}}


@pytest.fixture(scope="module", params=["fp16", "bf16", "opt-1.3b"])
def found(request):
    """The first plans of a job; bf16 leaves A100s alone, and the third has a tied embedding and stages of one layer."""
    changes = {
        "fp16": {},
        "bf16": {"training__precision": "bf16"},
        "opt-1.3b": {"model__preset": "opt-1.3b", "training__global_batch_size": 64},
    }[request.param]
    job = example("gcp-a100-v100.yaml", **ONE_ZONE, **changes)
    job.resources[0].accelerators.update({"A100-40": 8, "V100-16": 8})
    space, target = make_space(job), target_of(job)
    answer = mix(space, target, keep=24)
    return space, target, list({draft.order(): draft for draft in (*answer.drafts, *answer.others)}.values())


def simulated(space, draft):
    return replayed(draft, evaluate(to_plan(space, draft), space.scenario))


def test_the_evaluator_is_exact(found):
    space, target, drafts = found
    for stage in (0, 1):
        evaluator = Evaluator(Assessor(space.at(stage), target))
        for draft in drafts[:12]:
            seconds = float(simulated(space, replace(draft, zero_stage=stage))[Figure.ITERATION_S])
            assert evaluator.figures(draft)[Figure.ITERATION_S] == pytest.approx(seconds, rel=1e-9)


def test_totals_are_no_more_than_the_bill_and_equal_where_corrected(found):
    space, target, drafts = found
    total = float(simulated(space, drafts[0])[Figure.TOTAL_USD])
    for at_most, kept in ((total * 1.0001, True), (total * 0.9999, False)):
        tight = replace(target, limits=(Limit(name="budget_usd", figure=Figure.TOTAL_USD, at_most=at_most),))
        evaluator = Evaluator(Assessor(space, tight))
        assert evaluator.figures(drafts[0])[Figure.TOTAL_USD] <= total * (1 + 1e-9)
        excess, _ = replace(evaluator, factors=evaluator.correction(drafts[0])).rank(drafts[0])
        assert (excess == 1.0) is kept


def test_every_neighbour_is_a_plan_that_can_be_bought_and_its_figures_are_exact(found):
    space, target, drafts = found
    improver, rows = Improver(space, target), space.candidates.rows
    checked = 0
    for draft in drafts[:4]:
        for kind in Neighbourhood(space).kinds(draft):
            for neighbour in list(kind())[::7][:12]:
                made = improver.made(neighbour, 0)
                if made is None:
                    continue
                checked += 1
                plan = to_plan(space, made)
                plan.check(layers=space.layers, global_batch_size=space.batch)
                nodes = nodes_of(tuple(part.slots for part in made.pipelines))
                devices = Counter()
                for pool, count in nodes.items():
                    devices[space.pools[pool].row] += count * space.pools[pool].devices
                assert all(count <= rows[row].devices for row, count in devices.items())
                evaluation = evaluate(plan, space.scenario)
                assert evaluation.fits
                seconds = evaluation.prediction.iteration_s_replay
                assert made.expected[Figure.ITERATION_S] == pytest.approx(seconds, rel=1e-9)
    assert checked > 20


def test_plans_excluded_by_the_lower_bound_are_no_better(found):
    space, target, drafts = found
    improver = Improver(space, target)
    for draft in drafts[:3]:
        start = improver.expected(draft)
        for neighbour in list(Neighbourhood(space).every(draft))[::11]:
            made = improver.made(neighbour, 0)
            if made is not None and improver.made(neighbour, 0, start) is None:
                assert made.expected[Figure.ITERATION_S] >= start.expected[Figure.ITERATION_S]


def test_improved_plans_are_no_worse_and_are_the_same_each_time(found):
    space, target, drafts = found
    improver = Improver(space, target)
    best = min(map(improver.expected, drafts), key=improver.rank)
    once, twice = (improved(space, target, drafts, NORMAL.lighter(), most=2) for _ in range(2))
    assert [draft.order() for draft in once] == [draft.order() for draft in twice]
    better = min(once, key=improver.rank)
    assert improver.rank(better) <= improver.rank(best)


@pytest.mark.parametrize("goal", ["maximize-throughput", "minimize-cost"])
@pytest.mark.parametrize("accelerators", [{"CPU-fast": 2}, {"CPU-fast": 1, "CPU-slow": 1}, {"CPU-slow": 2}])
def test_from_the_worst_plan_a_descent_comes_to_the_best_of_all_under_the_replay(goal, accelerators):
    job = tiny_job(blocks=2, batch=3, hidden=64, accelerators=accelerators, zones=("local-a",), goal=goal)
    space, target = make_space(job), target_of(job)
    every = [evaluate(plan, space.scenario) for plan in every_plan(space.scenario)]
    fitting = [each for each in every if each.fits]
    if goal == "minimize-cost":
        least = min(each.cost.total_usd or each.cost.usd_per_iteration for each in fitting)
    else:
        least = min(each.prediction.iteration_s_replay for each in fitting)
    others = exhaust(space, target, small_layouts(space), keep=1).others
    worst = max(others, key=lambda draft: draft.figures[target.goal])
    best = improved(space, target, [worst], NORMAL, most=1)
    reached = min(float(simulated(space, draft)[target.goal]) for draft in best)
    assert reached == pytest.approx(least, rel=1e-9)


def test_a_descent_halves_microbatches_and_moves_layers_at_once():
    """Neither change alone is better: the smaller microbatch pays off once the first stage holds a layer more."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "opt-1.3b"},
        training={"global_batch_size": 64, "sequence_length": 1024, "steps": 500, "precision": "fp16"},
        goal="minimize-cost",
        constraints={},
        resources__0__zones=["us-west1-b"],
        resources__0__markets=["spot"],
        resources__0__accelerators={"L4-24": 1, "T4-16": 1},
    )
    space, target = make_space(job), target_of(job)
    pools = [
        min(
            (n for n, pool in enumerate(space.pools) if pool.accelerator.name == name),
            key=lambda n: space.rates[n].expected,
        )
        for name in ("L4-24", "T4-16")
    ]
    there = space.at(1)
    slots = tuple(Slot(pool, 0, 1) for pool in pools)
    starts = {
        (cut, size): replace(Assessor(there, target).draft([Shape(slots, (0, cut, 26), size)]), zero_stage=1)
        for cut, size in ((16, 4), (16, 2), (17, 2))
    }
    improver = Improver(space, target)
    usd = {key: improver.expected(draft).expected[Figure.TOTAL_USD] for key, draft in starts.items()}
    assert usd[17, 2] < 0.98 * usd[16, 4] < 0.98 * usd[16, 2]
    best = improver.descend(starts[16, 4], 80.0)[0]
    assert best.expected[Figure.TOTAL_USD] <= usd[17, 2] * (1 + 1e-9)


@pytest.mark.parametrize("tied", [True, False])
def test_the_stages_of_one_pipeline_share_the_optimizer_of_a_tied_weight(tied):
    """Both ends hold the embedding, so ZeRO-1 halves what they exchange; without a tied weight it changes nothing."""
    job = example(
        "gcp-a100-v100.yaml",
        model={
            "model_type": "gpt2",
            "vocab_size": 50257,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": tied,
        },
        training={"global_batch_size": 48, "sequence_length": 1024, "steps": 500, "precision": "fp16"},
        constraints={},
        resources__0__zones=["europe-west4-a"],
        resources__0__markets=["spot"],
        resources__0__accelerators={"P100-16": 4, "T4-16": 1},
    )
    space, target = make_space(job), target_of(job)
    pools = [
        next(n for n, pool in enumerate(space.pools) if (pool.accelerator.name, pool.devices) == kind)
        for kind in (("T4-16", 1), ("P100-16", 1))
    ]
    slots = (Slot(pools[0], 0, 1), Slot(pools[1], 0, 1))
    improver = Improver(space, target)
    begun = improver.expected(Assessor(space, target).draft([Shape(slots, (0, 8, space.layers), 2)]))
    moves = (move for kind in _Descent(improver, 300.0)._kinds(begun) for move in kind())
    assert 1 in {stage for stage, neighbour in moves if neighbour.shapes == shapes_of(begun)}
    seconds = [float(simulated(space, replace(begun, zero_stage=stage))[Figure.ITERATION_S]) for stage in (0, 1)]
    assert (seconds[1] < 0.999 * seconds[0]) is tied
