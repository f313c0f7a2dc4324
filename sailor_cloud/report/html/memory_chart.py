"""Peak memory of one device of each stage, by part, against what the device holds."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.svg import Markup, Scale, box, chart, element, label, line, ticks
from sailor_cloud.report.memory_rows import MemoryRow, memory_rows
from sailor_cloud.units import GIB, MIB

WIDTH, LEFT, RIGHT = 1000.0, 200.0, 90.0
ROW, BAR, TOP = 30.0, 16.0, 34.0


def memory_chart(document: PlanDocument) -> Markup:
    rows = memory_rows(document)
    names = list(dict.fromkeys(part for row in rows for part in row.memory.parts))
    largest = max(max(row.memory.limit_bytes, row.memory.total_bytes) for row in rows)
    unit, unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    scale = Scale(0.0, largest, LEFT, WIDTH - RIGHT)
    height = TOP + ROW * len(rows) + 28
    parts = _legend(names)
    for tick in ticks(0.0, largest / unit):
        parts.append(line(scale(tick * unit), TOP, scale(tick * unit), height - 24, class_="grid"))
        parts.append(label(scale(tick * unit), height - 8, f"{tick:g}", anchor="middle", class_="muted"))
    parts.append(label(WIDTH - RIGHT + 12, height - 8, unit_name, class_="muted"))
    for place, row in enumerate(rows):
        parts += _row(row, names, TOP + place * ROW, scale)
    return chart(WIDTH, height, "Memory of each stage against its limit", *parts)


def _row(found: MemoryRow, names: list[str], top: float, scale: Scale) -> list[Markup]:
    row, middle = found.memory, top + ROW / 2
    parts = [label(LEFT - 10, middle + 4, found.label, anchor="end")]
    limit = scale(row.limit_bytes)
    parts.append(box(scale(0), middle - BAR / 2, limit - scale(0), BAR, class_="room"))
    start = 0.0
    for part, amount in row.parts.items():
        tip = f"{part}: {text.size(amount)} of {text.size(row.total_bytes)}\nlimit {text.size(row.limit_bytes)}"
        colour = f"bar c{names.index(part) % 8 + 1}"
        parts.append(
            box(scale(start), middle - BAR / 2, scale(start + amount) - scale(start), BAR, class_=colour, tip=tip)
        )
        start += amount
    parts.append(line(limit, middle - BAR / 2 - 4, limit, middle + BAR / 2 + 4, class_="limit"))
    share = found.share
    parts.append(
        label(max(limit, scale(start)) + 8, middle + 4, text.share(share), class_="bad" if share > 1 else None)
    )
    return parts


def _legend(names: list[str]) -> list[Markup]:
    parts: list[Markup] = []
    x = LEFT
    for place, name in enumerate(names):
        parts.append(element("rect", x=x, y=8.0, width=10, height=10, class_=f"bar c{place % 8 + 1}"))
        parts.append(label(x + 15, 17, name, class_="small"))
        x += 15 + 6.6 * len(name) + 16
    return parts
