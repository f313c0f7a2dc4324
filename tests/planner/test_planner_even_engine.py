"""The exact search over even batches finds what going through all plans finds, and its bound holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories.even_problem import RandomEven
from sailor_cloud.planner.even.engine import solve
from sailor_cloud.planner.even.labels import Labels, undominated
from sailor_cloud.planner.replica_counts import replica_counts

CASES = 120
BLOCK = 30


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_the_search_equals_brute_force(block):
    feasible = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        problem = RandomEven(seed)
        outcome = solve([problem], gap=1e-9)
        best = min(problem.every_value(), default=None)
        if best is None:
            assert not outcome.found, seed
            assert outcome.bound == np.inf, seed
            continue
        feasible += 1
        assert outcome.found[0].value == pytest.approx(best, rel=1e-8), seed
        assert outcome.bound <= best * (1 + 1e-9), seed
        assert outcome.bound >= best * (1 - 1e-8), seed
    assert feasible > BLOCK / 4


def test_a_stage_that_is_needed_once_is_there_once():
    feasible = 0
    for seed in range(300, 360):
        problem = RandomEven(seed, marked=True)
        outcome = solve([problem], gap=1e-9)
        best = min(problem.every_value(), default=None)
        if best is None:
            assert not outcome.found, seed
            assert outcome.bound == np.inf, seed
            continue
        feasible += 1
        assert outcome.found[0].value == pytest.approx(best, rel=1e-8), seed
        assert best * (1 - 1e-8) <= outcome.bound <= best * (1 + 1e-9), seed
    assert feasible > 10


def test_the_best_in_place_is_found_where_places_decide():
    feasible = 0
    for seed in range(400, 460):
        problem = RandomEven(seed, late=True)
        outcome = solve([problem], gap=1e-9)
        best = min(problem.every_value(), default=None)
        if best is None:
            assert not outcome.found, seed
            continue
        feasible += 1
        assert outcome.bound <= best * (1 + 1e-9), seed
        assert outcome.found[0].value == pytest.approx(best, rel=1e-8), seed
        assert outcome.bound >= best * (1 - 1e-8), seed
    assert feasible > 10


def test_the_best_of_several_parts_is_found_and_bounded():
    for seed in range(360, 400):
        parts = [RandomEven(seed), RandomEven(seed, marked=True)]
        parts[0].devices = np.minimum(parts[0].devices, 2)
        outcome = solve(parts, gap=1e-9)
        values = [min(part.every_value(), default=np.inf) for part in parts]
        assert outcome.bound == pytest.approx(min(values), rel=1e-8), seed
        if outcome.found:
            assert outcome.found[0].value == pytest.approx(min(values), rel=1e-8), seed
            assert outcome.found[0].value == pytest.approx(values[outcome.found[0].part], rel=1e-8), seed


def test_a_gap_that_is_allowed_is_never_exceeded():
    for seed in range(200, 240):
        problem = RandomEven(seed)
        outcome = solve([problem], gap=0.05)
        best = min(problem.every_value(), default=None)
        if best is not None:
            assert outcome.bound <= best * (1 + 1e-9), seed
            assert outcome.found[0].value * (1 - 0.05) <= outcome.bound * (1 + 1e-9), seed


def test_a_search_that_is_cut_off_still_bounds_every_plan():
    for seed in range(200, 240):
        problem = RandomEven(seed)
        outcome = solve([problem], gap=1e-9, most_nodes=1)
        best = min(problem.every_value(), default=None)
        if best is not None:
            assert outcome.bound <= best * (1 + 1e-9), seed


def test_a_judge_that_finds_plans_worse_than_their_costs_widens_the_gap_only():
    class Worse(RandomEven):
        def judge(self, size, replicas, chain, seconds, below, *, closely):
            judged = super().judge(size, replicas, chain, seconds, below, closely=closely)
            return replace(judged, value=judged.value * 1.1)

    for seed in range(240, 270):
        problem = Worse(seed)
        best = min(problem.every_value(), default=None)
        outcome = solve([problem], gap=1e-9)
        if best is not None:
            assert outcome.bound <= best * (1 + 1e-9), seed
            assert outcome.found[0].value >= best * 1.1 * (1 - 1e-9), seed


def test_every_number_of_microbatches_is_tried_with_its_fewest_replicas():
    assert replica_counts(6) == ((6, 1), (3, 2), (2, 3), (1, 6))
    assert [replicas for replicas, _ in replica_counts(1024)][:3] == [1024, 512, 342]


def test_a_beginning_that_another_beats_in_every_way_is_dropped():
    def column(*values):
        return np.array(values)

    same = column(0, 0, 0)
    labels = Labels(
        root=same,
        stages=same,
        following=same,
        kind=same,
        end=same,
        left=same,
        parent=same,
        open_s=column(1.0, 1.0, 0.5),
        busiest_s=column(1.0, 2.0, 3.0),
        way_s=column(1.0, 1.5, 2.0),
        sync_s=column(1.0, 1.0, 1.0),
        update_s=column(0.0, 0.0, 0.0),
        held=column(0, 0, 0)[:, None],
    )
    assert list(undominated(labels)) == [0, 2]
    # The second one holds less of something else, too.
    assert list(undominated(replace(labels, held=column(1, 0, 1)[:, None]))) == [0, 1, 2]
