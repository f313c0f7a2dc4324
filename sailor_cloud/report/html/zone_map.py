"""The zones of a plan, their nodes, and the traffic between them with its price."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.groups import hardware_name, nodes_usd_per_hour, plan_hardware
from sailor_cloud.report.html.svg import Markup, chart, element, label, number
from sailor_cloud.report.html.traffic import told, volume_text

WIDTH, MARGIN, RADIUS = 1000.0, 110.0, 22.0
THINNEST, THICKEST = 1.5, 9.0
STEEPNESS, HIGHEST = 0.3, 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    zone: str
    region: str
    x: float


def zone_map(document: PlanDocument) -> Markup:
    """Draw zones in a row, region by region, and an arc for each pair that exchanges traffic."""
    spots = _spots(document)
    pairs = _pairs(document)
    widest = max((abs(spots[a].x - spots[b].x) for a, b in pairs), default=0.0)
    ground = 40.0 + _height(widest) + RADIUS
    most = max((sum(use.bytes_per_iteration for use in uses) for uses in pairs.values()), default=1.0)
    parts = [
        part
        for place, (pair, uses) in enumerate(pairs.items())
        for part in _arc(document, spots[pair[0]], spots[pair[1]], uses, ground, most, place)
    ]
    parts += [part for spot in spots.values() for part in _zone(document, spot, ground)]
    return chart(WIDTH, ground + RADIUS + 82, "Zones of the plan and the traffic between them", *parts)


def _spots(document: PlanDocument) -> dict[str, _Spot]:
    used = plan_hardware(document).values()
    places = sorted({(hardware.provider, hardware.region, hardware.zone) for hardware in used})
    step = (WIDTH - 2 * MARGIN) / max(1, len(places) - 1)
    first = MARGIN if len(places) > 1 else WIDTH / 2
    return {
        zone: _Spot(zone=zone, region=f"{provider} {region}", x=first + step * place)
        for place, (provider, region, zone) in enumerate(places)
    }


def _pairs(document: PlanDocument) -> dict[tuple[str, str], list[LinkUse]]:
    pairs: dict[tuple[str, str], list[LinkUse]] = {}
    for use in document.inputs.links:
        if use.src_zone != use.dst_zone:
            first, second = sorted((use.src_zone, use.dst_zone))
            pairs.setdefault((first, second), []).append(use)
    return pairs


def _arc(
    document: PlanDocument, a: _Spot, b: _Spot, uses: list[LinkUse], ground: float, most: float, place: int
) -> list[Markup]:
    carried = sum(use.bytes_per_iteration for use in uses)
    width = THINNEST + (THICKEST - THINNEST) * math.sqrt(carried / most if most else 0.0)
    height = _height(abs(a.x - b.x))
    middle = (a.x + b.x) / 2
    path = (
        f"M{number(a.x)} {number(ground)}Q{number(middle)} {number(ground - 2 * height)} {number(b.x)} {number(ground)}"
    )
    tip = "\n".join(line for use in uses for line in told(document, use))
    shown = volume_text(document, uses)
    # Neighbouring arcs of one height would write over each other.
    y = ground - height - 8 - 14 * (place % 2)
    return [
        element("path", d=path, class_="arc", stroke_width=width, data_tip=tip, tabindex=0),
        label(middle, y, shown, anchor="middle", class_="small halo"),
    ]


def _height(distance: float) -> float:
    return min(HIGHEST, distance * STEEPNESS)


def _zone(document: PlanDocument, spot: _Spot, ground: float) -> list[Markup]:
    nodes = [hardware for hardware in plan_hardware(document).values() if hardware.zone == spot.zone]
    counts: Counter[str] = Counter()
    for hardware in nodes:
        counts[hardware.accelerator] += hardware.accelerator_count
    rate = nodes_usd_per_hour(nodes)
    devices = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    names = Counter(hardware_name(hardware) for hardware in nodes)
    tip = "\n".join([spot.zone, *(f"{count} x {name}" for name, count in sorted(names.items()))])
    under = [spot.region] if rate is None else [f"{text.usd(rate)} USD/h", spot.region]
    return [
        element("circle", cx=spot.x, cy=ground, r=RADIUS, class_="zone", data_tip=tip, tabindex=0),
        label(spot.x, ground + 5, str(len(nodes)), anchor="middle", class_="strong on-zone"),
        label(spot.x, ground + RADIUS + 18, spot.zone, anchor="middle", class_="strong small"),
        label(spot.x, ground + RADIUS + 34, f"{devices}", anchor="middle", class_="small"),
        *(
            label(spot.x, ground + RADIUS + 50 + 16 * place, line, anchor="middle", class_="small muted")
            for place, line in enumerate(under)
        ),
    ]
