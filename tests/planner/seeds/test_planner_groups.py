"""Plans of one group of equal pipelines for each accelerator."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from factories.planning import AS_OF, data, example, make_space, plan
from sailor_cloud import planner
from sailor_cloud.clock import FixedClock
from sailor_cloud.planner import Restriction
from sailor_cloud.planner.bound.bounds import goal_bound
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.seeds import group_search
from sailor_cloud.planner.seeds.group_search import GroupSearch, run
from sailor_cloud.planner.seeds.groups import Ground, Sort
from sailor_cloud.planner.space.draft import nodes_of, to_plan
from sailor_cloud.planner.space.goals import Figure, Target, target_of
from sailor_cloud.simulator import evaluate

FP32 = {"training__precision": "fp32", "resources__0__markets": ["on-demand"], "constraints": {}}
ONE = {**FP32, "resources__0__zones": ["us-central1-a"]}


# No ZeRO, whose stages are searched one after the other.
WHOLE = {"training__max_zero_stage": 0}
FEW, MANY = {"A100-40": 32, "V100-16": 48}, {"A100-40": 80, "V100-16": 120}


def job_of(accelerators, **changes):
    return example("gcp-a100-v100.yaml", resources__0__accelerators=accelerators, **{**ONE, **changes})


def searched(job, wanted=GroupSearch.for_the_best):
    space = make_space(job)
    search = GroupSearch(Evaluator(Assessor(space, target_of(job))))
    run([search], wanted)
    return space, search


@pytest.fixture(scope="module")
def found():
    space, search = searched(job_of(FEW))
    return space, search.best()


@pytest.fixture(scope="module")
def free():
    return plan(job_of(MANY, **WHOLE))


def test_groups_that_are_slower_by_their_passes_alone_than_a_plan_on_the_same_nodes_are_not_sized(monkeypatch):
    def soonest(search):
        by_nodes = {}
        for draft in search.every():
            nodes = frozenset(slot[:2] for part in draft.pipelines for slot in part.slots)
            by_nodes[nodes] = min(draft.foreseen[Figure.ITERATION_S], by_nodes.get(nodes, math.inf))
        return by_nodes

    _, some = searched(job_of(FEW))
    monkeypatch.setattr(group_search, "_HOPELESS", math.inf)
    _, every = searched(job_of(FEW))
    assert some.judged < 0.8 * every.judged
    assert soonest(some).items() <= soonest(every).items()


def test_groups_for_speed_are_on_the_fastest_cards_and_those_for_money_on_the_cheapest_nodes():
    space = make_space(
        job_of({"T4-16": 2, "V100-16": 2}, resources__0__zones=["europe-west4-a"], model={"preset": "gpt2"})
    )
    held = {
        goal: {
            space.pools[pool].offer.instance_type
            for nodes in Ground.of(Assessor(space, Target(goal=goal, limits=()))).nodes.values()
            for pool, _ in nodes
        }
        for goal in (Figure.USD_PER_ITERATION, Figure.ITERATION_S)
    }
    # Both types hold two T4; the smaller one has half the bandwidth.
    assert held[Figure.USD_PER_ITERATION] == {"n1-standard-8", "n1-standard-16"}
    assert held[Figure.ITERATION_S] == {"n1-standard-16"}
    card = {pool.offer.instance_type: space.card_bytes_per_s(n) for n, pool in enumerate(space.pools)}
    assert card["n1-standard-16"] == pytest.approx(2 * card["n1-standard-8"])


@pytest.mark.parametrize(
    ("constraints", "nodes"),
    [({}, (8, 1)), ({"max_usd_per_hour": 20}, (2, 3)), ({"max_usd_per_hour": 12}, (4, 1)), ({"max_nodes": 2}, (8, 1))],
)
def test_groups_are_on_the_nodes_with_most_devices_that_the_limits_allow(constraints, nodes):
    job = job_of({"A100-80": 8}, resources__0__zones=["europe-west4-a"], resources__0__markets=["spot"])
    job = job.model_copy(update={"constraints": job.constraints.model_copy(update=constraints)})
    space = make_space(job)
    ((pool, count),) = Ground.of(Assessor(space, target_of(job))).nodes["A100-80"]
    assert (space.pools[pool].devices, count) == nodes


def test_a_plan_for_speed_takes_every_device_of_three_accelerators():
    accelerators = {"P100-16": 16, "T4-16": 2, "V100-16": 2}
    job = job_of(
        accelerators,
        resources__0__zones=["europe-west4-a"],
        resources__0__markets=["spot"],
        model={"preset": "gpt2"},
        training={"global_batch_size": 128, "sequence_length": 1024, "steps": 500, "precision": "fp16"},
    )
    found = plan(job)
    names = Counter(found.inputs.offers_by_id()[node.offer].accelerator for node in found.plan.nodes)
    assert set(names) == set(accelerators)


def test_every_draft_is_a_valid_plan_and_what_the_replay_is_expected_to_find(found):
    space, drafts = found
    assert len(drafts) > 5
    for draft in drafts:
        plan_of = to_plan(space, draft)
        plan_of.check(layers=space.layers, global_batch_size=space.batch)
        evaluation = evaluate(plan_of, space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s_replay == pytest.approx(draft.expected[Figure.ITERATION_S], rel=0.02)


def test_no_draft_takes_more_than_is_offered_or_beats_the_bound(found):
    space, drafts = found
    bound = goal_bound(space, target_of(space.scenario.job))
    rows = space.candidates.rows
    for draft in drafts:
        devices = Counter()
        for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
            devices[space.pools[pool].row] += count * space.pools[pool].devices
        assert all(count <= rows[row].devices for row, count in devices.items())
        assert draft.figures[Figure.ITERATION_S] >= bound


def test_faster_devices_get_larger_microbatches(found):
    space, drafts = found
    both = [
        draft
        for draft in drafts
        if len({space.pools[part.slots[0].pool].accelerator.name for part in draft.pipelines}) > 1
    ]
    assert both
    for draft in both:
        per_device = {}
        for part in draft.pipelines:
            name = space.pools[part.slots[0].pool].accelerator.name
            devices = sum(slot.tp for slot in part.slots)
            per_device.setdefault(name, set()).add(part.microbatch_size * part.microbatches / devices)
        assert min(per_device["A100-40"]) > max(per_device["V100-16"])


def test_uneven_pipelines_of_two_accelerators_beat_even_batches_by_far(free):
    even = plan(job_of(MANY, **WHOLE), Restriction.EVEN_BATCHES).prediction
    assert free.prediction.throughput_iterations_per_s > 1.1 * even.throughput_iterations_per_s


def test_pipelines_of_one_accelerator_may_carry_different_shares_of_the_batch():
    _, search = searched(job_of({"A100-40": 72}))
    shares = [{part.microbatch_size * part.microbatches for part in draft.pipelines} for draft in search.every()]
    assert 2 in [len(each) for each in shares]


def test_fewer_nodes_are_tried_where_money_is_limited(free):
    most = 0.8 * free.cost.usd_per_iteration
    tight = plan(job_of(MANY, **WHOLE, constraints={"max_usd_per_iteration": most}))
    assert tight.cost.usd_per_iteration <= most
    assert len(tight.plan.nodes) < len(free.plan.nodes)


def test_where_nothing_fits_there_are_none():
    for wanted in (GroupSearch.for_the_best, GroupSearch.for_trades):
        _, search = searched(job_of({"V100-16": 8}, model={"preset": "opt-30b"}), wanted)
        assert search.best() == search.every() == []


def test_five_accelerators_are_a_bounded_number_of_plans():
    job = job_of({"A100-40": 16, "V100-16": 16, "T4-16": 16, "L4-24": 16, "P100-16": 16})
    _, search = searched(job)
    assert search.best()
    assert search.judged < 2000


def test_no_group_and_no_point_of_a_frontier_takes_more_nodes_than_the_job_allows():
    job = job_of(FEW, **WHOLE, constraints={"max_nodes": 2})
    for wanted in (GroupSearch.for_the_best, GroupSearch.for_trades):
        _, search = searched(job, wanted)
        assert {draft.figures[Figure.NODES] for draft in search.every()} == {1, 2}
    prices, links, times = data()
    document = planner.search(
        job,
        catalog=prices,
        network=links,
        profiles=times,
        clock=FixedClock(AS_OF),
        options=planner.SearchOptions(frontier=True, top=10),
    )
    assert document.frontier
    assert all(sum(point.devices.values()) <= 2 * 16 for point in document.frontier)
    assert all(len(other.plan.nodes) <= 2 for other in document.alternatives)


def test_sets_that_take_too_many_nodes_lead_to_fewer():
    _, search = searched(job_of({"A100-40": 80, "V100-16": 80}, constraints={"max_nodes": 4}))
    assert {draft.figures[Figure.NODES] for draft in search.best()} <= {1, 2, 3, 4}
    assert 4 in {draft.figures[Figure.NODES] for draft in search.best()}


def test_some_of_the_nodes_are_those_of_the_first_pools_or_an_equal_share_of_all():
    space = make_space(example("gcp-a100-v100.yaml"))
    ground = Ground.of(Assessor(space, Target(goal=Figure.USD_PER_ITERATION, limits=())))
    sort = Sort(1, 1, (0, space.layers))

    def zones(nodes: int) -> list[Counter[str]]:
        return [
            Counter(space.pools[slot.pool].offer.zone[-1] for shape in placed for slot in shape.slots)
            for placed in ground.placed((("V100-16", sort, nodes),))
        ]

    assert ground.count("V100-16") == 8
    assert zones(4) == [Counter(a=32), Counter(a=16, b=16)]
    assert zones(5) == [Counter(a=32, b=8), Counter(a=24, b=16)]
    assert zones(8) == [Counter(a=32, b=32)]
