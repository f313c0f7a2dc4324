"""The table of what is bought: stage, layers, devices, zone, nodes, market, price, allowance, price age."""

from __future__ import annotations

from rich.table import Table

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report.plan.group_lines import GroupLine, group_lines, mark
from sailor_cloud.report.plan.groups import pipeline_groups
from sailor_cloud.report.tables import plain_table

# Below this many columns, zone, nodes and market share one column on two lines.
WIDE = 110
# Below this many, so do stage and layers, and the age of prices stands with the cost of the run alone.
NARROW = 72


def groups_table(document: PlanDocument, *, width: int) -> Table:
    shape: tuple[str, ...]
    numbers: tuple[str, ...]
    if width >= WIDE:
        shape, numbers = ("stage", "layers", "devices", "zone", "nodes", "market"), ("USD/h", "used", "age")
    elif width >= NARROW:
        shape, numbers = ("stage", "layers", "devices", "zone, nodes, market"), ("USD/h", "used", "age")
    else:
        shape, numbers = ("stage", "devices", "where"), ("USD/h", "used")
    rows = [
        {
            "pipelines": line.pipelines,
            "stage": line.stage if width >= NARROW or not line.layers else f"{line.stage}: {line.layers}",
            "layers": line.layers,
            "devices": line.devices if width >= NARROW else line.devices.replace(", ", ",\n"),
            "zone": line.zone,
            "nodes": line.nodes,
            "market": line.market,
            "zone, nodes, market": _place(line),
            "where": _place(line),
            "USD/h": line.usd_per_hour,
            "used": line.quota,
            "age": line.age,
        }
        for line in group_lines(document, short=True)
    ]
    # Columns that say nothing, as those of prices where none is known, are left out.
    headings = [name for name in ("pipelines", *shape, *numbers) if any(cells[name] for cells in rows)]
    table = plain_table(*headings, numbers=numbers, gap=2 if width >= WIDE else 1)
    for cells in rows:
        table.add_row(*(cells[heading] for heading in headings))
    return table


def recompute_key(document: PlanDocument) -> tuple[str, ...]:
    """Return what the letters beside layers stand for, of those that there are."""
    met = {row.recompute for group in pipeline_groups(document) for row in group.stages}
    told = {
        "(h)": "half of the activations are recomputed in the backward pass",
        "(a)": "attention is recomputed in the backward pass",
        "(r)": "activations are recomputed in the backward pass",
    }
    letters = {mark(document, kind)[1].strip() for kind in met}
    return tuple(f"{letter} {line}" for letter, line in told.items() if letter in letters)


def _place(line: GroupLine) -> str:
    return f"{line.zone}\n{line.nodes} {line.market}" if line.zone else line.nodes
