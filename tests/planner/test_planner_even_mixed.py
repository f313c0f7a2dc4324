"""Even batches whose replicas of a stage are of several kinds: no plan beats the bound, and the mixes are the best."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest

from factories.differing_problem import RandomDiffering
from sailor_cloud.planner.even.differing import rule_out
from sailor_cloud.planner.even.engine import GAP
from sailor_cloud.planner.even.mixed import mixed
from sailor_cloud.planner.even.mixes import Mix, fastest_mix
from sailor_cloud.planner.even.prices import price_vectors

BLOCK = 10


@pytest.mark.parametrize("uneven", [False, True], ids=["even counts", "counts that differ by one"])
@pytest.mark.parametrize("block", range(2))
def test_no_plan_of_differing_replicas_beats_the_bound(block, uneven):
    ruled = feasible = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        problem = RandomDiffering(seed, uneven=uneven)
        best = min(problem.every_mixed_value(), default=np.inf)
        answer = mixed(problem)
        assert answer.bound <= best * (1 + 1e-9), seed
        for found in answer.found:
            assert found.value >= best * (1 - 1e-9), seed
        if np.isfinite(best):
            feasible += 1
            # What is known to be the best: nothing better may be ruled in, nothing as good ruled out.
            proven = mixed(problem, known=best)
            assert not proven.found, seed
            assert proven.bound <= best * (1 + 1e-9), seed
            ruled += proven.bound >= best * (1 - GAP) * (1 - 1e-9)
            assert rule_out(problem, known=best * 1.2).bound <= best * (1 + 1e-9), seed
    assert feasible > BLOCK / 4
    # Where counts differ, all pipelines are bounded by the smaller one.
    assert ruled > feasible / (6 if uneven else 2)


def test_the_fastest_mix_over_a_cut_is_what_going_through_all_mixes_finds():
    differing = closed = 0
    for seed in range(600, 620):
        problem = RandomDiffering(seed, scarce=True)
        best = min(problem.every_mixed_value(), default=np.inf)
        mixes = list(_fastest_mixes(problem))
        for mix in mixes:
            assert problem.judge_mix(mix, np.inf).value == pytest.approx(mix.seconds, rel=1e-9), seed
        assert min((mix.seconds for mix in mixes), default=np.inf) == pytest.approx(best, rel=1e-9), seed
        alone = _best_alone(problem)
        if best < alone * (1 - 1e-3):
            differing += 1
            found = mixed(problem, known=alone).found
            closed += bool(found) and found[0].value <= best * (1 + 1e-3)
    assert differing > 2
    assert closed > differing / 2


def _fastest_mixes(problem: RandomDiffering) -> Iterator[Mix]:
    """Yield the fastest mix over every cut, with every number of replicas that counts."""
    for size in problem.sizes():
        costs = problem.costs(size, None)
        for stages in range(1, problem.layers + 1) if costs is not None else ():
            for inner in combinations(range(1, problem.layers), stages - 1):
                for replicas, microbatches in problem.counts(size):
                    cut, shares = (0, *inner, problem.layers), (microbatches, replicas)
                    mix = fastest_mix(costs, problem.devices, cut, replicas, shares, np.inf)
                    if mix is not None:
                        yield mix


def _best_alone(problem: RandomDiffering) -> float:
    """Return the best value of replicas of a stage that are all of one kind, sums left out."""
    values = [np.inf]
    for size in problem.sizes():
        for stages in range(1, problem.layers + 1):
            for inner in combinations(range(1, problem.layers), stages - 1):
                for kinds in product(range(len(problem.tp)), repeat=stages):
                    for replicas in range(1, problem.batch // size + 1):
                        value = problem.mixed_value(size, (0, *inner, problem.layers), [kinds] * replicas)
                        values.append(np.inf if value is None else value)
    return min(values)


def test_fewer_searches_still_bound_every_plan():
    for seed in range(8):
        problem = RandomDiffering(seed)
        best = min(problem.every_mixed_value(), default=np.inf)
        assert rule_out(problem, most_searches=1, tries=1).bound <= best * (1 + 1e-9), seed


def test_prices_have_no_common_divisor_and_come_in_every_proportion():
    assert price_vectors(1).tolist() == [[1]]
    for pools in (2, 3, 5):
        vectors = price_vectors(pools)
        assert (np.gcd.reduce(vectors, axis=1) == 1).all()
        assert (vectors >= 1).all()
        assert (vectors == 1).all(axis=1).any()
