"""Writes measurements as compute and bandwidth profiles, which `plan` and `simulate` read."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from sailor_cloud import resources
from sailor_cloud.launch.profiling.profiler import is_local
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.network.curve_fit import FittedCurve, fit_curve, write_curves
from sailor_cloud.network.records import CurveScope
from sailor_cloud.workload import layer_costs
from sailor_cloud.workload.features import LayerKind, layer_features
from sailor_cloud.workload.fit import Fitted, Sample, fit
from sailor_cloud.workload.measured import MeasuredLayer, write_measured
from sailor_cloud.workload.profile_file import ProfileOrigin, write_profile
from sailor_cloud.workload.roofline import feature_guess
from sailor_runtime.profile.task import ProfileTask

MEMORY = "memory.csv"
_MEMORY_COLUMNS = ("accelerator", "tp", "microbatch_size", "peak_bytes", "how")
_INDEX = {LayerKind.EMBEDDING: 0, LayerKind.BLOCK: 1, LayerKind.HEAD: -1}
_LOCAL_ZONES = ("local-a", "local-b")
_LOCAL_ACCELERATORS = ("CPU-fast", "CPU-slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Floating-point operations of one layer's forward pass on one device: counted, and by the planner's formula."""

    layer_kind: LayerKind
    microbatch_size: int
    tp: int
    counted_flops: float
    closed_form_flops: float
    forward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Measurements of one accelerator; `peaks` are bytes of a device by microbatch size."""

    layers: tuple[MeasuredLayer, ...]
    fitted: Fitted
    peaks: tuple[dict[str, Any], ...]
    curve: FittedCurve | None
    work: tuple[Work, ...] = ()


def profile_of(rows: Sequence[dict[str, Any]], task: ProfileTask, decoder: Decoder, part: Accelerator) -> Profile:
    """Return the profile in a profiler's rows. Raises ValueError if no layer was measured."""
    wanted = [row for row in rows if row["kind"] == "layers" and row["tp"] in task.tps]
    layers = tuple(_layers(wanted, task, decoder))
    precision = Precision(task.precision)
    guess = feature_guess(part, precision) if part.peak_tflops(precision) is not None else None
    samples = [_sample(row, decoder, precision) for row in layers]
    links = [row["points"] for row in rows if row["kind"] == "link" and row["points"]]
    points = [(int(point["bytes"]), float(point["seconds"])) for point in (links[-1] if links else [])]
    return Profile(
        layers=layers,
        fitted=fit(samples) if guess is None else fit(samples, guess=guess),
        peaks=tuple(_peaks(rows)),
        curve=fit_curve(points) if points else None,
        work=tuple(_work(wanted, task, decoder)),
    )


def _work(rows: Sequence[dict[str, Any]], task: ProfileTask, decoder: Decoder) -> list[Work]:
    return [
        Work(
            layer_kind=kind,
            microbatch_size=row["microbatch_size"],
            tp=row["tp"],
            counted_flops=row["kinds"][kind.value]["forward_flops"],
            closed_form_flops=row["microbatch_size"]
            * float(layer_costs(decoder, task.sequence_length, row["tp"]).forward_flops[_INDEX[kind]]),
            forward_s=row["kinds"][kind.value]["forward_s"],
        )
        for row in rows
        if row["microbatch_size"] in task.microbatch_sizes
        for kind in (LayerKind.BLOCK, LayerKind.HEAD)
        # Older measurements have no counted operations.
        if "forward_flops" in row["kinds"][kind.value]
    ]


def _layers(rows: Sequence[dict[str, Any]], task: ProfileTask, decoder: Decoder) -> list[MeasuredLayer]:
    return [
        MeasuredLayer(
            model=decoder.name,
            layer_kind=kind,
            microbatch_size=row["microbatch_size"],
            sequence_length=task.sequence_length,
            tp=row["tp"],
            forward_s=row["kinds"][kind.value]["forward_s"],
            backward_s=row["kinds"][kind.value]["backward_s"],
            update_s=row["kinds"][kind.value]["update_s"],
            activation_bytes=round(row["kinds"][kind.value]["activation_bytes"]),
        )
        for row in rows
        if row["microbatch_size"] in task.microbatch_sizes
        for kind in LayerKind
    ]


