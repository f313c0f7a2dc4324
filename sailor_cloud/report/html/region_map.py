"""A map of the regions of a plan and of the traffic between them, where each region's place on earth is known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from sailor_cloud.catalog import Region
from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.echart import arcs, echart
from sailor_cloud.report.html.markup import Markup, element, joined
from sailor_cloud.report.html.traffic import told, volume_text
from sailor_cloud.report.plan.groups import nodes_usd_per_hour, plan_hardware

TITLE = "Map of the regions and the traffic between them"
HEIGHT = 420
# What is shown around the regions: at least so many degrees, and so much of their spread on each side.
LEAST_DEGREES, ROOM = 60.0, 0.22
# Latitudes of the map: the outlines of land end there.
SOUTH, NORTH = -60.0, 84.0


def region_map(document: PlanDocument, regions: Iterable[Region]) -> Markup:
    """Draw the plan's regions on a map; nothing when there is one region only, or one whose place isn't known."""
    known = {(region.provider, region.name): region for region in regions}
    home = {hardware.zone: (hardware.provider, hardware.region) for hardware in plan_hardware(document).values()}
    places = {
        key: (region.longitude, region.latitude)
        for key in sorted(set(home.values()))
        if (region := known.get(key)) and region.longitude is not None and region.latitude is not None
    }
    if len(places) < 2 or len(places) < len(set(home.values())):
        return Markup("")
    pairs: dict[tuple[Any, Any], list[LinkUse]] = {}
    for use in document.inputs.links:
        first, second = sorted((home[use.src_zone], home[use.dst_zone]))
        if first != second:
            pairs.setdefault((first, second), []).append(use)
    most = max((sum(use.bytes_per_iteration for use in uses) for uses in pairs.values()), default=0.0)
    lines = [
        {
            "coords": [places[first], places[second]],
            "name": volume_text(document, uses),
            "tip": "\n".join(line for use in uses for line in told(document, use)),
            "share": math.sqrt(sum(use.bytes_per_iteration for use in uses) / most) if most else 0.0,
        }
        for (first, second), uses in pairs.items()
    ]
    pins = [
        {"value": place, "name": f"{known[key].name}\n{known[key].location}", "tip": _told(document, known[key])}
        for key, place in places.items()
    ]
    geo = {
        "map": "land",
        "boundingCoords": _shown(list(places.values())),
        "roam": "move",
        "silent": True,
        "itemStyle": {"areaColor": "var(--line)", "borderColor": "var(--paper)", "borderWidth": 0.6},
        "left": 0,
        "right": 0,
        "top": 0,
        "bottom": 0,
    }
    point = {
        "type": "scatter",
        "coordinateSystem": "geo",
        "symbolSize": 16,
        "color": "var(--c1)",
        "data": pins,
        "z": 3,
        "label": {"show": True, "position": "bottom", "formatter": "{b}"},
        "labelLayout": {"moveOverlap": "shiftY"},
    }
    option = {"geo": geo, "legend": {"show": False}, "series": [*arcs(lines, on="geo", curveness=-0.25), point]}
    return joined(_land(), echart(TITLE, option, height=HEIGHT))


def _shown(places: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return the north-west and south-east corners of what is shown, in degrees of longitude and latitude."""
    west, east = min(x for x, _ in places), max(x for x, _ in places)
    south, north = min(y for _, y in places), max(y for _, y in places)
    wide = max(LEAST_DEGREES, (east - west) * (1 + 2 * ROOM)) / 2
    tall = max(LEAST_DEGREES / 2, (north - south) * (1 + 2 * ROOM)) / 2
    middle_x, middle_y = (west + east) / 2, (south + north) / 2
    return [[middle_x - wide, min(NORTH, middle_y + tall)], [middle_x + wide, max(SOUTH, middle_y - tall)]]


def _land() -> Markup:
    """Return closed lines around land, for the script: longitude and latitude in degrees, by turns."""
    data = json.loads(files("sailor_cloud.report.html").joinpath("land.json").read_text(encoding="utf-8"))
    rings = json.dumps(data["rings"], separators=(",", ":"))
    return element("script", Markup(rings), type="application/json", id="land")


def _told(document: PlanDocument, region: Region) -> str:
    nodes = [
        hardware
        for hardware in plan_hardware(document).values()
        if (hardware.provider, hardware.region) == (region.provider, region.name)
    ]
    rate, grid = nodes_usd_per_hour(nodes), region.grid_gco2_per_kwh
    lines = (
        f"{region.provider} {region.name}: {region.location}",
        f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} in {', '.join(sorted({node.zone for node in nodes}))}",
        "" if rate is None else f"{text.usd(rate)} USD/h",
        "" if grid is None else f"grid: {grid:.0f} g CO2 per kWh",
    )
    return "\n".join(line for line in lines if line)
