"""Gradient sums: who takes part, how long they take, what crosses zones."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from random import Random

import pytest

from factories.scenarios import chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in, two_stage_plan
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Link
from sailor_cloud.simulator import Engine, Scenario, Transfers, evaluate, gradient_sync_s, ring_s
from sailor_cloud.simulator.layout import Layout, Seat, lay_out
from sailor_cloud.simulator.scenario import place_of
from sailor_cloud.simulator.timing.iteration import run_iteration
from sailor_cloud.simulator.timing.sync import Gather, gather_delay_s, sync_groups


def plan_on(
    scenario: Scenario, *pipelines: tuple[list[Offer], tuple[int, ...]], microbatches: int = 16, zero_stage: int = 0
) -> Plan:
    chains = [
        chain(p, offers, cuts, microbatch_size=2, microbatches=microbatches)
        for p, (offers, cuts) in enumerate(pipelines)
    ]
    return make_plan(scenario, chains, zero_stage=zero_stage)


def test_layers_are_summed_by_exactly_the_stages_that_hold_them() -> None:
    scenario = gcp_scenario(batch=64)
    a100 = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    layout = lay_out(plan_on(scenario, ([a100, a100], (0, 10, 26)), ([a100] * 3, (0, 8, 17, 26))), scenario)
    groups = sync_groups(layout)
    assert [(group.first_layer, group.end_layer) for group in groups] == [(17, 26), (10, 17), (8, 10), (0, 8)]
    assert [[(seat.pipeline, seat.index) for seat in group.members] for group in groups] == [
        [(0, 1), (1, 2)],
        [(0, 1), (1, 1)],
        [(0, 0), (1, 1)],
        [(0, 0), (1, 0)],
    ]
    whole = float(layout.seats[0].table.gradient_prefix_bytes[-1])
    assert sum(group.nbytes for group in groups) == pytest.approx(whole)


def test_a_layout_takes_the_stages_of_1f1b_as_they_are_and_finds_its_devices_once() -> None:
    # Both are asked for many times in every simulation.
    scenario = gcp_scenario(batch=32)
    a100 = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    plan = plan_on(scenario, ([a100, a100], (0, 10, 26)))
    layout = lay_out(plan, scenario)
    assert all(seat.stage is stage for seat, stage in zip(layout.seats, plan.pipelines[0].stages, strict=True))
    assert layout.devices is layout.devices


def test_one_pipeline_has_nothing_to_sum_unless_its_head_is_tied() -> None:
    untied = gcp_scenario(batch=32)
    a100 = offer_in(untied, "us-central1-a", "A100-40", devices=2)
    assert all(group.seconds == 0 for group in sync_groups(lay_out(plan_on(untied, ([a100] * 2, (0, 13, 26))), untied)))
    tied = make_scenario(make_job())
    groups = sync_groups(lay_out(two_stage_plan(tied), tied))
    assert [group.tied for group in groups if group.seconds > 0] == [True]
    [shared] = [group for group in groups if group.tied]
    assert shared.nbytes == 256 * 128 * 4
    assert [(seat.pipeline, seat.index) for seat in shared.members] == [(0, 0), (0, 1)]


def test_a_stage_that_holds_a_tied_embedding_alone_has_nothing_else_to_sum() -> None:
    llama = {"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2}
    model = {**llama, "num_attention_heads": 4, "intermediate_size": 128, "tie_word_embeddings": True}
    scenario = make_scenario(make_job(model=model, batch=64))
    cpu = offer_in(scenario, "local-a", "CPU-fast")
    plan = plan_on(scenario, ([cpu, cpu], (0, 1, 4)), ([cpu, cpu], (0, 1, 4)))
    groups = sync_groups(lay_out(plan, scenario))
    assert [group.nbytes for group in groups if (group.first_layer, group.end_layer) == (0, 1)] == [0.0]
    assert evaluate(plan, scenario).prediction.iteration_s_replay > 0


def test_the_slowest_link_decides() -> None:
    scenario = gcp_scenario(batch=64)
    central = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    west = offer_in(scenario, "us-west1-b", "V100-16", devices=4)
    near = sync_groups(lay_out(plan_on(scenario, ([central], (0, 26)), ([central], (0, 26))), scenario))
    far = sync_groups(lay_out(plan_on(scenario, ([central], (0, 26)), ([west], (0, 26))), scenario))
    assert far[0].seconds > 2 * near[0].seconds


def test_zones_add_up_their_gradients_before_they_send_them_to_another() -> None:
    scenario = gcp_scenario(batch=120)
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    b = offer_in(scenario, "us-central1-b", "A100-40", devices=2)
    for zones in ((a, b, a), (a, b, a, b, a)):
        plan = plan_on(scenario, *(([each], (0, 26)) for each in zones), microbatches=60 // len(zones))
        iteration = run_iteration(lay_out(plan, scenario))
        whole = sum(group.nbytes for group in iteration.groups)
        assert iteration.traffic == {
            ("us-central1-a", "us-central1-b"): pytest.approx(whole),
            ("us-central1-b", "us-central1-a"): pytest.approx(whole),
        }


def test_zones_that_meet_rarely_send_each_other_a_share_and_sum_at_home_as_before() -> None:
    found = {}
    for every in (None, 10):
        scenario = gcp_scenario(batch=128, sync_every=every)
        a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
        west = offer_in(scenario, "us-west1-b", "A100-40", devices=2)
        plan = plan_on(scenario, *(([offer], (0, 26)) for offer in (a, a, west, west)))
        alone = plan_on(scenario, *(([a], (0, 26)) for _ in range(4)))
        joined = plan_on(scenario, ([a, west], (0, 13, 26)), ([a, west], (0, 13, 26)), microbatches=32)
        found[every] = [run_iteration(lay_out(each, scenario)) for each in (plan, alone, joined)]
    (often, *plain), (seldom, *same) = found[None], found[10]
    assert seldom.traffic == {key: pytest.approx(nbytes / 10) for key, nbytes in often.traffic.items()}
    assert seldom.replay_s < often.replay_s
    # Pipelines that share a zone sum at every step, and so do those that a cut joins to others.
    assert [each.replay_s for each in same] == pytest.approx([each.replay_s for each in plain])
    assert [each.traffic for each in same] == [pytest.approx(each.traffic) for each in plain]
    at_home = run_iteration(lay_out(plan_on(gcp_scenario(batch=64), *[([a], (0, 26))] * 2), gcp_scenario(batch=64)))
    assert sum(group.seconds for group in seldom.groups) > sum(group.seconds for group in at_home.groups)


def test_a_ring_visits_zones_one_after_the_other_so_each_border_is_crossed_once_each_way() -> None:
    scenario = gcp_scenario(batch=128, engine=Engine(zone_by_zone=False))
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    b = offer_in(scenario, "us-central1-b", "A100-40", devices=2)
    plan = plan_on(scenario, *(([offer], (0, 26)) for offer in (a, b, a, b)))
    iteration = run_iteration(lay_out(plan, scenario))
    whole = sum(group.nbytes for group in iteration.groups)
    assert iteration.traffic == {
        ("us-central1-a", "us-central1-b"): pytest.approx(2 * 3 / 4 * whole),
        ("us-central1-b", "us-central1-a"): pytest.approx(2 * 3 / 4 * whole),
    }


def test_traffic_between_stages_counts_every_microbatch_once_whatever_the_tensor_parallel_degrees() -> None:
    scenario = gcp_scenario(batch=32)
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    b = offer_in(scenario, "us-central1-b", "A100-40", devices=4)
    plan = plan_on(scenario, ([a, b], (0, 13, 26)))
    tensor = 2 * 2048 * 1024 * 2
    found = run_iteration(lay_out(plan, scenario)).traffic
    assert found == {
        ("us-central1-a", "us-central1-b"): tensor * 16,
        ("us-central1-b", "us-central1-a"): tensor * 16,
    }


def test_overlapping_the_sums_with_the_backward_pass_is_never_slower() -> None:
    for transfers in Transfers:
        seconds = {}
        for overlap in (False, True):
            scenario = gcp_scenario(batch=64, engine=Engine(transfers=transfers, overlap_sync=overlap))
            a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
            west = offer_in(scenario, "us-west1-b", "A100-40", devices=2)
            plan = plan_on(scenario, ([a, a], (0, 10, 26)), ([west, west], (0, 14, 26)))
            seconds[overlap] = evaluate(plan, scenario).prediction.iteration_s_replay
        assert seconds[True] < seconds[False]


def test_an_overlapped_all_reduce_begins_with_the_first_bucket_and_ends_one_bucket_after_the_last() -> None:
    """One stage each, so the sum has the whole backward pass of the last microbatch to hide behind."""
    for zones in (("us-central1-a", "us-central1-a"), ("us-central1-a", "us-west1-b")):
        seconds = {}
        for overlap in (False, True):
            scenario = gcp_scenario(batch=64, engine=Engine(overlap_sync=overlap))
            chains = [([offer_in(scenario, zone, "A100-40", devices=2)], (0, 26)) for zone in zones]
            layout = lay_out(plan_on(scenario, *chains), scenario)
            iteration = run_iteration(layout, timeline=True)
            seconds[overlap] = iteration.replay_s
        [group] = [group for group in iteration.groups if group.seconds > 0]
        share = scenario.engine.bucket_bytes / group.nbytes
        assert share < 1
        backward = float(layout.seats[0].table.backward_s(0, 26))
        whole = seconds[False] - group.seconds
        begun = whole - (1 - share) * backward
        update = float(layout.seats[0].table.update_s(0, 26))
        end = max(begun - update + group.seconds, whole - update + share * group.seconds)
        assert seconds[True] == pytest.approx(end + update)
        [span] = [span for span in iteration.timeline if span.what == "sync" and span.pipeline == 0]
        assert (span.start_s, span.end_s) == pytest.approx((begun - update, end))
        for stage in iteration.waits:
            assert stage.waits.sync_s == pytest.approx(end - (whole - update))


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_weights_that_zero_1_updates_in_shares_are_gathered_after_the_step(precision: str) -> None:
    """Beside a backward pass only gradients can travel: the new weights are not there yet."""
    scenario = gcp_scenario(batch=64, precision=precision, engine=Engine(overlap_gather=False))
    offers = [offer_in(scenario, zone, "A100-40", devices=2) for zone in ("us-central1-a", "us-west1-b")]
    layouts = [
        lay_out(plan_on(scenario, *(([offer], (0, 26)) for offer in offers), zero_stage=stage), scenario)
        for stage in (0, 1)
    ]
    plain, shared = (run_iteration(layout, timeline=True) for layout in layouts)
    [whole] = [group for group in plain.groups if group.seconds > 0]
    [group] = [group for group in shared.groups if group.seconds > 0]
    assert (whole.gather_s, whole.sum_s) == (0.0, whole.seconds)
    # One pass with four bytes of a gradient, where plain sums take two, and one with a weight.
    weight = {"fp16": 2, "fp32": 4}[precision]
    assert group.gather_s / group.sum_s == pytest.approx(weight / 4)
    assert group.sum_s == pytest.approx(whole.seconds / 2, rel=0.01)
    # A message carries as large a share of the gradients as without.
    bucket_bytes = scenario.engine.bucket_bytes
    assert group.bucket(bucket_bytes) == pytest.approx(whole.bucket(bucket_bytes), rel=1e-12)
    assert 0.0 < whole.bucket(bucket_bytes) == bucket_bytes / whole.nbytes < 1.0
    spans = {what: [span for span in shared.timeline if span.what == what] for what in ("sync", "update", "gather")}
    assert not any(span.what == "gather" for span in plain.timeline)
    stepped = max(span.end_s for span in spans["update"])
    assert {(span.start_s, span.end_s) for span in spans["gather"]} == {(stepped, stepped + group.gather_s)}
    assert shared.replay_s == stepped + group.gather_s
    updates = [layout.seats[0].table.update_s(0, 26, shards=2) for layout in layouts]
    assert updates[1] == updates[0] / 2
    assert shared.replay_s < plain.replay_s - updates[1] + group.gather_s
    for before, after in zip(plain.waits, shared.waits, strict=True):
        assert group.gather_s < after.waits.sync_s < before.waits.sync_s + group.gather_s
    beside = run_iteration(lay_out(layouts[1].plan, gcp_scenario(batch=64, precision=precision)), timeline=True)
    # The next pass waits for the first message, and at its last layers for the last one.
    bucket, forward = group.bucket(bucket_bytes), float(layouts[1].seats[0].table.forward_s(0, 26))
    held = max(bucket * group.gather_s, group.gather_s - (1.0 - bucket) * forward)
    assert 0.0 < held < group.gather_s
    assert beside.replay_s == pytest.approx(stepped + held)


def test_gathers_hold_up_the_stage_that_needs_them_first_and_later_stages_have_until_they_are_reached() -> None:
    members = [(0, 0), (0, 1)]
    updated = {(0, 0): 9.0, (0, 1): 10.0}

    def gather(stage: int, seconds: float, needed: tuple[float, float]) -> Gather:
        return Gather(members=members[stage : stage + 1], seconds=seconds, bucket=0.25, needed_s=[needed])

    assert gather_delay_s([gather(0, 4.0, (0.0, 3.0))], updated) == {(0, 0): 0.0, (0, 1): 0.0}, "ready a second before"
    assert gather_delay_s([gather(0, 8.0, (0.0, 3.0))], updated)[0, 0] == pytest.approx(9 + 8 - 10 - 3)
    assert gather_delay_s([gather(1, 4.0, (0.0, 4.0))], updated)[0, 1] == pytest.approx(1.0), "the first message"
    assert gather_delay_s([gather(1, 4.0, (2.0, 4.0))], updated)[0, 1] == 0.0
    two = gather_delay_s([gather(1, 4.0, (2.0, 4.0)), gather(1, 4.0, (4.0, 6.0))], updated)
    assert two[0, 1] == pytest.approx(8.0 - 6.0), "one after the other"


def test_zones_of_several_pipelines_add_up_their_own_first_and_each_sends_across_what_others_own() -> None:
    scenario = gcp_scenario(batch=160)
    near, far = (offer_in(scenario, zone, "A100-40", devices=2) for zone in ("us-central1-a", "us-west1-b"))
    chains = [([offer], (0, 26)) for offer in (near, near, near, far, far)]
    layout = lay_out(plan_on(scenario, *chains), scenario)
    [group] = [group for group in sync_groups(layout) if group.seconds > 0]
    places = [seat.place for seat in layout.seats]
    inside, across = (layout.links.between(places[a], places[b], pairs=2) for a, b in ((0, 1), (2, 3)))
    buckets, rest = divmod(group.nbytes, scenario.engine.bucket_bytes)

    def step_s(link: Link, members: int) -> float:
        return buckets * link.transfer_s(scenario.engine.bucket_bytes / members) + link.transfer_s(rest / members)

    # Of a zone of two each member leads 2.5 of 5 parts, 1.5 of which it sends to their owners, and returns its own.
    assert group.seconds == pytest.approx(2 * 2 * step_s(inside, 3) + (1.5 + 1) * step_s(across, 5))
    alone = lay_out(plan_on(gcp_scenario(batch=64), *chains[2:4]), gcp_scenario(batch=64))
    [pair] = [group for group in sync_groups(alone) if group.seconds > 0]
    back = layout.links.between(places[3], places[2], pairs=2)
    bucket_bytes = scenario.engine.bucket_bytes
    assert pair.seconds == max(ring_s(pair.nbytes, 2, link, bucket_bytes=bucket_bytes) for link in (across, back))


def test_a_ring_moves_two_passes_in_steps_of_a_share() -> None:
    scenario = gcp_scenario()
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    layout = lay_out(plan_on(scenario, ([a], (0, 26)), ([a], (0, 26))), gcp_scenario(batch=64))
    link = layout.links.between(layout.seats[0].place, layout.seats[1].place, pairs=2)
    assert ring_s(1e8, 4, link, bucket_bytes=1e9) == pytest.approx(2 * 3 * link.transfer_s(2.5e7))
    assert ring_s(2.5e8, 2, link, bucket_bytes=1e8) == pytest.approx(
        2 * (2 * link.transfer_s(5e7) + link.transfer_s(2.5e7))
    )
    assert ring_s(1e8, 1, link, bucket_bytes=1e9) == 0


def test_pipelines_may_differ_in_depth_width_and_microbatch_size() -> None:
    scenario = gcp_scenario(batch=56)
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    v = offer_in(scenario, "us-central1-b", "V100-16", devices=8)
    plan = make_plan(
        scenario,
        [
            chain(0, [a, a, v], (0, 12, 22, 26), microbatch_size=2, microbatches=20),
            chain(1, [v, v], (0, 13, 26), microbatch_size=1, microbatches=16),
        ],
    )
    answer = evaluate(plan, scenario, timeline=True)
    assert len(answer.stage_waits) == len(answer.prediction.memory) == 5
    ends = [span.end_s for span in answer.timeline]
    assert max(ends) == pytest.approx(answer.prediction.iteration_s_replay)
    assert answer.prediction.iteration_s == pytest.approx(answer.prediction.iteration_s_replay, rel=0.3)


def ragged_plan(seed: int) -> tuple[Plan, Scenario]:
    """Up to five pipelines of any depth, cut, kind of node and microbatch size in two zones."""
    random = Random(seed)
    offers = gcp_scenario()
    chains, batch = [], 0
    for p in range(random.randint(1, 5)):
        stages = random.randint(1, 5)
        cuts = (0, *sorted(random.sample(range(1, 26), stages - 1)), 26)
        nodes = [
            offer_in(
                offers,
                random.choice(["us-central1-a", "us-central1-b"]),
                random.choice(["A100-40", "V100-16"]),
                devices=random.choice([2, 4]),
            )
            for _ in range(stages)
        ]
        size, count = random.choice([1, 2, 4]), random.randint(1, 40)
        chains.append(chain(p, nodes, cuts, microbatch_size=size, microbatches=count))
        batch += size * count
    scenario = gcp_scenario(batch=batch, engine=Engine(transfers=random.choice(list(Transfers))))
    return make_plan(scenario, chains), scenario


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_the_closed_form_of_a_whole_plan_stays_within_its_bound_of_the_replay(seed: int, overlap: bool) -> None:
    plan, scenario = ragged_plan(seed)
    engine = dataclasses.replace(scenario.engine, overlap_sync=overlap)
    layout = lay_out(plan, dataclasses.replace(scenario, engine=engine))
    iteration = run_iteration(layout)
    longest_fill = max(
        sum(seat.compute_s for seat in seats) + sum(transfer_s(layout, seats)) for seats in layout.pipelines
    )
    assert iteration.replay_s <= iteration.closed_form_s * 1.05
    # The closed form charges sums in full; at most one backward pass hides them.
    assert iteration.closed_form_s - iteration.replay_s <= (3.5 if overlap else 2.5) * longest_fill


def transfer_s(layout: Layout, seats: tuple[Seat, ...]) -> list[float]:
    """Seconds of one microbatch over each cut, both ways."""
    found = []
    for src, dst in pairwise(seats):
        pairs = min(src.tp, dst.tp)
        tensor = float(src.table.boundary_bytes[src.stage.end_layer])
        found.append(
            layout.links.between(src.place, dst.place, pairs=pairs).transfer_s(tensor * dst.tp)
            + layout.links.between(dst.place, src.place, pairs=pairs).transfer_s(tensor * src.tp)
        )
    return found


def test_an_all_reduce_is_as_much_slower_than_a_link_test_as_its_engine_says() -> None:
    scenario = gcp_scenario(batch=64)
    link = _between_nodes(scenario)
    plain, slow = (gradient_sync_s(1e8, 4, link, engine=Engine(all_reduce_slowdown=factor)) for factor in (1.0, 2.0))
    assert slow == pytest.approx(2 * plain)
    assert plain == pytest.approx(ring_s(1e8, 4, link, bucket_bytes=Engine().bucket_bytes))


def test_a_tree_avoids_the_latency_of_a_ring_for_many_ranks() -> None:
    scenario = gcp_scenario(batch=64)
    link = _between_nodes(scenario)
    ring, tree = Engine(), Engine(trees=True)
    assert gradient_sync_s(1e8, 2, link, engine=tree) <= gradient_sync_s(1e8, 2, link, engine=ring)
    assert gradient_sync_s(1e8, 512, link, engine=tree) < 0.7 * gradient_sync_s(1e8, 512, link, engine=ring)


def test_reductions_that_wait_under_zero_hide_without_it() -> None:
    engine = Engine(overlap_sharded_sync=False)
    assert (engine.overlaps_sync(0), engine.overlaps_sync(1)) == (True, False)
    assert not Engine(overlap_sync=False).overlaps_sync(0)


def test_an_optimizer_divided_inside_nodes_gathers_no_weights_between_them() -> None:
    seconds = {}
    for near in (False, True):
        scenario = gcp_scenario(batch=64, engine=Engine(gather_in_node=near))
        offers = [offer_in(scenario, zone, "A100-40", devices=2) for zone in ("us-central1-a", "us-west1-b")]
        plan = plan_on(scenario, *(([offer], (0, 26)) for offer in offers), zero_stage=1)
        groups = run_iteration(lay_out(plan, scenario)).groups
        seconds[near] = sum(group.gather_s for group in groups if not group.tied)
        assert sum(group.sum_s for group in groups) > 0
    assert seconds[True] == 0 < seconds[False]


def _between_nodes(scenario: Scenario) -> Link:
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    src, dst = (place_of(offer, node) for node in "ab")
    return scenario.link(src, dst, pairs=1)