def _sample(row: MeasuredLayer, decoder: Decoder, precision: Precision) -> Sample:
    shape = {"sequence_length": row.sequence_length, "microbatch_size": row.microbatch_size, "tp": row.tp}
    features = layer_features(decoder, precision=precision, **shape)
    return Sample(
        kind=row.layer_kind,
        model=row.model,
        **shape,
        features=features[row.layer_kind],
        parameters=int(layer_costs(decoder, row.sequence_length, row.tp).parameters[_INDEX[row.layer_kind]]),
        forward_s=row.forward_s,
        backward_s=row.backward_s,
        update_s=row.update_s,
    )


def _peaks(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        if row["kind"] == "memory":
            found.append({"how": "fake tensors, whole model", "tp": 1, **_peak(row)})
        elif row["kind"] == "layers" and row["peak_bytes"] > 0:
            found.append({"how": "allocator, shortened model", "tp": row["tp"], **_peak(row)})
    return found


def _peak(row: dict[str, Any]) -> dict[str, Any]:
    return {"microbatch_size": row["microbatch_size"], "peak_bytes": int(row["peak_bytes"])}


def write(
    profile: Profile, task: ProfileTask, folder: Path, *, today: date, zones: tuple[str, str] | None
) -> tuple[Path, ...]:
    """Write the files of a profile and return their paths.

    zones: the zones of the link's ends if it was timed between nodes.
    """
    busy = f", {task.together} devices busy" if task.together > 1 else ""
    source = f"timed in training steps by 'sailor-cloud profile'{busy}"
    backend = "gloo" if is_local(task.accelerator) else "NCCL"
    origin = ProfileOrigin(
        accelerator=task.accelerator,
        stack=f"sailor_runtime, {backend}",
        precision=Precision(task.precision),
        fitted_on=f"{len(profile.layers) // len(LayerKind)} configurations of {profile.layers[0].model}",
        as_of=today.isoformat(),
        source=source,
    )
    written = _write_compute(folder, origin, profile.fitted, profile.layers)
    if task.accelerator == "CPU-fast":
        twice = [
            dataclasses.replace(row, forward_s=2 * row.forward_s, backward_s=2 * row.backward_s)
            for row in profile.layers
        ]
        fitted = dataclasses.replace(
            profile.fitted,
            forward={kind: 2.0 * values for kind, values in profile.fitted.forward.items()},
            backward={kind: 2.0 * values for kind, values in profile.fitted.backward.items()},
        )
        slow = dataclasses.replace(origin, accelerator="CPU-slow", source=f"{source}; twice CPU-fast by definition")
        written += _write_compute(folder, slow, fitted, twice)
    memory = folder / MEMORY
    with memory.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _MEMORY_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({"accelerator": task.accelerator, **peak} for peak in profile.peaks)
    written.append(memory)
    if profile.curve is not None:
        curves = folder / "curves.csv"
        base = curves if curves.is_file() else resources.data_root() / "bandwidth_profiles" / "curves.csv"
        write_curves(curves, base, profile.curve, _places(task, zones), source=source, as_of=today.isoformat())
        written.append(curves)
    return tuple(written)


def _write_compute(folder: Path, origin: ProfileOrigin, fitted: Fitted, rows: Sequence[MeasuredLayer]) -> list[Path]:
    name = origin.accelerator if is_local(origin.accelerator) else f"{origin.accelerator}.{origin.precision.value}"
    profile, table = folder / f"{name}.json", folder / f"{name}.csv"
    write_profile(profile, origin, fitted)
    write_measured(table, rows)
    return [profile, table]


def _places(task: ProfileTask, zones: tuple[str, str] | None) -> list[tuple[CurveScope, str, str, str, str]]:
    """Return the links that a measured curve applies to."""
    name = task.accelerator
    if is_local(name):
        pairs = list(itertools.product(_LOCAL_ACCELERATORS, repeat=2))
        within = [(CurveScope.SAME_ZONE, "", src, "", dst) for src, dst in pairs]
        across = [
            (CurveScope.ZONES, *place)
            for a, b in itertools.permutations(_LOCAL_ZONES)
            for src, dst in pairs
            for place in [(a, src, b, dst)]
        ]
        return within + across
    if zones is None:
        return [(CurveScope.SAME_NODE, "", name, "", name)]
    if zones[0] == zones[1]:
        return [(CurveScope.SAME_ZONE, "", name, "", name)]
    return [(CurveScope.ZONES, a, name, b, name) for a, b in (zones, zones[::-1])]
