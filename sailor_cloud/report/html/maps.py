"""Zones and regions of a plan, with the traffic between them and its price."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

from sailor_cloud.catalog import Region
from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.charts import arcs, echart
from sailor_cloud.report.markup import Markup, element, joined
from sailor_cloud.report.plan.groups import hardware_name, nodes_usd_per_hour, plan_hardware
from sailor_cloud.units import GB, SECONDS_PER_HOUR


def gigabytes(document: PlanDocument, use: LinkUse) -> float:
    """GB of the whole run, or of one hour if there is no number of steps."""
    assert document.prediction is not None
    steps = document.job.training.steps or SECONDS_PER_HOUR / document.prediction.iteration_s_replay
    return use.bytes_per_iteration * steps / GB


def volume_text(document: PlanDocument, uses: list[LinkUse]) -> str:
    """Return the volume of some links and, if prices are known, its cost."""
    amounts = [gigabytes(document, use) for use in uses]
    carried = f"{text.amount(sum(amounts))} GB"
    prices = [use.usd_per_gb for use in uses if use.usd_per_gb is not None]
    if len(prices) < len(uses):
        return carried
    usd = sum(amount * price for amount, price in zip(amounts, prices, strict=True))
    return f"{carried}, {text.usd(usd)} USD"


def link_text(document: PlanDocument, use: LinkUse) -> list[str]:
    """Return the traffic with its price, and its link."""
    kind = "measured" if use.measured else "estimated, not measured,"
    span = "" if document.job.training.steps else " an hour"
    amount = gigabytes(document, use)
    price = use.usd_per_gb
    costs = "" if price is None else f" at {text.usd(price)} USD/GB = {text.usd(amount * price)} USD"
    return [
        f"{use.src_zone} to {use.dst_zone}: {text.amount(amount)} GB{span}{costs}",
        f"  {use.bandwidth_bytes_per_s / 125e6:.3g} Gbit/s, {use.rtt_ms:.3g} ms, {kind} {use.as_of.isoformat()}",
    ]


ZONE_TITLE = "Zones of the plan and the traffic between them"


def zone_map(document: PlanDocument) -> Markup:
    """Draw zones in a column, region by region, and an arc for each pair with traffic; empty for one zone."""
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
            "tip": "\n".join(
                [volume_text(document, uses), *(line for use in uses for line in link_text(document, use))]
            ),
            "share": math.sqrt(sum(use.bytes_per_iteration for use in uses) / most) if most else 0.0,
        }
        for (first, second), uses in pairs.items()
    ]
    dots = [{"value": [0, rows[zone]], "tip": _zone_tip(document, zone)} for _, _, zone in places]
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
            "data": [_zone_tip(document, zone, brief=True) for _, _, zone in places],
        },
        "series": [
            *arcs(lines, on="cartesian2d", curveness=-1.0, named=False),
            {"type": "scatter", "symbolSize": 18, "color": "var(--c1)", "data": dots, "z": 3},
        ],
    }
    return echart(ZONE_TITLE, option, height=40 + 80 * len(places))


def _zone_tip(document: PlanDocument, zone: str, *, brief: bool = False) -> str:
    """Return a zone with its nodes; `brief`: only devices and price."""
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


REGION_TITLE = "Map of the regions and the traffic between them"
HEIGHT = 420
# The map's area around the regions: its least degrees, and its margin on each side as a share of their spread.
LEAST_DEGREES, ROOM = 60.0, 0.22
# The map's latitudes: the outlines of land end there.
SOUTH, NORTH = -60.0, 84.0


def region_map(document: PlanDocument, regions: Iterable[Region]) -> Markup:
    """Draw the plan's regions on a map; empty if there is only one region, or if a region's place is unknown."""
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
            "tip": "\n".join(line for use in uses for line in link_text(document, use)),
            "share": math.sqrt(sum(use.bytes_per_iteration for use in uses) / most) if most else 0.0,
        }
        for (first, second), uses in pairs.items()
    ]
    pins = [
        {"value": place, "name": f"{known[key].name}\n{known[key].location}", "tip": _region_tip(document, known[key])}
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
    return joined(_land(), echart(REGION_TITLE, option, height=HEIGHT))


def _shown(places: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return the north-west and south-east corners of the visible area, in degrees of longitude and latitude."""
    west, east = min(x for x, _ in places), max(x for x, _ in places)
    south, north = min(y for _, y in places), max(y for _, y in places)
    wide = max(LEAST_DEGREES, (east - west) * (1 + 2 * ROOM)) / 2
    tall = max(LEAST_DEGREES / 2, (north - south) * (1 + 2 * ROOM)) / 2
    middle_x, middle_y = (west + east) / 2, (south + north) / 2
    return [[middle_x - wide, min(NORTH, middle_y + tall)], [middle_x + wide, max(SOUTH, middle_y - tall)]]


def _land() -> Markup:
    """Return closed outlines of land for the script: alternating longitude and latitude in degrees."""
    data = json.loads(files("sailor_cloud.report.html").joinpath("land.json").read_text(encoding="utf-8"))
    rings = json.dumps(data["rings"], separators=(",", ":"))
    return element("script", Markup(rings), type="application/json", id="land")


def _region_tip(document: PlanDocument, region: Region) -> str:
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
