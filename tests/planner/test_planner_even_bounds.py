"""What bounds on even batches say before any search: no pipeline is faster, and no plan cheaper."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from factories.even_problem import RandomEven
from sailor_cloud.planner.even.prices import least_rent
from sailor_cloud.planner.even.relax import relax


def every_pipeline(problem, size):
    for stages in range(1, problem.layers + 1):
        for inner in combinations(range(1, problem.layers), stages - 1):
            for kinds in product(range(len(problem.tp)), repeat=stages):
                found = problem.paces(size, kinds, (0, *inner, problem.layers))
                if found is not None:
                    yield kinds, found


@pytest.mark.parametrize("marked", [False, True])
def test_no_pipeline_is_faster_than_the_bound_by_its_devices(marked):
    checked = tight = 0
    for seed in range(14):
        problem = RandomEven(seed, marked=marked)
        for size in problem.sizes():
            costs = problem.costs(size, None)
            if costs is None:
                continue
            relaxed = relax(costs)
            for kinds, (busy, update) in every_pipeline(problem, size):
                use = costs.use[list(kinds)].sum(axis=0)
                for microbatches in (1, 2, 7):
                    seconds = (microbatches - 1) * max(busy) + sum(busy) + update
                    least = relaxed.least_s(use[None], microbatches)[0]
                    assert least <= seconds * (1 + 1e-9), seed
                    assert relaxed.coarse().least_s(use[None], microbatches)[0] <= least * (1 + 1e-9), seed
                    assert relaxed.priced_s(use.astype(float), microbatches).max() <= least * (1 + 1e-9), seed
                    checked += 1
                    tight += least >= 0.8 * seconds
    assert checked > 500
    assert tight > checked / 20


def test_no_devices_cost_less_than_their_worth_says():
    draw = np.random.default_rng(0)
    exact = 0
    for _ in range(300):
        pools = int(draw.integers(1, 4))
        prices, devices = draw.integers(1, 13, pools), draw.integers(1, 20, pools)
        rents, used = draw.uniform(0.5, 3.0, pools), draw.integers(0, devices + 1)
        least = least_rent(np.array([float(used @ prices)]), prices, rents, devices)[0]
        assert least <= float(used @ rents) * (1 + 1e-9)
        exact += least >= float(used @ rents) * (1 - 1e-9)
    assert exact > 30
