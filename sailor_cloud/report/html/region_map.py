"""A map of the regions of a plan and of the traffic between them, where each region's place on earth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from sailor_cloud.catalog import Region
from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.report import text
from sailor_cloud.report.groups import nodes_usd_per_hour, plan_hardware
from sailor_cloud.report.html.svg import Markup, Scale, chart, element, joined, label, number
from sailor_cloud.report.html.traffic import told, volume_text

WIDTH, HEIGHT, RADIUS = 1000.0, 440.0, 9.0
# What is shown around the regions: at least so many degrees, and so much of their spread on each side.
LEAST_DEGREES, ROOM = 60.0, 0.22
THINNEST, THICKEST = 1.5, 8.0
# Labels of regions nearer than this many pixels go to different sides of their points.
CROWDED = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pin:
    region: Region
    x: float
    y: float
    lines: tuple[str, ...]


def region_map(document: PlanDocument, regions: Iterable[Region]) -> Markup:
    """Draw the plan's regions on a map; nothing when there is one region only, or one whose place isn't known."""
    known = {(region.provider, region.name): region for region in regions}
    used = sorted({(hardware.provider, hardware.region) for hardware in plan_hardware(document).values()})
    found = [known[key] for key in used if key in known]
    places = [(region.longitude, region.latitude) for region in found]
    if len(used) < 2 or len(found) < len(used) or any(None in place for place in places):
        return Markup("")
    across, up = _scales([(x, y) for x, y in places if x is not None and y is not None])
    pins = {(region.provider, region.name): _pin(document, region, across, up) for region in found}
    parts = [element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, class_="sea"), _land(across, up)]
    parts += _routes(document, pins)
    parts += _points(sorted(pins.values(), key=lambda pin: pin.x))
    return chart(WIDTH, HEIGHT, "Map of the regions and the traffic between them", *parts)


def _scales(places: Sequence[tuple[float, float]]) -> tuple[Scale, Scale]:
    """Return the scales of longitude and latitude: one plate carrée, undistorted at the middle of the places."""
    west, east = min(x for x, _ in places), max(x for x, _ in places)
    south, north = min(y for _, y in places), max(y for _, y in places)
    middle_x, middle_y = (west + east) / 2, (south + north) / 2
    squeeze = math.cos(math.radians(middle_y))
    wide = max(LEAST_DEGREES, (east - west) * (1 + 2 * ROOM))
    tall = max(LEAST_DEGREES * HEIGHT / WIDTH, (north - south) * (1 + 2 * ROOM))
    # Degrees of latitude that one picture shows, so that both spreads fit.
    shown = max(tall, wide * squeeze * HEIGHT / WIDTH)
    half_x, half_y = shown / squeeze * WIDTH / HEIGHT / 2, shown / 2
    return (
        Scale(middle_x - half_x, middle_x + half_x, 0.0, WIDTH),
        Scale(middle_y + half_y, middle_y - half_y, 0.0, HEIGHT),
    )


@cache
def _outlines() -> tuple[tuple[float, ...], ...]:
    """Return closed lines around land: longitude and latitude in degrees, by turns."""
    data = json.loads(files("sailor_cloud.report.html").joinpath("land.json").read_text(encoding="utf-8"))
    return tuple(tuple(ring) for ring in data["rings"])


def _land(across: Scale, up: Scale) -> Markup:
    drawn = []
    for ring in _outlines():
        xs, ys = [across(x) for x in ring[::2]], [up(y) for y in ring[1::2]]
        if max(xs) < 0 or min(xs) > WIDTH or max(ys) < 0 or min(ys) > HEIGHT:
            continue
        drawn.append("M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in zip(xs, ys, strict=True)) + "Z")
    return element("path", d="".join(drawn), class_="land")


def _pin(document: PlanDocument, region: Region, across: Scale, up: Scale) -> _Pin:
    assert region.longitude is not None
    assert region.latitude is not None
    nodes = [
        hardware
        for hardware in plan_hardware(document).values()
        if (hardware.provider, hardware.region) == (region.provider, region.name)
    ]
    rate = nodes_usd_per_hour(nodes)
    zones = sorted({hardware.zone for hardware in nodes})
    grid = region.grid_gco2_per_kwh
    lines = (
        f"{region.provider} {region.name}: {region.location}",
        f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} in {', '.join(zones)}",
        "" if rate is None else f"{text.usd(rate)} USD/h",
        "" if grid is None else f"grid: {grid:.0f} g CO2 per kWh",
    )
    return _Pin(
        region=region,
        x=across(region.longitude),
        y=up(region.latitude),
        lines=tuple(line for line in lines if line),
    )


def _routes(document: PlanDocument, pins: dict[tuple[Provider, str], _Pin]) -> list[Markup]:
    home = {hardware.zone: (hardware.provider, hardware.region) for hardware in plan_hardware(document).values()}
    pairs: dict[tuple[tuple[Provider, str], tuple[Provider, str]], list[LinkUse]] = {}
    for use in document.inputs.links:
        first, second = sorted((home[use.src_zone], home[use.dst_zone]))
        if first != second:
            pairs.setdefault((first, second), []).append(use)
    most = max((_carried(uses) for uses in pairs.values()), default=0.0)
    drawn = []
    for (first, second), uses in pairs.items():
        drawn += _route(document, pins[first], pins[second], uses, _carried(uses) / most if most else 0.0)
    return drawn


def _route(document: PlanDocument, a: _Pin, b: _Pin, uses: list[LinkUse], share: float) -> list[Markup]:
    """Draw an arc that bends towards the top, as wide as the root of its share of the busiest route's bytes."""
    length = math.hypot(b.x - a.x, b.y - a.y)
    middle_x, middle_y = (a.x + b.x) / 2, (a.y + b.y) / 2
    bend = min(0.22 * length, middle_y - 26.0)
    tip = "\n".join(line for use in uses for line in told(document, use))
    path = f"M{number(a.x)} {number(a.y)}Q{number(middle_x)} {number(middle_y - 2 * bend)} {number(b.x)} {number(b.y)}"
    width = THINNEST + (THICKEST - THINNEST) * math.sqrt(share)
    shown = volume_text(document, uses)
    return [
        element("path", d=path, class_="arc", stroke_width=width, data_tip=tip, tabindex=0),
        label(middle_x, middle_y - bend - 8 - width, shown, anchor="middle", class_="small halo"),
    ]


def _points(pins: Sequence[_Pin]) -> list[Markup]:
    drawn = []
    for place, pin in enumerate(pins):
        crowded = any(abs(other.x - pin.x) < CROWDED for other in pins if other is not pin)
        below = pin.y + RADIUS + 14 + (28 if crowded and place % 2 else 0)
        anchor = "start" if pin.x < CROWDED else "end" if pin.x > WIDTH - CROWDED else "middle"
        drawn.append(
            joined(
                element(
                    "circle", cx=pin.x, cy=pin.y, r=RADIUS, class_="zone", data_tip="\n".join(pin.lines), tabindex=0
                ),
                label(pin.x, below, f"{pin.region.name}", anchor=anchor, class_="strong small halo"),
                label(pin.x, below + 14, pin.region.location, anchor=anchor, class_="small halo muted"),
            )
        )
    return drawn


def _carried(uses: Sequence[LinkUse]) -> float:
    return sum(use.bytes_per_iteration for use in uses)
