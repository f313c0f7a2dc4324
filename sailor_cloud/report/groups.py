"""Stages that look alike, counted together: the rows of every plan table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Plan, Recompute, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """The same stage of several equal pipelines; which of several equal nodes they use is left out.

    `same_nodes` tells that it stands on the very nodes of the stage before it.
    """

    index: int
    first_layer: int
    end_layer: int
    recompute: Recompute
    tp: int
    offer: Offer
    nodes: int
    same_nodes: bool
    devices: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineGroup:
    """Pipelines that differ in nothing but the nodes they run on."""

    pipelines: tuple[int, ...]
    microbatch_size: int
    microbatches: int
    stages: tuple[StageRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many devices of an accelerator a plan takes in a zone, of how many the job allows there."""

    zone: str
    accelerator: str
    used: int
    allowed: int | None

    def __str__(self) -> str:
        return str(self.used) if self.allowed is None else f"{self.used}/{self.allowed}"


def pipeline_groups(document: PlanDocument) -> tuple[PipelineGroup, ...]:
    """Return the plan's pipelines, equal ones together, in the order of their first member."""
    plan = document.plan
    if plan is None:
        return ()
    offers = plan_offers(document)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, pipeline in enumerate(plan.pipelines):
        shape = (
            pipeline.microbatch_size,
            pipeline.microbatches,
            tuple(
                (stage.first_layer, stage.end_layer, stage.tp, offers[stage.node].id, stage.recompute)
                for stage in pipeline.stages
            ),
        )
        groups.setdefault(shape, []).append(place)
    return tuple(_group(plan, places, offers) for places in groups.values())


def plan_offers(document: PlanDocument) -> dict[str, Offer]:
    """Return the offer of each node of the plan, by node id."""
    if document.plan is None:
        return {}
    offers = {offer.id: offer for offer in document.inputs.offers}
    return {node.id: offers[node.offer] for node in document.plan.nodes}


def idle_devices(document: PlanDocument) -> tuple[tuple[Offer, int], ...]:
    """Return how many paid devices of each offer are in no stage; offers without any are left out."""
    plan = document.plan
    if plan is None:
        return ()
    used = Counter(stage.node for pipeline in plan.pipelines for stage in pipeline.stages for _ in stage.devices)
    offers = plan_offers(document)
    idle: Counter[str] = Counter()
    for node in plan.nodes:
        idle[node.offer] += node.devices - used[node.id]
    by_id = {offer.id: offer for offer in offers.values()}
    return tuple((by_id[name], count) for name, count in sorted(idle.items()) if count > 0)


def allowance(document: PlanDocument, offer: Offer) -> Allowance:
    """Return what the plan takes of an offer's accelerator in its zone, and what the job allows there in all."""
    used = (
        sum(
            node.devices
            for node, other in ((node, plan_offers(document)[node.id]) for node in (document.plan.nodes))
            if (other.zone, other.accelerator) == (offer.zone, offer.accelerator)
        )
        if document.plan
        else 0
    )
    limits = [
        entry.accelerators[offer.accelerator]
        for entry in document.job.resources
        if entry.provider == offer.provider and offer.zone in entry.zones and offer.accelerator in entry.accelerators
    ]
    return Allowance(zone=offer.zone, accelerator=offer.accelerator, used=used, allowed=sum(limits) if limits else None)


def _group(plan: Plan, places: list[int], offers: dict[str, Offer]) -> PipelineGroup:
    members = [plan.pipelines[place] for place in places]
    first = members[0]
    columns = [[member.stages[index] for member in members] for index in range(len(first.stages))]
    return PipelineGroup(
        pipelines=tuple(member.id for member in members),
        microbatch_size=first.microbatch_size,
        microbatches=first.microbatches,
        stages=tuple(
            _row(index, stages, columns[index - 1] if index else [], offers) for index, stages in enumerate(columns)
        ),
    )


def _row(index: int, stages: list[Stage], before: list[Stage], offers: dict[str, Offer]) -> StageRow:
    first = stages[0]
    offer = offers[first.node]
    devices = sum(stage.tp for stage in stages)
    nodes = {stage.node for stage in stages}
    return StageRow(
        index=index,
        first_layer=first.first_layer,
        end_layer=first.end_layer,
        recompute=first.recompute,
        tp=first.tp,
        offer=offer,
        nodes=len(nodes),
        same_nodes=nodes == {stage.node for stage in before},
        devices=devices,
        usd_per_hour=offer.usd_per_hour * devices / offer.accelerator_count,
    )
