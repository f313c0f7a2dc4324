"""Groups of equal stages: the rows of every plan table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Hardware, Offer
from sailor_cloud.model.plan import Plan, Recompute, Stage
from sailor_cloud.report import text
from sailor_cloud.report.plan.money import age_days
from sailor_cloud.simulator.engines import ENGINES, SAILOR, Selective
from sailor_cloud.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """The same stage of several equal pipelines, without their choice among equal nodes.

    `same_as`: the last earlier stage on the same nodes, if any.
    """

    index: int
    layers: str
    recompute: Recompute
    tp: int
    hardware: Hardware
    nodes: int
    same_as: int | None
    devices: int
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineGroup:
    """Pipelines that differ only in their nodes."""

    pipelines: tuple[int, ...]
    microbatch_size: int
    microbatches: int
    stages: tuple[StageRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """The number of an accelerator's devices that a plan takes in a zone, and the job's limit there."""

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
    nodes = plan_hardware(document)
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, pipeline in enumerate(plan.pipelines):
        shape = (
            pipeline.microbatch_size,
            pipeline.microbatches,
            tuple((stage.ranges, stage.tp, nodes[stage.node].id, stage.recompute) for stage in pipeline.stages),
        )
        groups.setdefault(shape, []).append(place)
    return tuple(_group(plan, places, nodes) for places in groups.values())


def plan_hardware(document: PlanDocument) -> dict[str, Hardware]:
    """Return each node's hardware by node id: an offer, or a machine without a price."""
    if document.plan is None:
        return {}
    nodes = document.inputs.hardware_by_id()
    return {node.id: nodes[node.offer] for node in document.plan.nodes}


def hardware_name(hardware: Hardware) -> str:
    """Return an instance type, with its market if it is bought."""
    return (
        f"{hardware.instance_type} {hardware.market.value}" if isinstance(hardware, Offer) else hardware.instance_type
    )


def devices_usd_per_hour(hardware: Hardware, devices: int) -> float | None:
    """Return the hourly cost of some devices of a machine; None if it has no price."""
    return hardware.usd_per_hour * devices / hardware.accelerator_count if isinstance(hardware, Offer) else None


def nodes_usd_per_hour(nodes: Iterable[Hardware]) -> float | None:
    """Return the hourly cost of nodes; None if one has no price."""
    rates = [hardware.usd_per_hour if isinstance(hardware, Offer) else None for hardware in nodes]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def idle_devices(document: PlanDocument) -> tuple[tuple[Hardware, int], ...]:
    """Return the number of devices in no stage by kind of node; kinds without any are left out."""
    plan = document.plan
    if plan is None:
        return ()
    used = Counter(stage.node for pipeline in plan.pipelines for stage in pipeline.stages for _ in stage.devices)
    idle: Counter[str] = Counter()
    for node in plan.nodes:
        idle[node.offer] += node.devices - used[node.id]
    by_id = document.inputs.hardware_by_id()
    return tuple((by_id[name], count) for name, count in sorted(idle.items()) if count > 0)


def allowance(document: PlanDocument, hardware: Hardware) -> Allowance:
    """Return the plan's use of a machine's accelerator in its zone, and the job's total limit there."""
    used = (
        sum(
            node.devices
            for node, other in ((node, plan_hardware(document)[node.id]) for node in (document.plan.nodes))
            if (other.zone, other.accelerator) == (hardware.zone, hardware.accelerator)
        )
        if document.plan
        else 0
    )
    limits = [
        entry.accelerators[hardware.accelerator]
        for entry in document.job.resources
        if entry.provider == hardware.provider
        and hardware.zone in entry.zones
        and hardware.accelerator in entry.accelerators
    ]
    return Allowance(
        zone=hardware.zone, accelerator=hardware.accelerator, used=used, allowed=sum(limits) if limits else None
    )


