"""Node patterns: the same stages of several pipelines share nodes, and replicas of a stage are in one zone."""

from __future__ import annotations

import math
from collections import Counter
from itertools import accumulate, groupby, pairwise

import pytest

from factories.planning import example, make_space, quota
from sailor_cloud.model.job import Job
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.seeds import node_patterns
from sailor_cloud.planner.seeds.frontier_seeds import spread
from sailor_cloud.planner.seeds.mixed import mix
from sailor_cloud.planner.seeds.node_patterns import NodePatterns
from sailor_cloud.planner.space.draft import nodes_of, to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Seat
from sailor_cloud.simulator import evaluate

# Large weights: their all-reduces between zones take longer than activations.
LARGE = {
    "model": {"preset": "opt-6.7b"},
    "constraints": {},
    "resources__0__zones": ["us-central1-a", "us-central1-b"],
    "resources__0__accelerators": {"A100-40": 16, "V100-16": 8},
}


@pytest.fixture(scope="module")
def space():
    return make_space(example("gcp-a100-v100.yaml", **LARGE))


@pytest.fixture(scope="module")
def drafts(space):
    return NodePatterns(space, target_of(space.scenario.job), math.inf).best()


def test_replicas_of_a_stage_are_on_equal_nodes_in_one_zone(space, drafts):
    assert any(len({space.pools[slot.pool].offer.zone for slot in draft.pipelines[0].slots}) == 2 for draft in drafts)
    for draft in drafts:
        stages = list(zip(*(pipeline.slots for pipeline in draft.pipelines), strict=True))
        assert all(len({(slot.pool, slot.tp) for slot in stage}) == 1 for stage in stages)


def test_several_pipelines_have_the_same_stages_on_a_node(drafts):
    shared = Counter(
        len({pipeline.slots[0][:2] for pipeline in draft.pipelines}) < len(draft.pipelines) for draft in drafts
    )
    assert shared[True]


def test_a_pattern_has_the_best_size_of_those_that_divide_the_batch(drafts):
    odd = make_space(example("gcp-a100-v100.yaml", **LARGE, training__global_batch_size=1023))
    found = NodePatterns(odd, target_of(odd.scenario.job), math.inf).best()
    assert {part.microbatch_size for draft in found for part in draft.pipelines} == {1}
    # Larger ones are faster, but by far less than the share of patterns that would be missing without the smallest.
    assert max(part.microbatch_size for draft in drafts for part in draft.pipelines) > 1
    assert len(found) >= len(drafts) / 2


def test_no_device_and_no_node_is_used_twice(space, drafts):
    rows = space.candidates.rows
    for draft in drafts:
        layout = tuple(part.slots for part in draft.pipelines)
        devices = Counter()
        for pool, count in nodes_of(layout).items():
            devices[space.pools[pool].row] += count * space.pools[pool].devices
        assert all(count <= rows[row].devices for row, count in devices.items())
        taken = Counter()
        for part in layout:
            for slot in part:
                taken[slot.pool, slot.instance] += slot.tp
        assert all(count <= space.pools[pool].devices for (pool, _), count in taken.items())


def test_the_same_search_gives_the_same_drafts(space, drafts):
    again = NodePatterns(space, target_of(space.scenario.job), math.inf).best()
    assert [draft.order() for draft in again] == [draft.order() for draft in drafts]


