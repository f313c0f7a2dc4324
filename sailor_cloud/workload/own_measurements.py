"""Corrections of predictions from the owner's finished runs, for layers, links and memory, and what stays unknown.

A run's time error has parts from its layers, its network and chance; its peak memory error has parts from its tensors
and chance. All but chance are the same for other plans with these layers or links. So a linear regression on the runs
(a Gaussian posterior) yields the mean and the remaining spread.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

import numpy as np

from sailor_cloud import resources
from sailor_cloud.durable import replaced
from sailor_cloud.errors import DataError, RequestError

FILE = "measured_iterations.csv"
# The share of an accelerator's unknown that is the same for every model; judgement.
SAME_FOR_ALL_MODELS = 0.5
# A run's error is clipped to this many times the median error.
_MOST_HALVES = 5.0
# Corrections that narrow an unknown by less are not reported.
_LEFT_AT_MOST = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One plan that ran: a row of the table of measured iterations, whose first columns are those of Sailor.

    `nodes_per_stage_by_gpu` and `layers_per_stage` are empty if pipelines differ, the latter also under other schedules
    than 1F1B. `predicted_s` and `predicted_bytes` (all tensors of the fullest device) are without the owner's
    measurements. `…_error`: median errors of layers, network and chance as logarithms of the iteration, and of its
    memory. `memory_accelerator` is empty if `max_mem_bytes` counts more than tensors. `version` is that of the
    predicting program.
    """

    commit: str
    file: str
    model: str
    nodes_per_stage_by_gpu: str
    n_nodes: int
    n_gpus: int
    pp: int
    dp: int
    tp: int
    mbs: int
    gbs: int
    iteration_time_s: float
    reduce_grads_s: str
    max_mem_bytes: str
    layers_per_stage: str
    accelerator: str
    precision: str
    decoder: str
    sequence_length: int
    src_zone: str
    dst_zone: str
    predicted_s: float
    predicted_bytes: int
    layers_error: float
    network_error: float
    chance_error: float
    memory_accelerator: str
    memory_error: float
    memory_chance_error: float

    @property
    def layers(self) -> Hashable:
        return (self.accelerator, self.precision, self.decoder)

    @property
    def network(self) -> Hashable:
        return tuple(sorted((self.src_zone, self.dst_zone)))

    @property
    def time(self) -> _Finding:
        return _Finding(
            off=math.log(self.iteration_time_s / self.predicted_s),
            parts=((self.layers, self.layers_error), (self.network, self.network_error)),
            chance=self.chance_error,
        )

    @property
    def memory(self) -> _Finding | None:
        if not self.memory_accelerator or not self.max_mem_bytes:
            return None
        return _Finding(
            off=math.log(float(self.max_mem_bytes) / self.predicted_bytes),
            parts=(((self.memory_accelerator, self.precision, self.decoder), self.memory_error),),
            chance=self.memory_chance_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """The error of a run, as a logarithm; the unknowns that add up to it, with their errors, and chance."""

    off: float
    parts: tuple[tuple[Hashable, float], ...]
    chance: float

    @property
    def clipped(self) -> float:
        most = _MOST_HALVES * math.hypot(self.chance, *(error for _, error in self.parts))
        return max(-most, min(most, self.off))


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The mean of an unknown in units of its median error, and the share of that error that is left."""

    mean: float = 0.0
    left: float = 1.0
    runs: int = 0

    @property
    def is_informative(self) -> bool:
        """Whether measurements narrowed it enough to report."""
        return self.left <= _LEFT_AT_MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMeasurements:
    """The owner's runs as corrections of predictions."""

    runs: tuple[MeasuredRun, ...] = ()
    _known: dict[tuple[Hashable, bool], Belief] = field(default_factory=dict, repr=False, compare=False)

    def layers(self, accelerator: str, precision: str, model: str) -> Belief:
        return self._belief((accelerator, precision, model))

    def network(self, src_zone: str, dst_zone: str) -> Belief:
        return self._belief(tuple(sorted((src_zone, dst_zone))))

    def memory(self, accelerator: str, precision: str, model: str) -> Belief:
        return self._belief((accelerator, precision, model), memory=True)

    def _belief(self, unknown: Hashable, *, memory: bool = False) -> Belief:
        if (unknown, memory) not in self._known:
            found = [run.memory if memory else run.time for run in self.runs]
            self._known[unknown, memory] = _posterior(unknown, [each for each in found if each is not None])
        return self._known[unknown, memory]


def _posterior(unknown: Hashable, found: Sequence[_Finding]) -> Belief:
    """Return what runs say about an unknown; the computation is over the unknowns, which are fewer than the runs."""
    if not found:
        return Belief()
    known = list(dict.fromkeys(name for each in found for name, _ in each.parts))
    place = {name: number for number, name in enumerate(known)}
    between = np.array([[_alike(a, b) for b in known] for a in known])
    ours = np.array([_alike(unknown, name) for name in known])
    certainty, evidence = np.zeros((len(known), len(known))), np.zeros(len(known))
    runs = 0
    for each in found:
        size = np.zeros(len(known))
        for name, error in each.parts:
            size[place[name]] += error
        weight = 1.0 / max(each.chance, 1e-3) ** 2
        certainty += weight * np.outer(size, size)
        evidence += weight * each.clipped * size
        runs += bool(ours @ size)
    solved = np.linalg.solve(np.eye(len(known)) + certainty @ between, np.column_stack([evidence, certainty @ ours]))
    left = math.sqrt(max(0.0, 1.0 - float(ours @ solved[:, 1])))
    return Belief(mean=float(ours @ solved[:, 0]), left=left, runs=runs)


def _alike(one: Hashable, other: Hashable) -> float:
    """Return the correlation of two unknowns."""
    if one == other:
        return 1.0
    layers = isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 3
    return SAME_FOR_ALL_MODELS if layers and one[:2] == other[:2] else 0.0  # type: ignore[index]


def own_file() -> Path:
    """Return the file of the owner's measurements."""
    return resources.home() / FILE


def this_version() -> str:
    """Return the version of the program, whose predictions are compared with runs."""
    return version("sailor-cloud")


def read(path: Path) -> tuple[MeasuredRun, ...]:
    """Return the runs of a table that this version predicted. Raises RequestError that says how to do without it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return tuple(_run(row) for row in rows if row["commit"] == this_version())
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        why = f"it lacks the column {error}" if isinstance(error, KeyError) else str(error)
        raise RequestError(
            f"{path} is no table of 'sailor-cloud history --measurements': {why}; "
            "write it again, or move it away to plan without your measurements"
        ) from error


def text(runs: Iterable[MeasuredRun]) -> str:
    """Return runs as a table."""
    names = [each.name for each in fields(MeasuredRun)]
    lines = [",".join(names)]
    for run in runs:
        lines.append(",".join(_cell(getattr(run, name)) for name in names))
    return "\n".join(lines) + "\n"


def keep(runs: Iterable[MeasuredRun]) -> Path:
    """Keep runs for later plans, and return the file. Raises DataError."""
    path = own_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replaced(path) as file:
            file.write(text(runs))
    except OSError as error:
        raise DataError(f"can't keep measurements in {path}: {error}") from error
    return path


def _cell(value: object) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f'"{shown}"' if "," in shown else shown


def _run(row: dict[str, str]) -> MeasuredRun:
    kinds = {"int": int, "float": float, "str": str}
    run = MeasuredRun(**{each.name: kinds[str(each.type)](row[each.name]) for each in fields(MeasuredRun)})
    positive = [run.iteration_time_s, run.predicted_s, run.layers_error, float(run.predicted_bytes)]
    if run.max_mem_bytes:
        positive.append(float(run.max_mem_bytes))
    least = min(run.network_error, run.chance_error, run.memory_error, run.memory_chance_error)
    if not all(0.0 < value < math.inf for value in positive) or not 0.0 <= least < math.inf:
        raise ValueError(f"{run.file} has times, sizes or errors that are not positive")
    return run
