"""Writes a timeline in the trace event format that Perfetto and chrome://tracing draw as a Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sailor_cloud.model.plan import Plan
from sailor_cloud.simulator.timing.iteration import TimelineSpan

_MICROSECONDS = 1e6


def trace_events(plan: Plan, spans: Sequence[TimelineSpan]) -> dict[str, Any]:
    """Return one process per pipeline and one thread per stage; times in microseconds, as the format requires."""
    names: list[dict[str, Any]] = []
    for p, pipeline in enumerate(plan.pipelines):
        names.append(_name("process_name", p, 0, f"pipeline {pipeline.id}"))
        for s, stage in enumerate(pipeline.stages):
            title = f"stage {s}: layers {stage.layers_text} on {stage.node}, tp {stage.tp}"
            names.append(_name("thread_name", p, s, title))
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *(_event(span) for span in spans)]}


def _name(kind: str, pipeline: int, stage: int, title: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pipeline, "tid": stage, "args": {"name": title}}


def _event(span: TimelineSpan) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": span.what,
        "ph": "X",
        "pid": span.pipeline,
        "tid": span.stage,
        "ts": round(span.start_s * _MICROSECONDS, 3),
        "dur": round((span.end_s - span.start_s) * _MICROSECONDS, 3),
    }
    if span.microbatch is not None:
        event["args"] = {"microbatch": span.microbatch}
        if span.chunk is not None:
            event["args"]["range"] = span.chunk + 1
    return event
