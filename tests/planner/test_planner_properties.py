"""Laws of the search, on random small cases."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from factories.planning import make_space, plan, tiny_job
from sailor_cloud.model.document import Status
from sailor_cloud.planner.bound.programme import linear
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.evaluate.shares import share_batch
from sailor_cloud.planner.improvement.choice import best_that_holds
from sailor_cloud.planner.seeds.mixed import mix
from sailor_cloud.planner.space.goals import target_of

GOALS = ("maximize-throughput", "minimize-cost", "minimize-time")


def least_seconds(batch, sizes, paces):
    """The least time in which microbatches can make up the batch exactly, by trying all counts."""
    best = None
    for counts in product(*(range(1, batch // size + 1) for size in sizes)):
        if sum(size * count for size, count in zip(sizes, counts, strict=True)) == batch:
            seconds = max((count - 1) * b + fill for count, (b, fill) in zip(counts, paces, strict=True))
            best = seconds if best is None else min(best, seconds)
    return best


def test_shared_batches_are_exact_and_take_the_least_time():
    dice = random.Random(1)
    for _ in range(3000):
        parts = dice.randint(1, 3)
        sizes = [dice.randint(1, 5) for _ in range(parts)]
        batch = dice.randint(sum(sizes), 24)
        paces = [(b := size * dice.uniform(0.1, 1.0), b * dice.uniform(1.0, 4.0)) for size in sizes]
        counts = share_batch(batch, sizes, paces)
        least = least_seconds(batch, sizes, paces)
        assert (counts is None) == (least is None)
        if counts is not None:
            assert sum(size * count for size, count in zip(sizes, counts, strict=True)) == batch
            taken = max((count - 1) * b + fill for count, (b, fill) in zip(counts, paces, strict=True))
            assert taken == pytest.approx(least, rel=1e-9)


def test_no_whole_solution_of_a_programme_beats_its_optimum_which_its_prices_prove():
    dice = random.Random(3)
    for _ in range(60):
        cost = np.array([dice.uniform(-3, 1) for _ in range(3)])
        rows = np.array([[dice.uniform(0.6, 2) for _ in range(3)] for _ in range(2)])
        limits = np.array([dice.uniform(1, 4) for _ in range(2)])
        points = [np.array(point) for point in product(range(8), repeat=3) if (rows @ point <= limits + 1e-9).all()]
        best = min(float(cost @ point) for point in points)
        relaxed = linear(cost, rows, limits)
        assert relaxed.cost <= best + 1e-9
        assert relaxed.cost == pytest.approx(-float(relaxed.prices @ limits), abs=1e-6)
        assert (cost + relaxed.prices @ rows >= -1e-6).all()


@pytest.mark.parametrize("number", range(12))
def test_no_plan_at_all_beats_the_bound_and_the_search_beats_no_bound(number):
    dice = random.Random(100 + number)
    job = tiny_job(
        blocks=dice.randint(1, 3),
        batch=dice.randint(2, 5),
        hidden=dice.choice((32, 64)),
        accelerators=dice.choice(({"CPU-fast": 1}, {"CPU-slow": 2}, {"CPU-fast": 1, "CPU-slow": 1})),
        goal=dice.choice(GOALS),
    )
    space, target = make_space(job), target_of(job)
    every = exhaust(space, target, small_layouts(space), keep=1)
    exact = every.drafts[0].figures[target.goal]
    answer = mix(space, target, keep=1)
    assert answer.bound <= exact * (1 + 1e-9)
    chosen = best_that_holds(space, target, answer.drafts)
    assert replayed(chosen.draft, chosen.evaluation)[target.goal] >= exact * (1 - 1e-9)
    best = min(draft.figures[target.goal] for draft in every.others)
    assert best >= exact * (1 - 1e-9)


def test_a_bigger_budget_quota_or_set_of_zones_never_gives_a_worse_plan():
    size = {"blocks": 2, "batch": 4, "hidden": 64}
    needed = plan(tiny_job(**size, goal="minimize-cost")).cost.total_usd
    budgets = [plan(tiny_job(**size, constraints={"budget_usd": needed * share})) for share in (1.02, 1.3, 2.0, 10.0)]
    wider = [plan(tiny_job(**size, zones=zones)) for zones in (("local-a",), ("local-a", "local-b"))]
    more = [plan(tiny_job(**size, zones=("local-a",), accelerators={"CPU-fast": count})) for count in (1, 2, 3)]
    for row in (budgets, wider, more):
        assert all(document.status is Status.OPTIMAL for document in row)
        values = [document.objective.value for document in row]
        assert values == sorted(values)
