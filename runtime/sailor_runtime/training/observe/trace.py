"""One step of all ranks in the trace event format that Perfetto and chrome://tracing draw as a Gantt chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.pipeline.layout import Place
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.spans import Span

_MICROSECONDS = 1e6


def gather(spans: list[Span], world: World) -> list[list[Span]]:
    """Return the spans of every rank on rank 0, nothing elsewhere; a collective.

    All ranks count from the end of a common sum, so their clocks agree as well as they leave it together.
    """
    everyone: list[Any] | None = [None] * world.size if world.rank == 0 else None
    dist.gather_object(spans, everyone, group=world.everyone)
    return [] if everyone is None else everyone


def trace_events(spec: RunSpec, places: Mapping[int, Place], everyone: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """Return one process per pipeline and one thread per rank; times in microseconds, as the format requires."""
    events: list[dict[str, Any]] = [_name("process_name", p, 0, f"pipeline {p}") for p in range(len(spec.pipelines))]
    for rank, spans in enumerate(everyone):
        place = places[rank]
        stage = spec.pipelines[place.pipeline].stages[place.stage]
        layers = ", ".join(f"{each.start}-{each.stop - 1}" for each in stage.ranges)
        title = (
            f"rank {rank}, stage {place.stage}: layers {layers} on {stage.node}, "
            f"tp {place.tp_index + 1}/{len(stage.ranks)}"
        )
        events.append(_name("thread_name", place.pipeline, rank, title))
        events += [_event(span, place.pipeline, rank, chunks=len(stage.ranges)) for span in spans]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write(path: Path, trace: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace, separators=(",", ":")) + "\n", encoding="utf-8")


def _name(kind: str, process: int, thread: int, title: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": title}}


def _event(span: Span, process: int, thread: int, *, chunks: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": str(span.activity),
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": round(span.start_s * _MICROSECONDS, 3),
        "dur": round(span.seconds * _MICROSECONDS, 3),
    }
    if span.microbatch >= 0:
        event["args"] = {"microbatch": span.microbatch}
        if chunks > 1:
            event["args"]["range"] = span.chunk + 1
    return event
