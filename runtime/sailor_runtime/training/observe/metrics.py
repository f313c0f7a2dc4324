"""The parts of each iteration's time: JSON lines and Prometheus text, written on the node of rank 0."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.pipeline.layout import Atom, Place
from sailor_runtime.training.pipeline.spans import COMPUTING, WAITING, Activity, Span, total_s

PARTS = ("compute", "transfer", "bubble", "sync")
_PROMETHEUS_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One rank's iteration; the four parts sum to it.

    `compute_s` are the passes and the optimizer; `transfer_s` the time that its receives waited for the wire; `sync_s`
    the all-reduces; `bubble_s` the rest: waiting for other ranks.
    """

    iteration_s: float
    compute_s: float
    transfer_s: float
    sync_s: float
    memory_peak_bytes: float

    @property
    def bubble_s(self) -> float:
        return max(0.0, self.iteration_s - self.compute_s - self.transfer_s - self.sync_s)

    def row(self) -> list[float]:
        return [float(getattr(self, field.name)) for field in fields(self)]


ROW_LENGTH = len(fields(Spent))


def spent(
    spans: list[Span], iteration_s: float, wire_s: Mapping[tuple[Activity, int], float], memory_peak_bytes: float
) -> Spent:
    """Return one rank's iteration by parts, as far as it alone can know.

    wire_s: seconds of one tensor on an idle link, by kind of receive and range of layers. No receive counts for longer:
    beyond that, the sender had not computed the tensor yet.
    """
    waits = [span for span in spans if span.activity in WAITING]
    transfer = sum(min(span.seconds, wire_s.get((span.activity, span.chunk), 0.0)) for span in waits)
    gathers = total_s(spans, Activity.GATHER)
    return Spent(
        iteration_s=iteration_s,
        # Waits for weights are inside the first forward pass.
        compute_s=total_s(spans, *COMPUTING) - gathers,
        transfer_s=transfer + total_s(spans, Activity.SEND),
        sync_s=total_s(spans, Activity.SYNC) + gathers,
        memory_peak_bytes=memory_peak_bytes,
    )


def spent_of_rows(rows: Sequence[Sequence[float]], partners: Mapping[int, Iterable[int]]) -> tuple[Spent, ...]:
    """Return every rank's iteration, with all-reduces as short as for the last rank to join.

    An early rank waits inside the all-reduce for its partners; that wait counts as bubble.
    """
    names = [field.name for field in fields(Spent)]
    every = [Spent(**dict(zip(names, row, strict=True))) for row in rows]
    return tuple(
        Spent(**{**asdict(one), "sync_s": min(every[other].sync_s for other in (rank, *partners.get(rank, ())))})
        for rank, one in enumerate(every)
    )


def partners(atoms: Iterable[Atom]) -> dict[int, set[int]]:
    """Return the ranks with which each rank all-reduces gradients."""
    found: dict[int, set[int]] = {}
    for holders in {atom.holders for atom in atoms if len(atom.holders) > 1}:
        for rank in holders:
            found.setdefault(rank, set()).update(other for other in holders if other != rank)
    return found


def memory_peak_bytes(device: torch.device) -> float:
    """Return the peak memory so far: of tensors on a CUDA device, of the whole process on a processor."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


class Metrics:
    """The metrics of one generation in a folder: `gN.jsonl`, and `metrics.prom` with the newest step.

    A step is written after all ranks have reported their times, which they do in the next step's sums.
    """

    def __init__(self, folder: Path, spec: RunSpec, places: Mapping[int, Place], atoms: Iterable[Atom]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._spec, self._places = spec, places
        self._partners = partners(atoms)
        self._lines = (folder / f"g{spec.generation}.jsonl").open("a", encoding="utf-8")
        self._text = folder / "metrics.prom"
        self._waiting: dict[str, Any] | None = None
        self._text_at = 0.0

    def step(self, values: dict[str, Any], rows: Sequence[Sequence[float]]) -> None:
        """Record a step's values, and all ranks' rows of the previous step."""
        self._write(rows)
        self._waiting = values

    def close(self, rows: Sequence[Sequence[float]]) -> None:
        """Write the last step."""
        self._text_at = 0.0
        self._write(rows)
        self._lines.close()

    def _write(self, rows: Sequence[Sequence[float]]) -> None:
        if self._waiting is None:
            return
        ranks = [
            {
                "rank": rank,
                "pipeline": self._places[rank].pipeline,
                "stage": self._places[rank].stage,
                **{f"{part}_s": getattr(one, f"{part}_s") for part in PARTS},
                "memory_peak_bytes": int(one.memory_peak_bytes),
            }
            for rank, one in enumerate(spent_of_rows(rows, self._partners))
        ]
        record = {**self._waiting, "ranks": ranks}
        self._waiting = None
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        if time.monotonic() - self._text_at >= _PROMETHEUS_EVERY_S:
            self._text_at = time.monotonic()
            staged = self._text.with_suffix(".new")
            staged.write_text(prometheus(record, run=self._spec.run, generation=self._spec.generation))
            os.replace(staged, self._text)


_GAUGES = {
    "step": ("sailor_step", "Optimizer steps since the start of the run."),
    "loss": ("sailor_loss", "Mean loss of the step, nats per token."),
    "grad_norm": ("sailor_gradient_norm", "Norm of the whole model's gradient before clipping."),
    "learning_rate": ("sailor_learning_rate", "Learning rate of the step."),
    "tokens": ("sailor_tokens", "Tokens trained on since the start of the run."),
    "tokens_per_s": ("sailor_tokens_per_second", "Tokens of the step over its time."),
    "iteration_s": ("sailor_iteration_seconds", "Time of the step on rank 0."),
    "predicted_iteration_s": ("sailor_predicted_iteration_seconds", "Planned time of a step."),
}


def prometheus(record: Mapping[str, Any], *, run: str, generation: int) -> str:
    """Return one step in Prometheus' text format, for a collector of text files."""
    common = f'run="{run}",generation="{generation}"'
    lines = []
    for name, (metric, what) in _GAUGES.items():
        if record.get(name) is not None:
            lines += [f"# HELP {metric} {what}", f"# TYPE {metric} gauge", f"{metric}{{{common}}} {record[name]!r}"]
    series = {
        "sailor_iteration_part_seconds": ("Parts of a rank's step time.", [(f"{part}_s", part) for part in PARTS]),
        "sailor_memory_peak_bytes": ("Peak memory of a rank so far.", [("memory_peak_bytes", None)]),
    }
    for metric, (what, columns) in series.items():
        lines += [f"# HELP {metric} {what}", f"# TYPE {metric} gauge"]
        for rank in record["ranks"]:
            labels = f'{common},rank="{rank["rank"]}",pipeline="{rank["pipeline"]}",stage="{rank["stage"]}"'
            for column, part in columns:
                own = labels if part is None else f'{labels},part="{part}"'
                lines.append(f"{metric}{{{own}}} {rank[column]!r}")
    return "\n".join(lines) + "\n"
