"""Peak memory of one device of each stage, by part, against what the device holds."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.echart import echart
from sailor_cloud.report.html.markup import Markup
from sailor_cloud.report.plan.memory_rows import memory_rows
from sailor_cloud.units import GIB, MIB

TITLE = "Memory of each stage against its limit"


def memory_chart(document: PlanDocument) -> Markup:
    rows = memory_rows(document)
    names = list(dict.fromkeys(part for row in rows for part in row.memory.parts))
    largest = max(max(row.memory.limit_bytes, row.memory.total_bytes) for row in rows)
    unit, unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    series: list[dict[str, object]] = [
        {
            "name": name,
            "type": "bar",
            "stack": "parts",
            "barWidth": "55%",
            "color": f"var(--c{place % 8 + 1})",
            "data": [
                {
                    "value": row.memory.parts.get(name, 0) / unit,
                    "tip": f"{row.label}\n{name}: {text.size(row.memory.parts.get(name, 0))} of "
                    f"{text.size(row.memory.total_bytes)}\nlimit {text.size(row.memory.limit_bytes)}",
                }
                for row in rows
            ],
        }
        for place, name in enumerate(names)
    ]
    limits = [
        {
            "value": [row.memory.limit_bytes / unit, place],
            "name": text.share(row.share),
            "tip": f"{row.label}\nlimit {text.size(row.memory.limit_bytes)}, {text.share(row.share)} used",
        }
        for place, row in enumerate(rows)
    ]
    series.append(
        {
            "name": "limit",
            "type": "scatter",
            "symbol": "rect",
            "symbolSize": [3, 22],
            "color": "var(--bad)",
            "data": limits,
            "label": {"show": True, "position": "right", "formatter": "{b}"},
        }
    )
    option = {
        "yAxis": {"type": "category", "inverse": True, "data": [row.label for row in rows]},
        "xAxis": {"type": "value", "name": unit_name, "nameLocation": "middle", "nameGap": 28},
        "grid": {"left": 24, "right": 64, "top": 40, "bottom": 40, "containLabel": True},
        "series": series,
    }
    return echart(TITLE, option, height=90 + 32 * len(rows))
