"""One iteration as a Gantt chart: what each stage computes, moves, sums, and when it waits."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.groups import PipelineGroup, StageRow, pipeline_groups
from sailor_cloud.report.html.svg import Markup, Scale, box, chart, element, label, line, number, ticks
from sailor_cloud.simulator import TimelineSpan

WIDTH, LEFT, RIGHT = 1000.0, 200.0, 16.0
ROW, BAR, TOP, GAP = 26.0, 20.0, 34.0, 10.0
# With more operations than this, each kind of a stage is one shape, so that the file stays small.
MOST_TIPS = 4000

_CLASSES = {
    "forward": "c1",
    "backward": "c3",
    "receive_activation": "c2",
    "receive_gradient": "c2",
    "send_activation": "c2",
    "send_gradient": "c2",
    "sync": "c5",
    "update": "c4",
}
_LEGEND = (
    ("forward", "c1"),
    ("backward", "c3"),
    ("transfer", "c2"),
    ("gradient sum", "c5"),
    ("optimizer", "c4"),
    ("bubble", "bubble"),
)


def schedule_chart(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> Markup:
    """Draw one pipeline of each group; a stage that does nothing waits in a bubble."""
    groups = pipeline_groups(document)
    assert document.plan is not None
    places = {pipeline.id: place for place, pipeline in enumerate(document.plan.pipelines)}
    shown = {places[group.pipelines[0]] for group in groups}
    spans = [span for span in timeline if span.pipeline in shown]
    end = max((span.end_s for span in timeline), default=1.0)
    scale = Scale(0.0, end, LEFT, WIDTH - RIGHT)
    parts = _legend()
    body: list[Markup] = []
    top = TOP
    for group in groups:
        for stage in group.stages:
            mine = [s for s in spans if (s.pipeline, s.stage) == (places[group.pipelines[0]], stage.index)]
            body += _row(group, stage, mine, top, scale, tips=len(spans) <= MOST_TIPS)
            top += ROW
        top += GAP
    for tick in ticks(0.0, end, most=8):
        parts.append(line(scale(tick), TOP - 4, scale(tick), top, class_="grid"))
        parts.append(label(scale(tick), top + 16, f"{tick:g} s", anchor="middle", class_="muted"))
    return chart(WIDTH, top + 26, "Schedule of one iteration", _hatch(), *parts, *body)


def _row(
    group: PipelineGroup, stage: StageRow, spans: list[TimelineSpan], top: float, scale: Scale, *, tips: bool
) -> list[Markup]:
    y = top + (ROW - BAR) / 2
    name = f"{text.ranges(group.pipelines)} / stage {stage.index}, {stage.offer.accelerator}"
    waited = scale.high - sum(span.end_s - span.start_s for span in spans)
    tip = f"waiting: {text.seconds(max(0.0, waited))} of {text.seconds(scale.high)}\n{stage.offer.zone}"
    parts = [
        label(LEFT - 10, top + ROW / 2 + 4, name, anchor="end"),
        box(LEFT, y, scale.end - LEFT, BAR, class_="bubble", tip=tip),
    ]
    if tips:
        return parts + [_span(span, y, scale) for span in spans]
    return parts + _merged(spans, y, scale)


def _span(span: TimelineSpan, y: float, scale: Scale) -> Markup:
    which = "" if span.microbatch is None else f" of microbatch {span.microbatch}"
    took = text.seconds(span.end_s - span.start_s)
    tip = f"{span.what.replace('_', ' ')}{which}\n{took}, from {span.start_s:.4g} s to {span.end_s:.4g} s"
    x = scale(span.start_s)
    return box(x, y, scale(span.end_s) - x, BAR, class_=f"op {_CLASSES[span.what]}", tip=tip)


def _merged(spans: list[TimelineSpan], y: float, scale: Scale) -> list[Markup]:
    paths: dict[str, list[str]] = {}
    for span in spans:
        x, wide = scale(span.start_s), scale(span.end_s) - scale(span.start_s)
        move = f"M{number(x)} {number(y)}h{number(wide)}v{number(BAR)}h{number(-wide)}z"
        paths.setdefault(_CLASSES[span.what], []).append(move)
    return [element("path", d="".join(moves), class_=f"op {name}") for name, moves in paths.items()]


def _legend() -> list[Markup]:
    parts = []
    x = LEFT
    for name, colour in _LEGEND:
        parts.append(element("rect", x=x, y=8, width=10, height=10, class_=f"op {colour}"))
        parts.append(label(x + 15, 17, name, class_="small"))
        x += 15 + 6.6 * len(name) + 18
    return parts


def _hatch() -> Markup:
    stripe = element("path", d="M0 6L6 0", class_="stripe")
    pattern = element("pattern", stripe, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse")
    return element("defs", pattern)
