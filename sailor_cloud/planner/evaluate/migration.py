"""The bytes, time and money to move a run's state to the nodes of a plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Place
from sailor_cloud.simulator import Scenario, egress_usd_per_byte, stage_table
from sailor_cloud.simulator.bill import CHECKPOINT_BYTES_PER_PARAMETER


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationCost:
    """State that nodes read before they train: total bytes, seconds until the last node is done, traffic cost."""

    nbytes: float
    seconds: float
    usd: float


def migration_cost(plan: Plan, scenario: Scenario, *, store_zone: str | None) -> MigrationCost:
    """Return the cost of loading every node's stages from the newest checkpoint.

    Every node reads, even one that is kept, because a new generation starts new processes. `store_zone` is a zone in
    the bucket's region; None means a local folder, which needs no network. Assumption: a read from a bucket is as fast
    as a transfer from a node of the same type in that zone. This is not measured.
    """
    held: dict[str, float] = defaultdict(float)
    offers = {node.id: scenario.offer(node.offer) for node in plan.nodes}
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            table = stage_table(scenario, offers[stage.node].accelerator, tp=1, microbatch_size=1)
            parameters = sum(float(table.parameters(each.start, each.stop)) for each in stage.ranges)
            held[stage.node] += parameters * CHECKPOINT_BYTES_PER_PARAMETER
    total = sum(held.values())
    if store_zone is None:
        return MigrationCost(nbytes=total, seconds=0.0, usd=0.0)
    seconds = usd = 0.0
    region = scenario.catalog.region_of(store_zone)
    for node, nbytes in sorted(held.items()):
        offer = offers[node]
        kind = {"accelerator": offer.accelerator, "instance_type": offer.instance_type}
        link = scenario.network.link(
            Place(zone=store_zone, node="store", **kind), Place(zone=offer.zone, node=node, **kind), pairs=1
        )
        seconds = max(seconds, float(link.transfer_s(nbytes)))
        if offer.region != region:
            usd += nbytes * egress_usd_per_byte(store_zone, offer.zone, scenario)
    return MigrationCost(nbytes=total, seconds=seconds, usd=usd)
