"""The table of what is bought: stage, layers, devices, zone, machine, market, price, allowance, price age."""

from __future__ import annotations

from rich.table import Table

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.report import text
from sailor_cloud.report.groups import PipelineGroup, StageRow, allowance, idle_devices, pipeline_groups
from sailor_cloud.report.money import age_days
from sailor_cloud.report.tables import plain_table

# Below this many columns, zone, machine and market share one column on two lines.
WIDE = 110
# Below this many, the age of prices stands with the cost of the run alone.
NARROW = 72


def groups_table(document: PlanDocument, *, width: int) -> Table:
    wide = width >= WIDE
    aged = width >= NARROW
    place = ("zone", "machine", "market") if wide else ("zone, machine, market",)
    table = plain_table(
        "pipelines",
        "stage",
        "layers",
        "devices",
        *place,
        "USD/h",
        "quota",
        *(("age",) if aged else ()),
        numbers=("USD/h", "quota", "age"),
        gap=2 if wide else 1,
    )
    for group in pipeline_groups(document):
        for row in group.stages:
            table.add_row(
                _label(group) if row.index == 0 else "",
                str(row.index),
                f"{row.first_layer}-{row.end_layer - 1}" + (" (r)" if row.recompute else ""),
                devices(row),
                *_place(row.offer, wide=wide),
                text.usd(row.usd_per_hour),
                *_trust(document, row.offer, aged=aged),
            )
    for offer, count in idle_devices(document):
        idle_usd = offer.usd_per_hour * count / offer.accelerator_count
        table.add_row(
            "idle",
            "",
            "",
            f"{count} {offer.accelerator}",
            *_place(offer, wide=wide),
            text.usd(idle_usd),
            *_trust(document, offer, aged=aged),
        )
    return table


def has_recompute(document: PlanDocument) -> bool:
    return any(row.recompute for group in pipeline_groups(document) for row in group.stages)


def devices(row: StageRow) -> str:
    """Return how many devices a row has and how a stage shares them: `8 A100-40, tp 4`."""
    return f"{row.devices} {row.offer.accelerator}" + (f", tp {row.tp}" if row.tp > 1 else "")


def batch(group: PipelineGroup) -> str:
    return f"{group.microbatches} x {group.microbatch_size}"


def _label(group: PipelineGroup) -> str:
    return f"{text.ranges(group.pipelines)}: {batch(group)}"


def _place(offer: Offer, *, wide: bool) -> tuple[str, ...]:
    if wide:
        return offer.zone, offer.instance_type, offer.market.value
    return (f"{offer.zone}\n{offer.instance_type} {offer.market.value}",)


def _trust(document: PlanDocument, offer: Offer, *, aged: bool) -> tuple[str, ...]:
    age = (f"{age_days(document, offer.as_of_from)} d",) if aged else ()
    return (str(allowance(document, offer)), *age)
