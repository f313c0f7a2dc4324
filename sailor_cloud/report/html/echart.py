"""Charts that the bundled ECharts draws; where scripts are blocked, the tables beside them stand alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from sailor_cloud.report.html.markup import Markup, element

# What is between points and the edge of a chart, and how a chart is zoomed: with the wheel, or by dragging the bar.
_GRID = {"left": 24, "right": 24, "top": 56, "bottom": 44, "containLabel": True}
_THINNEST, _THICKEST = 1.5, 8.0
_LEGEND = {"top": 0, "left": 0, "type": "scroll"}


def echart(title: str, option: dict[str, Any], *, height: int, canvas: bool = False) -> Markup:
    """Return the place of a chart. `option` is ECharts'; data items may have a `tip` of several lines.

    Colours are names of the page's own, as in `var(--c1)`. `canvas`: for charts of thousands of shapes, which would
    each be an element of the page otherwise.
    """
    shown = {"grid": _GRID, "legend": _LEGEND, "tooltip": {"trigger": "item", "confine": True}, **option}
    content = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return element(
        "div",
        class_="echart",
        role="img",
        aria_label=title,
        data_option=content,
        data_renderer="canvas" if canvas else None,
        style=f"height: {height}px",
    )


def arcs(lines: Sequence[dict[str, Any]], *, on: str, curveness: float, named: bool = True) -> list[dict[str, Any]]:
    """Return the series of arcs between places, as wide as their `share` of the busiest, which is 0 to 1."""
    return [
        {
            "type": "lines",
            "coordinateSystem": on,
            "color": "var(--c2)",
            "lineStyle": {
                "curveness": curveness,
                "opacity": 0.75,
                "width": _THINNEST + (_THICKEST - _THINNEST) * share,
            },
            "label": {"show": named, "position": "middle", "formatter": "{b}"},
            "labelLayout": {"moveOverlap": "shiftY"},
            "emphasis": {"lineStyle": {"opacity": 1}},
            "data": [{key: value for key, value in line.items() if key != "share"}],
        }
        for line in lines
        for share in (float(line["share"]),)
    ]


def points_option(series: Sequence[dict[str, Any]], *, across: str, up: str, from_zero: bool = False) -> dict[str, Any]:
    """Return the option of a chart of points that can be zoomed; `across` and `up` are the titles of its axes."""
    axis = {"type": "value", "scale": not from_zero, "boundaryGap": ["8%", "12%"], "nameLocation": "middle"}
    return {
        "xAxis": {**axis, "name": across, "nameGap": 28},
        "yAxis": {**axis, "name": up, "nameLocation": "end", "nameTextStyle": {"align": "left"}},
        "dataZoom": [{"type": "inside"}, {"type": "inside", "orient": "vertical"}],
        "series": list(series),
    }


def script() -> Markup:
    """Return the library and what draws the charts of a page with it."""
    library = files("sailor_cloud.report.html.vendor").joinpath("echarts.min.js").read_text(encoding="utf-8")
    own = files("sailor_cloud.report.html").joinpath("charts.js").read_text(encoding="utf-8")
    return Markup(f"<script>{library}</script><script>{own}</script>")
