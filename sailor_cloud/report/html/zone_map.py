"""The zones of a plan, their nodes, and the traffic between them with its price."""

from __future__ import annotations

import math
from collections import Counter

from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.echart import arcs, echart
from sailor_cloud.report.html.markup import Markup
from sailor_cloud.report.html.traffic import told, volume_text
from sailor_cloud.report.plan.groups import hardware_name, nodes_usd_per_hour, plan_hardware

TITLE = "Zones of the plan and the traffic between them"


def zone_map(document: PlanDocument) -> Markup:
    """Draw zones below one another, region by region, and an arc for each pair with traffic; nothing for one zone."""
    used = plan_hardware(document).values()
    places = sorted({(hardware.provider, hardware.region, hardware.zone) for hardware in used})
    if len(places) < 2:
        return Markup("")
    rows = {zone: row for row, (_, _, zone) in enumerate(places)}
    pairs: dict[tuple[str, str], list[LinkUse]] = {}
    for use in document.inputs.links:
        if use.src_zone != use.dst_zone:
            first, second = sorted((use.src_zone, use.dst_zone), key=lambda zone: -rows[zone])
            pairs.setdefault((first, second), []).append(use)
    most = max((sum(use.bytes_per_iteration for use in uses) for uses in pairs.values()), default=0.0)
    lines = [
        {
            "coords": [[0, rows[first]], [0, rows[second]]],
            "tip": "\n".join([volume_text(document, uses), *(line for use in uses for line in told(document, use))]),
            "share": math.sqrt(sum(use.bytes_per_iteration for use in uses) / most) if most else 0.0,
        }
        for (first, second), uses in pairs.items()
    ]
    dots = [{"value": [0, rows[zone]], "tip": _told(document, zone)} for _, _, zone in places]
    option = {
        "grid": {"left": 12, "right": 24, "top": 12, "bottom": 12, "containLabel": True},
        "legend": {"show": False},
        "xAxis": {"type": "value", "min": -0.02, "max": 1, "show": False},
        "yAxis": {
            "type": "category",
            "inverse": True,
            "axisLine": {"show": False},
            "axisTick": {"show": False},
            "splitLine": {"show": False},
            "axisLabel": {"lineHeight": 16},
            "data": [_told(document, zone, brief=True) for _, _, zone in places],
        },
        "series": [
            *arcs(lines, on="cartesian2d", curveness=-1.0, named=False),
            {"type": "scatter", "symbolSize": 18, "color": "var(--c1)", "data": dots, "z": 3},
        ],
    }
    return echart(TITLE, option, height=40 + 80 * len(places))


def _told(document: PlanDocument, zone: str, *, brief: bool = False) -> str:
    """Return a zone with its nodes; `brief`: with devices and price only."""
    nodes = [hardware for hardware in plan_hardware(document).values() if hardware.zone == zone]
    home = f"{nodes[0].provider} {nodes[0].region}"
    rate = nodes_usd_per_hour(nodes)
    price = "" if rate is None else f"{text.usd(rate)} USD/h"
    if not brief:
        names = Counter(hardware_name(hardware) for hardware in nodes)
        lines = [f"{home}, {zone}", *(f"{count} x {name}" for name, count in sorted(names.items())), price]
    else:
        counts: Counter[str] = Counter()
        for hardware in nodes:
            counts[hardware.accelerator] += hardware.accelerator_count
        lines = [zone, ", ".join(f"{count} {name}" for name, count in sorted(counts.items())), price]
    return "\n".join(line for line in lines if line)
