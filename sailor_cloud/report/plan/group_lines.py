"""The table of what is bought, in words: a line for each stage of each kind of pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Hardware, Offer
from sailor_cloud.model.plan import Recompute
from sailor_cloud.report import text
from sailor_cloud.report.plan.groups import (
    PipelineGroup,
    StageRow,
    allowance,
    devices_usd_per_hour,
    idle_devices,
    pipeline_groups,
)
from sailor_cloud.report.plan.money import age_days

# What stands for the nodes of a stage that shares them with the stage before it.
SAME_NODES = "same nodes"
NUMBERS = ("USD/h", "used", "price age")
HEADINGS = ("pipelines", "stage", "layers", "devices", "zone", "nodes", "market", *NUMBERS)
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
    return (*found, *(_idle(document, hardware, count) for hardware, count in idle_devices(document)))


def group_columns(document: PlanDocument) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the headings and rows of the lines, without columns that say nothing."""
    rows = [line.cells for line in group_lines(document)]
    used = [any(row[place] for row in rows) for place in range(len(HEADINGS))]
    return tuple(compress(HEADINGS, used)), tuple(tuple(compress(row, used)) for row in rows)


def _stage(document: PlanDocument, group: PipelineGroup, row: StageRow, mark: str) -> GroupLine:
    batch = f"{group.microbatches} x {group.microbatch_size}"
    shared = row.same_nodes
    return GroupLine(
        pipelines=f"{text.ranges(group.pipelines)}: {batch}" if row.index == 0 else "",
        stage=str(row.index),
        # A command without a model has no layers.
        layers="" if document.job.model is None else f"{row.first_layer}-{row.end_layer - 1}" + mark,
        devices=f"{row.devices} {row.hardware.accelerator}" + (f", tp {row.tp}" if row.tp > 1 else ""),
        zone="" if shared else row.hardware.zone,
        nodes=SAME_NODES if shared else f"{row.nodes} x {row.hardware.instance_type}",
        market="" if shared else _market(row.hardware),
        usd_per_hour=_usd(row.usd_per_hour),
        quota="" if shared else _quota(document, row.hardware),
        age="" if shared else _age(document, row.hardware),
    )


def _idle(document: PlanDocument, hardware: Hardware, count: int) -> GroupLine:
    return GroupLine(
        pipelines="idle",
        stage="",
        layers="",
        devices=f"{count} {hardware.accelerator}",
        zone=hardware.zone,
        nodes=hardware.instance_type,
        market=_market(hardware),
        usd_per_hour=_usd(devices_usd_per_hour(hardware, count)),
        quota=_quota(document, hardware),
        age=_age(document, hardware),
    )


def _market(hardware: Hardware) -> str:
    return hardware.market.value if isinstance(hardware, Offer) else ""


def _usd(usd_per_hour: float | None) -> str:
    return "" if usd_per_hour is None else text.usd(usd_per_hour)


def _quota(document: PlanDocument, hardware: Hardware) -> str:
    return str(allowance(document, hardware)) if isinstance(hardware, Offer) else ""


def _age(document: PlanDocument, hardware: Hardware) -> str:
    return f"{age_days(document, hardware.as_of_from)} d" if isinstance(hardware, Offer) else ""
