"""One iteration as a Gantt chart: what each stage computes, sends and all-reduces, and when it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.echart import echart
from sailor_cloud.report.html.markup import Markup
from sailor_cloud.report.plan.groups import pipeline_groups
from sailor_cloud.simulator import TimelineSpan

TITLE = "Schedule of one iteration"

# Kinds later in the list cover earlier ones: of what goes over the network, what no computation hides is seen.
_KINDS = {
    "transfer": ("c2", ("receive_activation", "receive_gradient", "send_activation", "send_gradient")),
    "all-reduce or gather": ("c5", ("sync", "gather")),
    "forward": ("c1", ("forward",)),
    "backward": ("c3", ("backward", "weight_gradients")),
    "optimizer": ("c4", ("update",)),
}


def schedule_chart(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> Markup:
    """Draw one pipeline of each group; where a stage does nothing, its row shows the bubble."""
    assert document.plan is not None
    places = {pipeline.id: place for place, pipeline in enumerate(document.plan.pipelines)}
    stages = [(group, stage) for group in pipeline_groups(document) for stage in group.stages]
    rows = {(places[group.pipelines[0]], stage.index): row for row, (group, stage) in enumerate(stages)}
    shown = [span for span in timeline if (span.pipeline, span.stage) in rows]
    if not shown:
        return Markup("")
    end_s = max(span.end_s for span in timeline)
    busy = [0.0] * len(stages)
    for span in shown:
        busy[rows[span.pipeline, span.stage]] += span.end_s - span.start_s
    waits = [f"waiting: {text.seconds(max(0.0, end_s - each))} of {text.seconds(end_s)}" for each in busy]
    # `spans` is charts.js's: rows of (row, start, end, what it shows where it is pointed at).
    series: list[dict[str, Any]] = [
        {
            "name": "bubble",
            "type": "spans",
            "color": "var(--line)",
            "data": [
                [row, 0.0, end_s, f"{waits[row]}\n{stage.hardware.zone}"] for row, (_, stage) in enumerate(stages)
            ],
        }
    ]
    for name, (colour, kinds) in _KINDS.items():
        data = [
            [rows[span.pipeline, span.stage], _rounded(span.start_s), _rounded(span.end_s), _what(span)]
            for span in shown
            if span.what in kinds
        ]
        series.append({"name": name, "type": "spans", "color": f"var(--{colour})", "data": data})
    option = {
        "yAxis": {
            "type": "category",
            "inverse": True,
            "axisTick": {"show": False},
            "data": [
                f"{text.ranges(group.pipelines)} / stage {stage.index}, {stage.hardware.accelerator}"
                for group, stage in stages
            ],
        },
        "xAxis": {
            "type": "value",
            "name": "seconds",
            "nameLocation": "middle",
            "nameGap": 28,
            "max": end_s,
            "axisLabel": {"showMaxLabel": False},
        },
        "dataZoom": [{"type": "inside", "filterMode": "weakFilter"}],
        "series": series,
    }
    return echart(TITLE, option, height=100 + 26 * len(stages), canvas=True)


def _what(span: TimelineSpan) -> str:
    name = "all-reduce" if span.what == "sync" else span.what.replace("_", " ")
    if span.microbatch is None:
        return name
    chunk = "" if span.chunk is None else f", range {span.chunk + 1}"
    return f"{name} of microbatch {span.microbatch}{chunk}"


def _rounded(at_s: float) -> float:
    return float(f"{at_s:.6g}")
