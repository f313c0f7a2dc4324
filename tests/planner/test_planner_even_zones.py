"""Bounds on even plans of several nodes and zones: no plan that keeps the limits is faster, wherever it stands."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.draft import seats_of
from sailor_cloud.planner.even.differing_space import DifferingSpace
from sailor_cloud.planner.even.raising import raised
from sailor_cloud.planner.even.rings import Rings
from sailor_cloud.planner.even.tables import Tables
from sailor_cloud.planner.even.traffic import Traffic
from sailor_cloud.planner.even.zones import AtHome, sharing, times_over
from sailor_cloud.planner.goals import Figure, Limit, Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.layouts import card_flows, enumerate_layouts
from sailor_cloud.planner.sync import SyncTable

_STEPS = 2000
# Of four layers, by the number of stages.
CUTS = {1: (0, 4), 2: (0, 2, 4)}


def small_space(accelerators, zones, types, *, hidden, batch):
    job = example(
        "gcp-a100-v100.yaml",
        model={
            "model_type": "gpt2",
            "vocab_size": 512,
            "hidden_size": hidden,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
        },
        training__sequence_length=512,
        training__global_batch_size=batch,
        training__steps=_STEPS,
        constraints={},
        resources__0__zones=zones,
        resources__0__markets=["spot"],
        resources__0__accelerators=accelerators,
        resources__0__instance_types=types,
    )
    return make_space(job)


def every_even_figure(space, *, most_pipelines=4):
    """Pipelines, seconds and USD of all even plans of few pipelines, whatever nodes and zones their stages stand on."""
    assessor = Assessor(space, Target(goal=Figure.ITERATION_S, limits=()))
    layouts = enumerate_layouts(
        space.candidates, space.tp_degrees, max_stages=3, max_pipelines=most_pipelines, max_nodes=None
    )
    sizes = [size for size in range(1, space.batch + 1) if space.batch % size == 0]
    for layout in layouts:
        stages = len(layout[0])
        if any(len(slots) != stages for slots in layout):
            continue
        for inner in combinations(range(1, space.layers), stages - 1):
            for size in sizes:
                shapes = [Shape(slots=slots, cut=(0, *inner, space.layers), microbatch_size=size) for slots in layout]
                draft = assessor.draft(shapes, even=True)
                if draft is not None:
                    yield len(layout), draft.figures[Figure.ITERATION_S], draft.figures[Figure.TOTAL_USD]


@pytest.mark.parametrize(
    ("accelerators", "zones", "types", "hidden", "batch"),
    [
        ({"V100-16": 4}, ["us-central1-a"], ["n1-standard-32"], 512, 8),
        ({"A100-40": 2, "V100-16": 2}, ["us-central1-a"], ["a2-highgpu-2g", "n1-standard-16"], 1024, 8),
        ({"V100-16": 2}, ["us-central1-a", "us-central1-b"], ["n1-standard-16"], 1024, 4),
        ({"A100-40": 1, "V100-16": 1}, ["us-central1-a", "us-central1-b"], ["a2-highgpu-1g", "n1-standard-8"], 1024, 8),
    ],
)
@pytest.mark.parametrize("fewest", [1, 2, 3])
def test_no_plan_within_a_budget_beats_the_bound(monkeypatch, accelerators, zones, types, hidden, batch, fewest):
    """`fewest`: pipelines of the plans that are looked at, since a single one is often the fastest."""
    every = DifferingSpace.counts
    monkeypatch.setattr(
        DifferingSpace, "counts", lambda self, size: [each for each in every(self, size) if each[0] >= fewest]
    )
    space = small_space(accelerators, zones, types, hidden=hidden, batch=batch)
    plans = sorted((seconds, usd) for count, seconds, usd in every_even_figure(space) if count >= fewest)
    costs = sorted(usd for _, usd in plans)
    tight = []
    for usd in [costs[0] * (1 + 1e-6), costs[len(costs) // 4], costs[len(costs) // 2], costs[-1]]:
        best = next(seconds for seconds, cost in plans if cost <= usd)
        limit = Limit(name="budget_usd", figure=Figure.TOTAL_USD, at_most=usd)
        parts = sharing(space, Kinds.of(space), Target(goal=Figure.ITERATION_S, limits=(limit,)))
        assert any(isinstance(part, AtHome) for part in parts) == (len(zones) > 1)
        found = raised(parts, known=1.7 * best, most_searches=200)
        assert found.bound <= best * (1 + 1e-9), usd
        tight.append(found.bound / best)
    assert max(tight) > 0.6


def layouts_of(space, *, stages, pipelines):
    for layout in enumerate_layouts(
        space.candidates, space.tp_degrees, max_stages=stages, max_pipelines=pipelines, max_nodes=None
    ):
        if len({len(slots) for slots in layout}) == 1 and len(layout) > 1:
            yield layout


@pytest.mark.parametrize(
    ("accelerators", "types"),
    [
        ({"V100-16": 8}, ["n1-standard-32"]),
        ({"A100-40": 4, "V100-16": 4}, ["a2-highgpu-4g", "n1-standard-32"]),
    ],
)
def test_cuts_and_sums_take_no_less_than_said_for_rings_inside_nodes_and_others(accelerators, types):
    """Of every pipeline of every layout, its stages told apart by whether their rings stay inside a node."""
    space = small_space(accelerators, ["us-central1-a"], types, hidden=512, batch=8)
    tables, sync = Tables(space, Kinds.of(space)), SyncTable(space)
    place = {(group.accelerator, group.tp): number for number, group in enumerate(tables.groups)}
    inside = shared = 0
    for layout in layouts_of(space, stages=2, pipelines=4):
        rings = Rings(len(layout), differ=True)
        costs = tables.costs(1, 1, 8, rings)
        across_cut, cut = costs.after_way_s + costs.before_way_s, CUTS[len(layout[0])]
        alone = [len({(slots[s].pool, slots[s].instance) for slots in layout}) == 1 for s in range(len(layout[0]))]
        inside += any(alone)
        seconds, _ = sync.of_plan(layout, (cut,) * len(layout))
        for slots, flows in zip(layout, card_flows(layout), strict=True):
            kinds = [
                place[space.pools[slot.pool].accelerator.name, slot.tp]
                + len(tables.groups) * (alone[s] and costs.twice)
                for s, slot in enumerate(slots)
            ]
            longest = max(
                tables.sync_s(rings)[kind, first, end] for kind, (first, end) in zip(kinds, pairwise(cut), strict=True)
            )
            assert longest <= seconds * (1 + 1e-9), layout
            if len(slots) == 2:
                found = space.boundary(*seats_of(slots), 1, flows=flows[0])[2]
                assert across_cut[kinds[0], kinds[1], 2] <= found * (1 + 1e-9), layout
                shared += flows[0] > 1 and across_cut[kinds[0], kinds[1], 2] >= found * (1 - 1e-9)
            if costs.held is not None:
                assert (costs.held[kinds].sum(axis=0) <= costs.most_held).all(), layout
    assert inside > 20
    assert shared > 0


def test_some_pipeline_at_home_is_worth_no_more_than_said():
    """Of every even plan of two zones that is fast and cheap enough: it pays for traffic, or has such a pipeline."""
    space = small_space(
        {"A100-40": 1, "V100-16": 2},
        ["us-central1-a", "us-central1-b"],
        ["a2-highgpu-1g", "n1-standard-16"],
        hidden=1024,
        batch=8,
    )
    kinds = Kinds.of(space)
    traffic, zone_of = Traffic.of(space, kinds), [pool.offer.zone for pool in space.pools]
    prices = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0], [1.0, 2.0]])
    assessor = Assessor(space, Target(goal=Figure.ITERATION_S, limits=()))
    home = more = everywhere = 0
    for layout in layouts_of(space, stages=2, pipelines=3):
        zones = [{zone_of[slot.pool] for slot in slots} for slots in layout]
        if len(set().union(*zones)) == 1:
            continue
        rings = [{zone_of[slots[s].pool] for slots in layout} for s in range(len(layout[0]))]
        shapes = [Shape(slots=slots, cut=CUTS[len(slots)], microbatch_size=1) for slots in layout]
        draft = assessor.draft(shapes, even=True)
        if draft is None:
            continue
        usd, seconds = draft.figures[Figure.USD_PER_ITERATION], draft.figures[Figure.ITERATION_S]
        crossing = all(len(each) > 1 for each in zones)
        if crossing or all(len(each) > 1 for each in rings):
            least = space.batch * traffic.usd_per_sample
            if not crossing:
                least = traffic.rings_usd(len(layout), float(traffic.layer_bytes.sum()))
            assert assessor.times(draft).egress_usd >= least * (1 - 1e-9)
            assert least >= traffic.everywhere_usd(len(layout))
            everywhere += 1
            continue
        target = Target(
            goal=Figure.ITERATION_S,
            limits=(Limit(name="usd", figure=Figure.USD_PER_ITERATION, at_most=usd * (1 + 1e-9)),),
        )
        part = next(part for part in sharing(space, kinds, target) if isinstance(part, AtHome))
        part.within_s = seconds * (1 + 1e-9)
        most = part.worths(1, len(layout), prices)
        names = ["A100-40", "V100-16"]
        use = np.array(
            [
                [sum(slot.tp for slot in slots if space.pools[slot.pool].accelerator.name == name) for name in names]
                for slots, there in zip(layout, zones, strict=True)
                if len(there) == 1
            ]
        )
        assert ((use @ prices.T).min(axis=0) <= most * (1 + 1e-9)).all(), layout
        home += 1
        more += bool(((use @ prices.T).min(axis=0) > prices @ part.devices / len(layout) * (1 + 1e-9)).any())
    assert home > 10
    assert everywhere > 10
    assert more > 0


def test_some_pipeline_has_no_more_than_its_share_whatever_the_others_have():
    """Whatever each of some pipelines has, one counts with plans of as many at most, of as few microbatches."""
    draw = np.random.default_rng(0)
    less = 0
    for shares in range(1, 25):
        fewest = {}
        for replicas in range(1, shares + 1):
            fewest.setdefault(shares // replicas, replicas)
        for replicas in range(1, shares + 1):
            microbatches = np.full(replicas, shares // replicas)
            microbatches[: shares % replicas] += 1
            # In proportion to microbatches, all alike, and at random.
            for each in (microbatches, np.ones(replicas), *draw.random((4, replicas))):
                has = each / each.sum()
                assert any(
                    part <= (1 + 1e-9) / times_over(shares, first)
                    for count, first in fewest.items()
                    if first <= replicas
                    for part in has[microbatches >= count]
                )
        less += any(times_over(shares, first) > first for first in fewest.values())
    assert less > 10
