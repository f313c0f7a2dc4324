"""The parts that searches are made of, each against going through everything."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner.bound.bounds import goal_bound, work_bound_s
from sailor_cloud.planner.evaluate.shares import share_batch, share_evenly
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.layouts import enumerate_layouts
from sailor_cloud.planner.space.space import Seat

PACE = st.tuples(st.floats(0.01, 1.0), st.floats(0.01, 3.0))


def test_layouts_of_two_equal_nodes_are_listed_once_each():
    space = make_space(tiny_job(zones=("local-a",), accelerators={"CPU-fast": 2}))
    layouts = list(enumerate_layouts(space.candidates, space.tp_degrees, max_stages=3, max_pipelines=4, max_nodes=None))
    shapes = sorted([len(slots) for slots in layout] for layout in layouts)
    assert shapes == [[1], [1, 1], [2]]


def test_layouts_on_devices_of_one_node_and_of_two_are_distinguished():
    job = example(
        "gcp-a100-v100.yaml",
        resources__0__accelerators={"A100-40": 2},
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["spot"],
    )
    space = make_space(job)
    layouts = list(enumerate_layouts(space.candidates, space.tp_degrees, max_stages=2, max_pipelines=2, max_nodes=None))
    two_stages = [layout[0] for layout in layouts if len(layout) == 1 and len(layout[0]) == 2]
    assert sorted(len({(slot.pool, slot.instance) for slot in slots}) for slots in two_stages) == [1, 2]
    assert len(layouts) == len(set(layouts))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 3), st.integers(1, 12))
def test_a_batch_is_divided_exactly_and_ends_soonest_with_single_samples(data, pipelines, batch):
    paces = [data.draw(PACE) for _ in range(pipelines)]
    counts = share_batch(batch, [1] * pipelines, paces)
    if pipelines > batch:
        assert counts is None
        return
    assert sum(counts) == batch
    assert min(counts) >= 1

    def end(chosen):
        return max(fill + (count - 1) * pace for count, (pace, fill) in zip(chosen, paces, strict=True))

    least = min(end(np.diff((0, *inner, batch))) for inner in combinations(range(1, batch), pipelines - 1))
    assert end(counts) == pytest.approx(least)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), PACE), min_size=1, max_size=6), st.integers(1, 64))
def test_shares_of_larger_microbatches_make_up_the_batch_or_are_refused(parts, batch):
    sizes = [size for size, _ in parts]
    counts = share_batch(batch, sizes, [pace for _, pace in parts])
    if counts is not None:
        assert sum(size * count for size, count in zip(sizes, counts, strict=True)) == batch
        assert min(counts) >= 1
    elif set(sizes) == {1}:
        assert sum(sizes) > batch


def test_bounds_lie_below_what_one_device_reaches():
    space = make_space(tiny_job(blocks=2, batch=4, zones=("local-a",), accelerators={"CPU-fast": 1}))
    seat = Seat(0, 1, 0)
    least = min(space.stages_s(seat, size, in_flight=1, replicas=2)[0, -1] * (4 // size) for size in (1, 2, 4))
    bound = work_bound_s(space)
    assert 0 < bound <= least
    cost = goal_bound(space, Target(goal=Figure.USD_PER_ITERATION, limits=()))
    update_s = space.table(0, 1, 1).update_s(0, space.layers)
    rate = space.rates[0].expected / 3600
    assert bound * rate < cost <= (least + update_s) * rate * (1 + 1e-9)


def test_even_shares_give_the_faster_pipelines_the_larger_counts():
    assert share_evenly(10, (2, 2, 2), ((2.0, 1.0), (1.0, 1.0), (3.0, 1.0))) == (2, 2, 1)
    assert share_evenly(9, (2, 2), ((1.0, 1.0), (1.0, 1.0))) is None
    assert share_evenly(2, (2, 2), ((1.0, 1.0), (1.0, 1.0))) is None
