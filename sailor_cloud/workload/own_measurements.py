"""What the owner's finished runs say of layers and links: how predictions are corrected, and what stays unknown.

A run's error is that of its layers, of its network and of chance. Each of the first two is the same for other plans
with these layers or links, so that linear regression on the runs (a Gaussian posterior) tells its mean and the rest.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sailor_cloud import resources
from sailor_cloud.durable import replaced
from sailor_cloud.errors import DataError

Floats = NDArray[np.float64]

FILE = "measured_iterations.csv"
# How much of what is unknown of an accelerator is the same for every model; judgement.
SAME_FOR_ALL_MODELS = 0.5
# A run that is off by more than so many times what half of the runs are counts as one that is off by that.
_MOST_HALVES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One plan that ran: a row of the table of measured iterations, whose first columns are those of Sailor's.

    `nodes_per_stage_by_gpu` and `layers_per_stage` are empty where pipelines differ. `predicted_s` is without the
    owner's measurements; `…_error`: what half of the errors are below, of layers, network and chance, as logarithms of
    the iteration. `version` of the program predicted it.
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

    @property
    def layers(self) -> Hashable:
        return (self.accelerator, self.precision, self.decoder)

    @property
    def network(self) -> Hashable:
        return (self.src_zone, self.dst_zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The mean of an unknown in units of what half of its errors are below, and the share of them that is left."""

    mean: float = 0.0
    left: float = 1.0
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMeasurements:
    """The owner's runs, as corrections of predictions."""

    runs: tuple[MeasuredRun, ...] = ()
    _known: dict[Hashable, Belief] = field(default_factory=dict, repr=False, compare=False)

    def layers(self, accelerator: str, precision: str, model: str) -> Belief:
        return self._belief((accelerator, precision, model))

    def network(self, src_zone: str, dst_zone: str) -> Belief:
        return self._belief(tuple(sorted((src_zone, dst_zone))))

    def _belief(self, unknown: Hashable) -> Belief:
        if not self.runs:
            return Belief()
        if unknown not in self._known:
            self._known[unknown] = self._posterior(unknown)
        return self._known[unknown]

    def _posterior(self, unknown: Hashable) -> Belief:
        own = np.array([(run.layers_error, run.network_error) for run in self.runs])
        names = [(run.layers, run.network) for run in self.runs]
        chance = np.array([run.chance_error for run in self.runs])
        whole = np.sqrt((own**2).sum(axis=1) + chance**2)
        found = np.log([run.iteration_time_s / run.predicted_s for run in self.runs])
        found = np.clip(found, -_MOST_HALVES * whole, _MOST_HALVES * whole)
        pairs = list(zip(names, own, strict=True))
        between = np.array([[_shared(a, b, x, y) for b, y in pairs] for a, x in pairs])
        to_runs = np.array(
            [sum(_alike(unknown, each) * own[i][k] for k, each in enumerate(names[i])) for i in range(len(own))]
        )
        solved = np.linalg.solve(between + np.diag(np.maximum(chance, 1e-3) ** 2), np.column_stack([found, to_runs]))
        left = math.sqrt(max(0.0, 1.0 - float(to_runs @ solved[:, 1])))
        return Belief(mean=float(to_runs @ solved[:, 0]), left=left, runs=int(np.count_nonzero(to_runs)))


def _alike(one: Hashable, other: Hashable) -> float:
    """Return how far two unknowns are the same."""
    if one == other:
        return 1.0
    layers = isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 3
    return SAME_FOR_ALL_MODELS if layers and one[:2] == other[:2] else 0.0  # type: ignore[index]


def _shared(one: tuple[Hashable, ...], other: tuple[Hashable, ...], ours: Floats, theirs: Floats) -> float:
    """Return the covariance of two sums of unknowns with these errors."""
    return sum(
        _alike(a, b) * float(x * y) for a, x in zip(one, ours, strict=True) for b, y in zip(other, theirs, strict=True)
    )


def own_file() -> Path:
    """Return where the owner's measurements are kept."""
    return resources.home() / FILE


def this_version() -> str:
    """Return the version of the program whose predictions runs are held against."""
    return version("sailor-cloud")


def read(path: Path) -> tuple[MeasuredRun, ...]:
    """Return the runs of a table that this version predicted. Raises DataError that says how to do without it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return tuple(_run(row) for row in rows if row["commit"] == this_version())
    except (OSError, KeyError, ValueError, TypeError) as error:
        told = f"{path} is no table of 'sailor-cloud history --measurements': {error!r}"
        raise DataError(f"{told}; write it again, or delete it to plan without your measurements") from error


def text(runs: Iterable[MeasuredRun]) -> str:
    """Return runs as a table."""
    names = [each.name for each in fields(MeasuredRun)]
    lines = [",".join(names)]
    for run in runs:
        lines.append(",".join(_cell(getattr(run, name)) for name in names))
    return "\n".join(lines) + "\n"


def keep(runs: Iterable[MeasuredRun]) -> Path:
    """Keep runs for plans to come, and return the file. Raises DataError."""
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
    positive = (run.iteration_time_s, run.predicted_s, run.layers_error)
    if not all(0.0 < value < math.inf for value in positive) or not run.network_error >= 0.0 <= run.chance_error:
        raise ValueError(f"{run.file} has times or errors that are not positive")
    return run
