"""Stages on one node share its network card, in sums and in transfers, in the replay and in the closed form."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from random import Random

import pytest

from factories.scenarios import gcp_scenario, offer_in
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.network import Link, Place
from sailor_cloud.simulator import Engine, Scenario, Transfers, cut_flows, ring_flows, ring_s
from sailor_cloud.simulator.layout import Links, lay_out
from sailor_cloud.simulator.scenario import place_of
from sailor_cloud.simulator.timing.iteration import run_iteration


def test_cuts_that_leave_a_node_in_one_direction_share_its_card() -> None:
    assert cut_flows([["a", "b"], ["a", "b"], ["a", "c"]]) == ((3,), (3,), (3,))
    assert cut_flows([["a", "a", "b"], ["b", "c"]]) == ((1, 1), (1,))
    assert cut_flows([["a", "c"], ["b", "c"]]) == ((2,), (2,))
    assert cut_flows([["a", "b"], ["b", "a"]]) == ((1,), (1,))
    assert cut_flows([["a"], ["a"]]) == ((), ())


def test_gradients_and_activations_share_the_cards_of_pipelines_that_return_to_their_first_node() -> None:
    assert cut_flows([["a", "b", "a"]], around=True) == ((2, 2),)
    assert cut_flows([["a", "b", "a"]] * 2, around=True) == ((4, 4), (4, 4))
    assert cut_flows([["a", "a", "b", "b", "a"]], around=True) == ((1, 2, 1, 2),)
    # Of three nodes each neighbour gets activations from one side and gradients from the other.
    assert cut_flows([["a", "b", "c", "a"]], around=True) == ((1, 1, 1),)


def test_an_interleaved_pipeline_on_two_nodes_waits_for_what_their_cards_carry() -> None:
    scenario = gcp_scenario(batch=16)
    usual = plan_on_nodes(scenario, [["a", "b"]])
    plan = usual.interleaved(2)
    assert plan is not None
    timeline = run_iteration(lay_out(plan, scenario), timeline=True).timeline
    tensor = float(lay_out(plan, scenario).seats[0].table.boundary_bytes[7])
    shared = link_between_nodes(scenario, flows=2).transfer_s(tensor)
    sends = [span.end_s - span.start_s for span in timeline if span.what.startswith("send")]
    assert sends == pytest.approx([shared] * len(sends))
    assert len(sends) == 2 * 8 * 3


def test_sums_of_different_stages_of_a_node_share_its_card() -> None:
    apart = [[("p0s0", "a"), ("p1s0", "b")], [("p0s1", "a"), ("p1s1", "c")]]
    assert ring_flows(apart) == [{"a": 2, "b": 1}, {"a": 2, "c": 1}]


def test_stages_of_a_node_in_the_same_sum_use_its_card_once() -> None:
    assert ring_flows([[("p0", "a"), ("p1", "a"), ("p2", "b")]]) == [{"a": 1, "b": 1}]


def test_a_sum_inside_a_node_uses_no_card() -> None:
    inside, across = [("p0s0", "a"), ("p1s0", "a")], [("p0s1", "a"), ("p1s1", "b")]
    assert ring_flows([inside, across])[1] == {"a": 1, "b": 1}


def plan_on_nodes(scenario: Scenario, names: list[list[str]]) -> Plan:
    """Pipelines on devices of A100 nodes, one device a stage, at even cuts; names: the node of each stage."""
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    cuts = [round(26 * s / len(names[0])) for s in range(len(names[0]) + 1)]
    used: Counter[str] = Counter()
    pipelines = []
    for p, row in enumerate(names):
        stages = []
        for s, name in enumerate(row):
            devices = (used[name],)
            stages.append(Stage(first_layer=cuts[s], end_layer=cuts[s + 1], node=name, devices=devices))
            used[name] += 1
        pipelines.append(Pipeline(id=p, microbatch_size=2, microbatches=8, stages=tuple(stages)))
    nodes = tuple(Node(id=name, offer=offer.id, devices=4) for name in sorted(used))
    precision = scenario.job.training.precision
    return Plan(zero_stage=0, precision=precision, nodes=nodes, pipelines=tuple(pipelines))


def link_between_nodes(scenario: Scenario, *, flows: int) -> Link:
    src, dst = (place_of(offer_in(scenario, "us-central1-a", "A100-40", devices=4), name) for name in "ab")
    return scenario.link(src, dst, pairs=1, flows=flows)


@pytest.mark.parametrize("transfers", Transfers)
def test_tensors_of_four_pipelines_between_the_same_nodes_take_their_share_of_the_card(transfers: Transfers) -> None:
    scenario = gcp_scenario(batch=64, engine=Engine(transfers=transfers))
    shared = plan_on_nodes(scenario, [["a", "b"]] * 4)
    alone = plan_on_nodes(scenario, [[f"a{p}", f"b{p}"] for p in range(4)])
    wanted = "receive_activation" if transfers is Transfers.RECEIVER else "send_activation"
    tensor = float(2 * 2048 * 1024 * 2)
    seconds = []
    for plan, flows in ((alone, 1), (shared, 4)):
        iteration = run_iteration(lay_out(plan, scenario), timeline=True)
        span = next(span for span in iteration.timeline if span.what == wanted)
        seconds.append(span.end_s - span.start_s)
        assert seconds[-1] == pytest.approx(link_between_nodes(scenario, flows=flows).transfer_s(tensor))
    assert seconds[1] > seconds[0]


def test_sharing_a_card_shows_in_the_closed_form_as_in_the_replay() -> None:
    scenario = gcp_scenario(batch=16)
    plan = plan_on_nodes(scenario, [["a", "b", "a", "b"]])
    found = run_iteration(lay_out(plan, scenario))
    seats = lay_out(plan, scenario).seats
    tensor = float(seats[0].table.boundary_bytes[7])
    one, two = (link_between_nodes(scenario, flows=flows).transfer_s(tensor) for flows in (1, 2))
    assert cut_flows([["a", "b", "a", "b"]]) == ((2, 1, 2),)
    compute = sum(seat.compute_s for seat in seats)
    for seconds in (found.closed_form_s, found.replay_s):
        assert seconds > compute + 2 * (one + 2 * two)


def test_sums_of_four_stages_between_the_same_nodes_take_their_share_of_the_card() -> None:
    scenario = gcp_scenario(batch=32)
    shared = run_iteration(lay_out(plan_on_nodes(scenario, [["a"] * 4, ["b"] * 4]), scenario))
    alone = run_iteration(lay_out(plan_on_nodes(scenario, [list("abcd"), list("efgh")]), scenario))
    for groups, flows in ((alone.groups, 1), (shared.groups, 4)):
        link = link_between_nodes(scenario, flows=flows)
        for group in groups:
            expected = ring_s(group.nbytes, 2, link, bucket_bytes=scenario.engine.bucket_bytes)
            assert group.seconds == pytest.approx(float(expected))
    for one, four in zip(alone.groups, shared.groups, strict=True):
        assert four.seconds > one.seconds


def test_a_sum_leaves_a_node_over_the_cards_of_all_members_there() -> None:
    found = {}
    scenario = gcp_scenario(batch=64)
    src, dst = (place_of(offer_in(scenario, "us-central1-a", "A100-40", devices=4), name) for name in "ab")
    for names, pairs in (("aabb", 2), ("aaab", 1)):
        [group] = run_iteration(lay_out(plan_on_nodes(scenario, [[name] for name in names]), scenario)).groups
        link = scenario.link(src, dst, pairs=pairs)
        expected = ring_s(group.nbytes, 4, link, bucket_bytes=scenario.engine.bucket_bytes)
        assert group.seconds == pytest.approx(float(expected))
        found[names] = group.seconds
    assert found["aabb"] < 0.8 * found["aaab"]


def packed_plan(seed: int) -> tuple[Plan, Scenario]:
    """Pipelines of any depth and cut, their stages packed onto few nodes of 8 devices."""
    random = Random(seed)
    offers = gcp_scenario()
    kinds = [offer_in(offers, "us-central1-a", name, devices=8) for name in ("A100-40", "V100-16")]
    free: list[tuple[Node, int]] = []
    pipelines, batch = [], 0
    for p in range(random.randint(2, 6)):
        depth = random.randint(1, 4)
        cuts = (0, *sorted(random.sample(range(1, 26), depth - 1)), 26)
        stages = []
        for first, end in itertools.pairwise(cuts):
            tp, offer = random.choice([1, 2, 4]), random.choice(kinds)
            place = next((i for i, (node, used) in enumerate(free) if node.offer == offer.id and used + tp <= 8), None)
            if place is None:
                free.append((Node(id=f"n{len(free)}", offer=offer.id, devices=8), 0))
                place = len(free) - 1
            node, used = free[place]
            free[place] = (node, used + tp)
            stages.append(Stage(first_layer=first, end_layer=end, node=node.id, devices=tuple(range(used, used + tp))))
        size, count = random.choice([1, 2, 4]), random.randint(1, 40)
        pipelines.append(Pipeline(id=p, microbatch_size=size, microbatches=count, stages=tuple(stages)))
        batch += size * count
    scenario = gcp_scenario(batch=batch, engine=Engine(transfers=random.choice(list(Transfers))))
    nodes = tuple(node for node, _ in free)
    precision = scenario.job.training.precision
    return Plan(zero_stage=0, precision=precision, nodes=nodes, pipelines=tuple(pipelines)), scenario


@pytest.mark.parametrize("seed", range(40))
def test_the_closed_form_of_plans_that_share_cards_stays_within_its_bound_of_the_replay(seed: int) -> None:
    plan, scenario = packed_plan(seed)
    layout = lay_out(plan, scenario)
    iteration = run_iteration(layout)
    flows = cut_flows([[stage.node for stage in pipeline.stages] for pipeline in plan.pipelines])
    fills = []
    for seats, shared in zip(layout.pipelines, flows, strict=True):
        moved = 0.0
        for (src, dst), number in zip(itertools.pairwise(seats), shared, strict=True):
            tensor, pairs = float(src.table.boundary_bytes[src.stage.end_layer]), min(src.tp, dst.tp)
            there = layout.links.between(src.place, dst.place, pairs=pairs, flows=number)
            back = layout.links.between(dst.place, src.place, pairs=pairs, flows=number)
            moved += there.transfer_s(tensor * dst.tp) + back.transfer_s(tensor * src.tp)
        fills.append(sum(seat.compute_s for seat in seats) + moved)
    assert iteration.replay_s <= iteration.closed_form_s * 1.05
    assert iteration.closed_form_s - iteration.replay_s <= 2.5 * max(fills)


def test_links_are_distinguished_by_everything_that_makes_them_differ() -> None:
    """A link found once must not be handed out for ends, pairs or flows that it doesn't hold for."""
    scenario = gcp_scenario()
    base = Place(zone="us-central1-a", node="x", accelerator="A100-40", instance_type="a2-highgpu-4g")
    other = dataclasses.replace(base, node="y")
    variants = [
        ({}, {}, 2, 1),
        ({}, {"zone": "us-west1-b"}, 2, 1),
        ({"zone": "us-west1-b"}, {}, 2, 1),
        ({}, {"accelerator": "V100-16", "instance_type": "n1-standard-32"}, 2, 1),
        ({}, {"instance_type": "a2-highgpu-1g"}, 2, 1),
        ({}, {"node": "x"}, 2, 1),
        ({}, {}, 1, 1),
        ({}, {}, 4, 1),
        ({}, {}, 2, 2),
        ({}, {}, 2, 4),
    ]
    links = Links(scenario)
    for _ in range(2):
        for src, dst, pairs, flows in variants:
            ends = dataclasses.replace(base, **src), dataclasses.replace(other, **dst)
            found = links.between(*ends, pairs=pairs, flows=flows)
            assert found == scenario.link(*ends, pairs=pairs, flows=flows), (src, dst, pairs, flows)
    expected = {
        scenario.link(dataclasses.replace(base, **s), dataclasses.replace(other, **d), pairs=p, flows=f)
        for s, d, p, f in variants
    }
    assert len(expected) >= 8
