"""Plans whose pipelines share stage count, cut and microbatch size."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from factories.brute_force import every_plan
from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner import Restriction
from sailor_cloud.planner.bounds import goal_bound
from sailor_cloud.planner.draft import to_plan
from sailor_cloud.planner.even import even_answer
from sailor_cloud.planner.goals import Figure, target_of
from sailor_cloud.planner.shares import share_evenly
from sailor_cloud.simulator import evaluate


def is_even(plan):
    """Replicas of a stage may differ in accelerator, tp and zone, counts of microbatches by one."""
    cuts = {tuple((stage.first_layer, stage.end_layer) for stage in each.stages) for each in plan.pipelines}
    counts = [each.microbatches for each in plan.pipelines]
    sizes = {each.microbatch_size for each in plan.pipelines}
    return len(cuts) == len(sizes) == 1 and max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("blocks", "batch", "zones", "wanted"),
    [
        (1, 4, ("local-a",), {"CPU-fast": 2}),
        (2, 4, ("local-a",), {"CPU-fast": 1, "CPU-slow": 2}),
        (2, 3, ("local-a",), {"CPU-fast": 2, "CPU-slow": 1}),
        (3, 6, ("local-a",), {"CPU-fast": 3, "CPU-slow": 1}),
        (1, 4, ("local-a", "local-b"), {"CPU-fast": 1, "CPU-slow": 1}),
        (2, 2, ("local-a", "local-b"), {"CPU-slow": 1}),
        (2, 4, ("local-a", "local-b"), {"CPU-fast": 1}),
    ],
)
def test_no_even_plan_beats_the_bound_and_none_the_answer_by_more_than_the_gap(blocks, batch, zones, wanted):
    job = tiny_job(blocks=blocks, batch=batch, zones=zones, accelerators=wanted)
    space = make_space(job)
    answer = even_answer(space, target_of(job))
    seconds = [
        evaluation.prediction.iteration_s
        for plan in every_plan(space.scenario)
        if is_even(plan) and (evaluation := evaluate(plan, space.scenario)).fits
    ]
    best = min(seconds)
    assert answer.drafts[0].figures[Figure.ITERATION_S] == pytest.approx(best, rel=0.02)
    assert answer.bound <= best * (1 + 1e-9)


@pytest.fixture(scope="module")
def mixed():
    job = example(
        "gcp-a100-v100.yaml",
        resources__0__zones=["us-central1-a"],
        resources__0__accelerators={"A100-40": 4, "V100-16": 8},
        training__global_batch_size=32,
        constraints__budget_usd=400,
    )
    space = make_space(job)
    return space, target_of(job), even_answer(space, target_of(job))


def test_the_drafts_are_even_and_what_the_simulator_says(mixed):
    space, _, answer = mixed
    assert answer.drafts
    for draft in answer.drafts[:4]:
        plan = to_plan(space, draft)
        plan.check(layers=space.layers, global_batch_size=space.batch)
        assert is_even(plan)
        evaluation = evaluate(plan, space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s == pytest.approx(draft.figures[Figure.ITERATION_S], rel=1e-9)


def test_no_draft_breaks_a_limit_or_takes_more_devices_than_there_are(mixed):
    space, target, answer = mixed
    for draft in answer.drafts:
        assert all(draft.figures[limit.figure] <= limit.at_most * (1 + 1e-9) for limit in target.limits)
        nodes = {(slot.pool, slot.instance) for part in draft.pipelines for slot in part.slots}
        bought = Counter[int]()
        for pool, _ in nodes:
            bought[space.pools[pool].row] += space.pools[pool].devices
        assert all(count <= space.candidates.rows[row].devices for row, count in bought.items())


def test_no_draft_beats_the_bound(mixed):
    _, target, answer = mixed
    assert answer.bound <= answer.drafts[0].figures[target.goal]


def test_the_same_question_has_the_same_answer(mixed):
    space, target, answer = mixed
    assert even_answer(make_space(space.scenario.job), target) == answer


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"goal": "minimize-cost", "constraints__min_throughput": 0.5},
        {"goal": "minimize-time", "constraints__budget_usd": 500},
        {"constraints__max_usd_per_iteration": 0.5, "resources__0__zones": ["us-central1-a", "us-central1-b"]},
    ],
)
def test_the_bound_is_never_looser_than_that_of_the_whole_space(changes):
    """Every even plan is a plan of the whole space; nor does it count for more than the best even plan."""
    job = example(
        "gcp-a100-v100.yaml",
        **{
            "resources__0__zones": ["us-central1-a"],
            "resources__0__accelerators": {"A100-40": 4, "V100-16": 4},
            "training__global_batch_size": 32,
            "constraints": {},
            **changes,
        },
    )
    space, target = make_space(job), target_of(job)
    answer = even_answer(space, target)
    bound = min(goal_bound(space.at(zero_stage), target) for zero_stage in (0, 1))
    assert bound * (1 - 1e-9) <= answer.bound <= answer.drafts[0].figures[target.goal] * (1 + 1e-9)


def test_even_layers_hold_equal_numbers_of_layers_up_to_one(mixed):
    space, target, free = mixed
    answer = even_answer(space, target, (Restriction.EVEN_LAYERS,))
    for draft in answer.drafts:
        lengths = [end - first for first, end in pairwise(draft.pipelines[0].cut)]
        assert max(lengths) - min(lengths) <= 1
    assert answer.drafts[0].figures[target.goal] >= free.drafts[0].figures[target.goal] * (1 - 1e-3)


def test_a_single_accelerator_is_no_better_than_any(mixed):
    space, target, free = mixed
    answer = even_answer(space, target, (Restriction.ONE_ACCELERATOR,))
    for draft in answer.drafts:
        assert len({space.pools[slot.pool].accelerator for part in draft.pipelines for slot in part.slots}) == 1
    assert answer.drafts[0].figures[target.goal] >= free.bound


def test_a_limit_that_nothing_keeps_leaves_no_draft():
    job = tiny_job(constraints={"min_throughput": 1e9})
    answer = even_answer(make_space(job), target_of(job))
    assert answer.drafts == ()


def test_the_faster_pipelines_get_the_larger_counts():
    assert share_evenly(10, (2, 2, 2), ((2.0, 1.0), (1.0, 1.0), (3.0, 1.0))) == (2, 2, 1)
    assert share_evenly(9, (2, 2), ((1.0, 1.0), (1.0, 1.0))) is None
    assert share_evenly(2, (2, 2), ((1.0, 1.0), (1.0, 1.0))) is None