def test_figures_are_those_of_the_replay_and_plans_fit(space, drafts):
    for draft in drafts:
        plan = to_plan(space, draft)
        plan.check(layers=space.layers, global_batch_size=space.batch)
        evaluation = evaluate(plan, space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s_replay == pytest.approx(draft.foreseen[Figure.ITERATION_S], rel=1e-9)


def test_what_can_not_beat_the_known_plan_is_not_drawn(space, drafts):
    best_s = min(draft.foreseen[Figure.ITERATION_S] for draft in drafts)
    assert NodePatterns(space, target_of(space.scenario.job), best_s / 10.0).best() == []


def test_nothing_is_drawn_beyond_a_limit():
    dear, alone = (
        make_space(example("gcp-a100-v100.yaml", **LARGE | {"constraints": limit}))
        for limit in ({"max_usd_per_hour": 1}, {"max_nodes": 1})
    )
    assert NodePatterns(dear, target_of(dear.scenario.job), math.inf).best() == []
    one = NodePatterns(alone, target_of(alone.scenario.job), math.inf).best()
    assert {draft.figures[Figure.NODES] for draft in one} == {1.0}


def handmade(space, cut, nodes, *, pipelines, size):
    """Seconds of pipelines with one stage on each whole node of `nodes`: accelerator, zone and number of nodes."""
    slots = []
    for name, zone, count in nodes:
        pool = next(
            number
            for number, pool in enumerate(space.pools)
            if (pool.accelerator.name, pool.offer.zone, pool.devices) == (name, zone, 8)
        )
        slots += [(pool, node) for node in range(count)]
    shapes = [
        Shape(tuple(Slot(pool, node + number * count_of(slots, pool), 8) for pool, node in slots), cut, size)
        for number in range(pipelines)
    ]
    draft = Assessor(space, target_of(space.scenario.job)).draft(shapes)
    return evaluate(to_plan(space, draft), space.scenario).prediction.iteration_s_replay


def count_of(slots, pool):
    return sum(other == pool for other, _ in slots)


def test_patterns_may_pass_the_zones_with_one_accelerator_and_return_with_the_other():
    """All A100 through three zones, then all V100 back: only two cuts are between accelerators or zones each way."""
    zones = ["us-central1-a", "us-central1-b", "us-central1-c"]
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            model={"preset": "opt-30b"},
            constraints={},
            training={"global_batch_size": 256, "sequence_length": 2048, "steps": 1000, "precision": "fp16"},
            resources__0__zones=zones,
            resources__0__markets=["spot"],
            resources__0__accelerators={"A100-40": 32, "V100-16": 64},
        )
    )
    there = [("A100-40", zone, 2) for zone in zones]
    back = [("V100-16", zone, 4) for zone in reversed(zones)]
    lengths = [5] * 6 + [2] * 8 + [1] * 4
    lengths[0] += space.layers - sum(lengths)
    cut = (0, *accumulate(lengths))
    by_hand = handmade(space, cut, there + back, pipelines=2, size=1)
    seconds = []
    for draft in NodePatterns(space, target_of(space.scenario.job), math.inf).best():
        names = [space.pools[slot.pool].accelerator.name for slot in draft.pipelines[0].slots]
        if {name for name, _ in groupby(names)} == {"A100-40", "V100-16"} and len(list(groupby(names))) == 2:
            seconds.append(draft.foreseen[Figure.ITERATION_S])
    # The cut by hand is made for the all-reduces, and the local search would find it.
    assert min(seconds) <= by_hand * 1.03


def test_patterns_may_pass_from_one_cloud_to_another():
    space = make_space(
        example(
            "llama3-8b-two-clouds.yaml",
            goal="maximize-throughput",
            constraints={},
            training__global_batch_size=64,
            resources__0__accelerators={"A100-40": 8},
            resources__1__accelerators={"A100-40": 8},
        )
    )
    drafts = NodePatterns(space, target_of(space.scenario.job), math.inf).best()
    providers = [{space.pools[slot.pool].offer.provider for slot in draft.pipelines[0].slots} for draft in drafts]
    assert {"aws", "gcp"} in providers


@pytest.fixture(scope="module")
def tight():
    """Eight small devices, on which the first and the last layers leave less room for others than stages between."""
    job = example(
        "gcp-a100-v100.yaml",
        model__preset="llama-3-8b",
        training__precision="bf16",
        training__global_batch_size=1024,
    )
    resource = {"provider": "gcp", "zones": ["us-central1-a"], "accelerators": {"L4-24": 8}}
    return make_space(Job.model_validate({**job.model_dump(mode="json"), "constraints": {}, "resources": [resource]}))


def test_middle_stages_may_hold_more_layers_than_those_next_to_a_large_embedding(tight):
    pool = next(number for number, each in enumerate(tight.pools) if each.devices == 8)
    found = Cutter(tight).cut((Seat(pool, 1, 0),) * 8, size=1, microbatches=64, replicas=1)
    assert found is not None
    layers = [end - begin for begin, end in pairwise(found[0])]
    assert max(layers[1:-1]) > max(layers[0], layers[-1])


def test_a_model_that_no_zone_has_memory_for_is_cut_over_two(tight):
    job = tight.scenario.job.model_dump(mode="json")
    resource = {"provider": "gcp", "zones": ["us-central1-a", "us-central1-b"], "accelerators": {"L4-24": 4}}
    space = make_space(Job.model_validate({**job, "resources": [resource]}))
    drafts = NodePatterns(space, target_of(space.scenario.job), math.inf).best()
    zones = {space.pools[slot.pool].offer.zone for draft in drafts for slot in draft.pipelines[0].slots}
    assert zones == {"us-central1-a", "us-central1-b"}


def test_if_money_is_the_goal_patterns_on_a_few_cheap_devices_come_first(space):
    cheap = make_space(example("gcp-a100-v100.yaml", **LARGE, goal="minimize-cost"))
    by_money = NodePatterns(cheap, target_of(cheap.scenario.job), math.inf).best()
    by_time = NodePatterns(space, target_of(space.scenario.job), math.inf).best()
    least, soonest = (
        min(draft.figures[Figure.USD_PER_ITERATION] for draft in drafts) for drafts in (by_money, by_time)
    )
    assert least < soonest / 1.1