def _group(plan: Plan, places: list[int], nodes: dict[str, Hardware]) -> PipelineGroup:
    members = [plan.pipelines[place] for place in places]
    first = members[0]
    columns = [[member.stages[index] for member in members] for index in range(len(first.stages))]
    return PipelineGroup(
        pipelines=tuple(member.id for member in members),
        microbatch_size=first.microbatch_size,
        microbatches=first.microbatches,
        stages=tuple(_row(index, stages, columns[:index], nodes) for index, stages in enumerate(columns)),
    )


def _row(index: int, stages: list[Stage], before: list[list[Stage]], found: dict[str, Hardware]) -> StageRow:
    first = stages[0]
    hardware = found[first.node]
    devices = sum(stage.tp for stage in stages)
    nodes = {stage.node for stage in stages}
    same = [number for number, earlier in enumerate(before) if {stage.node for stage in earlier} == nodes]
    return StageRow(
        index=index,
        layers=first.layers_text,
        recompute=first.recompute,
        tp=first.tp,
        hardware=hardware,
        nodes=len(nodes),
        same_as=same[-1] if same else None,
        devices=devices,
        usd_per_hour=devices_usd_per_hour(hardware, devices),
    )


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
    """One line; values equal to the line above are ""."""

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
    """Return the lines of all stages, then those of idle devices; `short`: mark recomputation by letters."""
    found = [
        _stage(document, group, row, mark(document, row.recompute)[short])
        for group in pipeline_groups(document)
        for row in group.stages
    ]
    return (*found, *(_idle(document, hardware, count) for hardware, count in idle_devices(document)))


def mark(document: PlanDocument, recompute: Recompute) -> tuple[str, str]:
    """Return the mark of a stage that recomputes, in words and as a letter."""
    scores = ENGINES.get(document.engine, SAILOR).selective is Selective.SCORES
    return _OF_SCORES if scores and recompute is Recompute.SELECTIVE else _MARKS[recompute]


def group_columns(document: PlanDocument) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the headings and rows of the lines, without empty columns."""
    rows = [line.cells for line in group_lines(document)]
    used = [any(row[place] for row in rows) for place in range(len(HEADINGS))]
    return tuple(compress(HEADINGS, used)), tuple(tuple(compress(row, used)) for row in rows)


def groups_key(document: PlanDocument) -> str:
    """Return what the lines' figures mean, by the example of the first; empty for a command without a model."""
    plan = document.plan
    if plan is None or document.job.model is None:
        return ""
    first = pipeline_groups(document)[0]
    count, size = counted(first.microbatches, "microbatch"), counted(first.microbatch_size, "sample")
    who = "pipeline" if len(first.pipelines) == 1 else "each of pipelines"
    head = max(layer for stage in plan.pipelines[0].stages for layer in stage.layers)
    parts = [
        f"{_batches(first)} = {who} {text.ranges(first.pipelines)} runs {count} of {size}",
        f"layer 0 is the embedding, {head} the final norm and head",
    ]
    if document.inputs.offers:
        parts.append("used: devices taken / allowed in the zone")
    return "; ".join(parts)


def _batches(group: PipelineGroup) -> str:
    return f"{text.ranges(group.pipelines)}: {group.microbatches} x {group.microbatch_size}"


def _stage(document: PlanDocument, group: PipelineGroup, row: StageRow, mark: str) -> GroupLine:
    # A command without a model has no microbatches and no layers.
    trained = document.job.model is not None
    pipelines = _batches(group) if trained else text.ranges(group.pipelines)
    shared = row.same_as is not None
    # The nodes are listed once, so that adding rows up gives what is bought.
    same = "same nodes" if row.same_as == row.index - 1 else f"nodes of stage {row.same_as}"
    return GroupLine(
        pipelines=pipelines if row.index == 0 else "",
        stage=str(row.index),
        layers=row.layers + mark if trained else "",
        devices=f"{row.devices} {row.hardware.accelerator}" + (f", tp {row.tp}" if row.tp > 1 else ""),
        zone="" if shared else row.hardware.zone,
        nodes=same if shared else f"{row.nodes} x {row.hardware.instance_type}",
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
