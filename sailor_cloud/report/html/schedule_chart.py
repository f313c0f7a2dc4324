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
# Operations begin and end on this many marks of the iteration; hover.js counts them, too.
MARKS = 1_000_000

# Kinds later in the list cover earlier ones.
_CLASSES = {
    "receive_activation": "c2",
    "receive_gradient": "c2",
    "send_activation": "c2",
    "send_gradient": "c2",
    "forward": "c1",
    "backward": "c3",
    "sync": "c5",
    "gather": "c5",
    "update": "c4",
}
_LEGEND = (
    ("forward", "c1"),
    ("backward", "c3"),
    ("transfer", "c2"),
    ("sum or gather", "c5"),
    ("optimizer", "c4"),
    ("bubble", "bubble"),
)


def schedule_chart(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> Markup:
    """Draw one pipeline of each group; a stage that does nothing waits in a bubble.

    A page of thousands of shapes opens slowly, so each kind of operation of a stage is one shape, and what stands
    under the pointer is looked up in a list beside it.
    """
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
            body.append(_row(group, stage, mine, top, scale))
            top += ROW
        top += GAP
    for tick in ticks(0.0, end, most=8):
        parts.append(line(scale(tick), TOP - 4, scale(tick), top, class_="grid"))
        parts.append(label(scale(tick), top + 16, f"{tick:g} s", anchor="middle", class_="muted"))
    return chart(WIDTH, top + 26, "Schedule of one iteration", _hatch(), *parts, *body)


def _row(group: PipelineGroup, stage: StageRow, spans: list[TimelineSpan], top: float, scale: Scale) -> Markup:
    y = top + (ROW - BAR) / 2
    name = f"{text.ranges(group.pipelines)} / stage {stage.index}, {stage.hardware.accelerator}"
    waited = scale.high - sum(span.end_s - span.start_s for span in spans)
    tip = f"waiting: {text.seconds(max(0.0, waited))} of {text.seconds(scale.high)}\n{stage.hardware.zone}"
    return element(
        "g",
        label(LEFT - 10, top + ROW / 2 + 4, name, anchor="end"),
        box(LEFT, y, scale.end - LEFT, BAR, class_="bubble", tip=tip),
        *(_shape(colour, [span for span in spans if _CLASSES[span.what] == colour], y, scale) for colour in _colours()),
        data_seconds=repr(scale.high),
        data_kinds=",".join(kind.replace("_", " ") for kind in _CLASSES),
        data_operations=_operations(spans, scale),
    )


def _colours() -> tuple[str, ...]:
    return tuple(dict.fromkeys(_CLASSES.values()))


def _shape(colour: str, spans: list[TimelineSpan], y: float, scale: Scale) -> Markup:
    """Return all operations of one colour as one shape."""
    moves = []
    for span in spans:
        x, wide = scale(span.start_s), scale(span.end_s) - scale(span.start_s)
        moves.append(f"M{number(x)} {number(y)}h{number(wide)}v{number(BAR)}h{number(-wide)}z")
    return element("path", d="".join(moves), class_=f"op {colour}") if moves else Markup("")


def _operations(spans: list[TimelineSpan], scale: Scale) -> str:
    """Return kind, microbatch, begin and length in marks of every operation, those on top last."""
    order = {kind: place for place, kind in enumerate(_CLASSES)}
    listed = sorted(spans, key=lambda span: (order[span.what], span.start_s))
    return ";".join(
        f"{order[span.what]},{'' if span.microbatch is None else span.microbatch},"
        f"{_mark(span.start_s, scale)},{_mark(span.end_s, scale) - _mark(span.start_s, scale)}"
        for span in listed
    )


def _mark(at_s: float, scale: Scale) -> int:
    return round(at_s / scale.high * MARKS)


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
