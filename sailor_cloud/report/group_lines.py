"""The table of what is bought, in words: a line for each stage of each kind of pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Recompute
from sailor_cloud.report import text
from sailor_cloud.report.groups import PipelineGroup, StageRow, allowance, idle_devices, pipeline_groups
from sailor_cloud.report.money import age_days

# What stands for the nodes of a stage that shares them with the stage before it.
SAME_NODES = "same nodes"
# How stages that recompute are marked, in words and in a letter.
RECOMPUTED = {Recompute.NONE: "", Recompute.SELECTIVE: " attention recomputed", Recompute.FULL: " recomputed"}
RECOMPUTED_SHORT = {Recompute.NONE: "", Recompute.SELECTIVE: " (a)", Recompute.FULL: " (r)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLine:
    """One line; what a stage shares with the one above it is ""."""

    pipelines: str
    stage: str
    layers: str
    devices: str
    zone: str
    nodes: str
    market: str
    usd_per_hour: str
    quota: str
    age: str

    @property
    def cells(self) -> tuple[str, ...]:
        place = (self.zone, self.nodes, self.market)
        return (self.pipelines, self.stage, self.layers, self.devices, *place, self.usd_per_hour, self.quota, self.age)


def group_lines(document: PlanDocument, *, marks: Mapping[Recompute, str] = RECOMPUTED) -> tuple[GroupLine, ...]:
    """Return the lines of all stages, then those of idle devices; `marks` tell stages that recompute."""
    found = [
        _stage(document, group, row, marks[row.recompute])
        for group in pipeline_groups(document)
        for row in group.stages
    ]
    return (*found, *(_idle(document, offer, count) for offer, count in idle_devices(document)))


def _stage(document: PlanDocument, group: PipelineGroup, row: StageRow, mark: str) -> GroupLine:
    batch = f"{group.microbatches} x {group.microbatch_size}"
    shared = row.same_nodes
    return GroupLine(
        pipelines=f"{text.ranges(group.pipelines)}: {batch}" if row.index == 0 else "",
        stage=str(row.index),
        layers=f"{row.first_layer}-{row.end_layer - 1}" + mark,
        devices=f"{row.devices} {row.offer.accelerator}" + (f", tp {row.tp}" if row.tp > 1 else ""),
        zone="" if shared else row.offer.zone,
        nodes=SAME_NODES if shared else f"{row.nodes} x {row.offer.instance_type}",
        market="" if shared else row.offer.market.value,
        usd_per_hour=text.usd(row.usd_per_hour),
        quota="" if shared else str(allowance(document, row.offer)),
        age="" if shared else _age(document, row.offer),
    )


def _idle(document: PlanDocument, offer: Offer, count: int) -> GroupLine:
    return GroupLine(
        pipelines="idle",
        stage="",
        layers="",
        devices=f"{count} {offer.accelerator}",
        zone=offer.zone,
        nodes=offer.instance_type,
        market=offer.market.value,
        usd_per_hour=text.usd(offer.usd_per_hour * count / offer.accelerator_count),
        quota=str(allowance(document, offer)),
        age=_age(document, offer),
    )


def _age(document: PlanDocument, offer: Offer) -> str:
    return f"{age_days(document, offer.as_of_from)} d"
