"""Bars: memory of each stage against its limit, and where the iteration goes."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from sailor_cloud.model.document import PlanDocument, StageMemory
from sailor_cloud.report import text
from sailor_cloud.report.plan.memory_rows import memory_rows
from sailor_cloud.report.tables import plain_table
from sailor_cloud.report.terminal.bars import bar, bar_width

LARGEST_PARTS = 3
# From this share on, memory is called tight by its colour.
TIGHT = 0.9
# Columns that their list needs.
LARGEST_WIDTH = 48


def memory_table(document: PlanDocument, *, details: bool, ascii_only: bool, width: int) -> Table:
    """Return peak memory per device of each stage against what the device holds."""
    rows = memory_rows(document)
    bases = {row.basis for row in rows}
    columns = bar_width(width - LARGEST_WIDTH if details else width)
    # Over the bars, whose heading would be empty.
    basis = "" if len(bases) > 1 else "".join(bases)
    basis = basis if len(basis) <= columns else basis.replace(" ", "\n")
    headings = ("memory of", basis, "peak", "of limit", *(("largest parts",) if details else ()))
    table = plain_table(*headings, numbers=(basis, "peak", "of limit"))
    for row in rows:
        cells: list[str | Text] = [
            row.label if basis else f"{row.label}, {row.basis}",
            Text(bar(row.share, columns, ascii_only=ascii_only), style=_warmth(row.share)),
            text.size(row.memory.total_bytes),
            f"{text.share(row.share)} of {text.size(row.memory.limit_bytes)}",
        ]
        style = "red" if row.share > 1 else None
        table.add_row(*cells, *([_largest(row.memory)] if details else []), style=style)
    return table


def _warmth(share: float) -> str:
    return "red" if share > 1 else "yellow" if share > TIGHT else "green"


def waits_table(document: PlanDocument, *, ascii_only: bool, width: int) -> Table:
    """Return where the iteration of the busiest stage goes."""
    assert document.prediction is not None
    waits = document.prediction.waits
    table = plain_table("iteration", "", "time", "share", numbers=("", "time", "share"))
    parts = (
        ("compute", waits.compute_s),
        ("transfer", waits.transfer_s),
        ("bubble", waits.bubble_s),
        ("all-reduces", waits.sync_s),
    )
    whole = sum(spent for _, spent in parts)
    for name, spent in parts:
        share = spent / whole if whole else 0.0
        table.add_row(name, bar(share, bar_width(width), ascii_only=ascii_only), text.seconds(spent), text.share(share))
    return table


def _largest(row: StageMemory) -> str:
    largest = sorted(row.parts.items(), key=lambda part: -part[1])[:LARGEST_PARTS]
    return ", ".join(f"{name} {text.size(part)}" for name, part in largest)
