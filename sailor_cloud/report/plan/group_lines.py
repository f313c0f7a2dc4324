"""The table of what is bought, in words: a line for each stage of each kind of pipeline."""

from __future__ import annotations

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
from sailor_cloud.simulator.engines import ENGINES, SAILOR, Selective

# What stands for the nodes of a stage that shares them with the stage before it.
SAME_NODES = "same nodes"
NUMBERS = ("USD/h", "used", "price age")
HEADINGS = ("pipelines", "stage", "layers", "devices", "zone", "nodes", "market", *NUMBERS)
_MARKS = {
    Recompute.NONE: ("", ""),
    Recompute.SELECTIVE: (" half recomputed", " (h)"),
    Recompute.FULL: (" recomputed", " (r)"),
}
_OF_SCORES = (" attention recomputed", " (a)")


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


def group_lines(document: PlanDocument, *, short: bool = False) -> tuple[GroupLine, ...]:
    """Return the lines of all stages, then those of idle devices; `short`: letters tell stages that recompute."""
    found = [
        _stage(document, group, row, mark(document, row.recompute)[short])
        for group in pipeline_groups(document)
        for row in group.stages
    ]
    return (*found, *(_idle(document, hardware, count) for hardware, count in idle_devices(document)))


def mark(document: PlanDocument, recompute: Recompute) -> tuple[str, str]:
    """Return how a stage is marked that recomputes, in words and in a letter."""
    scores = ENGINES.get(document.engine, SAILOR).selective is Selective.SCORES
    return _OF_SCORES if scores and recompute is Recompute.SELECTIVE else _MARKS[recompute]


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
        layers="" if document.job.model is None else row.layers + mark,
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