def test_the_spread_reaches_from_the_fastest_to_a_cheap_plan(space):
    drafts = spread(space, NORMAL)
    seconds = [draft.figures[Figure.ITERATION_S] for draft in drafts]
    usd = [draft.figures[Figure.USD_PER_ITERATION] for draft in drafts]
    assert max(seconds) > 2 * min(seconds)
    assert max(usd) > 3 * min(usd)


def test_no_other_cut_of_equal_stages_has_a_faster_busiest_stage(space):
    pool = next(n for n, each in enumerate(space.pools) if (each.accelerator.name, each.devices) == ("A100-40", 8))
    seat = Seat(pool, 4, 0)
    found = Cutter(space).cut((seat,) * 3, size=1, microbatches=64, replicas=2)
    assert found is not None
    cut, longest = found
    times = [space.stages_s(seat, 1, in_flight=3 - s, replicas=2) for s in range(3)]
    assert max(times[s][a, b] for s, (a, b) in enumerate(pairwise(cut))) == pytest.approx(longest, rel=1e-3)
    best = min(
        max(times[0][0, a], times[1][a, b], times[2][b, space.layers])
        for a in range(1, space.layers - 1)
        for b in range(a + 1, space.layers)
    )
    assert longest == pytest.approx(best, rel=1e-3)


def test_layers_that_fit_nowhere_have_no_cut(space):
    pool = next(index for index, each in enumerate(space.pools) if each.accelerator.name == "V100-16")
    assert Cutter(space).cut((Seat(pool, 1, 0),), size=256, microbatches=4, replicas=1) is None


def test_a_head_that_is_a_stage_alone_may_be_on_twice_as_many_devices(tight, monkeypatch):
    # With fewer patterns, none has such a head here.
    for name in ("_CUT", "_ASSESSED"):
        monkeypatch.setattr(node_patterns, name, 64)
    found = NodePatterns(tight, target_of(tight.scenario.job), math.inf).best()
    assert [1, 1, 1, 1, 1, 1, 2] in ([slot.tp for slot in draft.pipelines[0].slots] for draft in found)


def test_all_entries_of_a_job_for_one_accelerator_and_zone_are_used():
    entries = [
        {"provider": "gcp", "zones": ["us-central1-a"], "markets": [market], "accelerators": {"A100-40": devices}}
        for market, devices in (("spot", 16), ("on-demand", 16))
    ]
    space = make_space(example("gcp-a100-v100.yaml", model={"preset": "opt-6.7b"}, constraints={}, resources=entries))
    drafts = NodePatterns(space, target_of(space.scenario.job), math.inf).best()
    markets = [{space.pools[slot.pool].offer.market for slot in draft.pipelines[0].slots} for draft in drafts]
    assert max(map(len, markets)) == 2


def test_plans_over_zones_that_share_a_quota_use_what_it_allows():
    zones = ["us-central1-a", "us-central1-b", "us-central1-c"]
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "opt-30b"},
        constraints={},
        training__global_batch_size=64,
        resources__0__zones=zones,
        resources__0__accelerators={"A100-40": 16},
    )
    space = make_space(job, (quota("Q", 40, {"A100-40": None}, provider="gcp", region="us-central1"),))
    answer = mix(space, target_of(job), keep=8)
    devices = [sum(slot.tp for part in draft.pipelines for slot in part.slots) for draft in answer.drafts]
    assert 32 < max(devices) <= 40


# The cheapest patterns are the smallest, and none of the first fifty holds opt-30b.
SMALL_DEVICES = {
    "goal": "minimize-cost",
    "model": {"preset": "opt-30b"},
    "constraints": {},
    "training__global_batch_size": 64,
    "resources__0__zones": ["us-central1-a"],
    "resources__0__markets": ["on-demand"],
}


def test_patterns_too_small_for_the_model_take_no_place_of_others():
    job = example("gcp-a100-v100.yaml", **SMALL_DEVICES, resources__0__accelerators={"T4-16": 56})
    assert NodePatterns(make_space(job).at(1), target_of(job), math.inf).best()


def test_a_large_model_may_have_more_stages_than_a_node_has_devices_many_times_over():
    places = {"resources__0__accelerators": {"L4-24": 48}, "resources__0__instance_types": ["g2-standard-4"]}
    job = example("gcp-a100-v100.yaml", **{**SMALL_DEVICES, "goal": "maximize-throughput"}, **places)
    drafts = NodePatterns(make_space(job).at(1), target_of(job), math.inf).best()
    assert max(len(pipeline.slots) for draft in drafts for pipeline in draft.pipelines) > 40
