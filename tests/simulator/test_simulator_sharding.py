"""What ZeRO stages exchange, and when."""

from __future__ import annotations

import dataclasses

import pytest

from factories.scenarios import gcp_scenario, offer_in
from sailor_cloud.simulator import ENGINES, Evaluation, evaluate
from sailor_cloud.simulator.degrees import Degrees, NodeGroup, plan_of_degrees
from sailor_cloud.simulator.layout import Layout, lay_out
from sailor_cloud.simulator.sharding import sharding
from sailor_cloud.simulator.timing.iteration import run_iteration

NEAR, FAR = ("us-central1-a",), ("us-central1-a", "us-west1-b")


def layout_of(zero_stage: int, zones: tuple[str, ...] = NEAR, *, batch: int = 64) -> Layout:
    """Two pipelines of one A100 each under FSDP, on one node or on one in each of two zones."""
    scenario = gcp_scenario(engine=ENGINES["fsdp"], batch=batch)
    offers = [offer_in(scenario, zone, "A100-40", devices=2 // len(zones)) for zone in zones]
    groups = [NodeGroup(count=1, hardware=offer) for offer in offers]
    plan = plan_of_degrees(Degrees(dp=2, zero_stage=zero_stage), groups, scenario)
    return lay_out(plan, dataclasses.replace(scenario, offers={offer.id: offer for offer in offers}))


def evaluated(layout: Layout) -> Evaluation:
    return evaluate(layout.plan, layout.scenario)


@pytest.mark.parametrize(
    ("zero_stage", "summed", "gathered", "forward", "backward"),
    [(0, 8, 0, 0, 0), (1, 4, 2, 0, 0), (2, 0, 2, 0, 4), (3, 0, 0, 2, 6)],
)
def test_each_stage_moves_what_its_paper_says(
    zero_stage: int, summed: int, gathered: int, forward: int, backward: int
) -> None:
    moved = sharding(zero_stage, weight_bytes=2, gradient_bytes=4)
    assert (moved.summed, moved.gathered, moved.forward, moved.backward) == (summed, gathered, forward, backward)
    assert moved.total == summed + gathered + forward + backward


def test_zero_1_in_single_precision_moves_what_plain_sums_move() -> None:
    zero, plain = (sharding(stage, weight_bytes=4, gradient_bytes=4) for stage in (1, 0))
    assert zero.total == plain.total
    assert sharding(1, weight_bytes=4, gradient_bytes=4, scatter_sums=False).total == 1.5 * plain.total


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("zones", [NEAR, FAR])
def test_the_waits_of_every_stage_sum_to_the_iteration(zero_stage: int, zones: tuple[str, ...]) -> None:
    iteration = run_iteration(layout_of(zero_stage, zones))
    for each in iteration.waits:
        parts = each.waits
        assert min(parts.compute_s, parts.transfer_s, parts.sync_s) >= 0.0
        assert parts.compute_s + parts.transfer_s + parts.bubble_s + parts.sync_s == pytest.approx(iteration.replay_s)


def test_full_shard_hides_behind_the_passes_of_fast_links_and_not_of_slow_ones() -> None:
    plain, near, far = (
        evaluated(layout_of(zero_stage, zones)).prediction for zero_stage, zones in ((0, NEAR), (3, NEAR), (3, FAR))
    )
    assert near.iteration_s_replay < 2.0 * plain.iteration_s_replay < far.iteration_s_replay
    assert near.waits.compute_s == pytest.approx(far.waits.compute_s, rel=0.01)
    assert near.waits.sync_s < far.waits.sync_s


@pytest.mark.parametrize(("zero_stage", "fixed", "each"), [(0, 8, 0), (1, 10, 0), (2, 2, 4), (3, 0, 8)])
def test_traffic_between_zones_is_that_of_every_microbatch(zero_stage: int, fixed: int, each: int) -> None:
    layout = layout_of(zero_stage, FAR, batch=16)
    parameters = float(layout.pipelines[0][0].table.parameters(0, layout.scenario.decoder.layers))
    reduced = layout.scenario.engine.reduce_bytes
    assert reduced == 4
    crossing = sum(run_iteration(layout).traffic.values())
    # Of two members each sends half of what goes round once, to the other zone.
    assert crossing == pytest.approx(parameters * (fixed + 8 * each), rel=0.02)


def test_more_microbatches_gather_and_scatter_more_often() -> None:
    few, many = (run_iteration(layout_of(3, FAR, batch=batch)).replay_s for batch in (16, 64))
    assert many == pytest.approx(4.0 * few, rel=0.05)
