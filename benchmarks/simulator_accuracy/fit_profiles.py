"""Fits the compute profiles that come with the program, and the roofline's efficiencies, and reports their errors.

python benchmarks/simulator_accuracy/fit_profiles.py [--reference DIR] [--cpu] [--write] [--results FILE]

GPUs are fitted on the layer times of Sailor's artifact, under --reference; without that folder it prints SKIPPED.
CPU-fast is fitted on its table, which --cpu times again on this machine; CPU-slow is twice that by definition. --write
replaces the files in compute_profiles.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from commit import measured_on
from cpu_layers import CPU_SOURCE, CPU_STACK, samples_of, time_layers
from scipy.optimize import least_squares

from sailor_cloud import catalog
from sailor_cloud.interchange.sailor_names import MODELS
from sailor_cloud.interchange.sailor_profiles import read_profiles, samples
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.offer import Precision
from sailor_cloud.workload import decoder
from sailor_cloud.workload.features import LayerKind
from sailor_cloud.workload.fit import Sample, errors_of, families, fit, held_out_errors
from sailor_cloud.workload.measured import MeasuredLayer, read_measured, write_measured
from sailor_cloud.workload.profile_file import ProfileOrigin, write_profile
from sailor_cloud.workload.roofline import Efficiencies, feature_guess, roofline_times

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "compute_profiles"
# Which models of the artifact ran in TF32 follows from their rate: a block of OPT-350 on an A100 reaches 80 TFLOP/s,
# one of OPT-30 18, below the 19.5 that the GPU's FP32 units have. The artifact does not say it.
SETS: tuple[tuple[str, Precision, tuple[str, ...]], ...] = (
    ("A100-40", Precision.TF32, ("OPT-350", "GPT-Neo-2.7")),
    ("A100-40", Precision.FP32, ("OPT-30", "LLAMA-3-8")),
    ("A100-80", Precision.TF32, ("OPT-350", "GPT-Neo-2.7")),
    ("GH-96", Precision.TF32, ("OPT-350", "GPT-Neo-2.7", "LLAMA-3-8")),
    ("V100-16", Precision.FP32, ("OPT-350", "GPT-Neo-2.7", "OPT-30", "LLAMA-3-8")),
    ("RTX-2080-11", Precision.FP32, ("OPT-350",)),
    ("RTX-3090-24", Precision.FP32, ("OPT-350",)),
    ("Titan-RTX-24", Precision.FP32, ("OPT-350",)),
)
SOURCE = (
    "layer times of eth-easl/sailor (artifact of Sailor, SOSP'25, MIT), commit cf2c8e3, simulator_profiles.json; "
    "coefficients fitted here, benchmarks/simulator_accuracy/fit_profiles.py"
)
STACK = "Sailor's Megatron and DeepSpeed, NCCL"
AS_OF = "2025-08-14"


_GPU_HEAD = (
    "Forward plus backward of a block, absolute relative error, mean / median / max.",
    "",
    "- Same models: each configuration (model, microbatch size, tp) predicted by the fit on the others of its",
    "  accelerator.",
    "- New model: each model predicted by the fit on the others; where there is one model only, each microbatch size",
    "  and each tp degree. This is what the profiles claim, at least 5 % in the median and 10 % at nine in ten.",
    "- New everywhere: the same with a guess whose efficiencies were fitted without the model on any accelerator.",
    "- Roofline: each accelerator predicted with the efficiencies fitted on the others.",
    "",
    "The fit charges no FLOP of a block less than the datasheet's rate allows and holds coefficients weakly to the",
    "roofline, which decides where the measurements do not: models of one width alone do not tell FLOPs from bytes,",
    "nor one tp degree the cost of another.",
    "",
    "| accelerator | dtype | configurations | same models | new model | new everywhere | roofline |",
    "|---|---|---|---|---|---|---|",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--results", type=Path)
    chosen = parser.parse_args()
    lines = ["# Compute profiles", "", measured_on(), ""]
    artifact = chosen.reference / "sailor-artifact"
    if artifact.is_dir():
        lines += fit_gpus(artifact, write=chosen.write)
    else:
        print(f"SKIPPED: no {artifact}; name the folder with --reference or SAILOR_CLOUD_REFERENCE")
    if artifact.is_dir() or chosen.cpu:
        rows = time_layers() if chosen.cpu else read_measured(FOLDER / "CPU-fast.csv")
        lines += fit_cpu(rows, write=chosen.write)
    report = "\n".join(lines)
    print(report)
    if chosen.results:
        chosen.results.write_text(report + "\n", encoding="utf-8")
    return 0


def fit_gpus(artifact: Path, *, write: bool) -> list[str]:
    profiles = read_profiles(
        json.loads((artifact / "simulator_profiles.json").read_text()),
        json.loads((artifact / "llm_info.json").read_text()),
    )
    lines = list(_GPU_HEAD)
    chosen = {}
    for accelerator, precision, models in SETS:
        ours = {MODELS[model] for model in models}
        chosen[accelerator, precision] = tuple(row for row in profiles.layers[accelerator] if row.model in ours)
    pooled: list[float] = []
    for (accelerator, precision), rows in chosen.items():
        usable = list(samples(rows, precision))
        others = {key: rows for key, rows in chosen.items() if key[0] != accelerator}
        roof = np.abs(roofline_errors(accelerator, precision, rows, fit_roofline(others)))
        pooled += list(roof)
        groups = len({sample.configuration for sample in usable})
        guess = feature_guess(CATALOG.accelerator(accelerator), precision)
        alike = held_out_errors(usable, [lambda sample: sample.configuration], guess=guess)
        new = held_out_errors(usable, families(usable), guess=guess)
        blind = _without_the_model(accelerator, precision, usable, chosen)
        cells = (accelerator, precision, groups, _stats(alike), _stats(new), _stats(blind), _stats(roof))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        if write:
            _write(f"{accelerator}.{precision}", accelerator, precision, usable, groups)
    best = fit_roofline(chosen)
    lines += [
        "",
        f"Roofline over all accelerators left out in turn: median {np.quantile(pooled, 0.5):.2f}, "
        f"90 % below {np.quantile(pooled, 0.9):.2f}. Efficiencies fitted on all:",
        "",
        *(f"- {name}: {value:.3g}" for name, value in dataclasses.asdict(best).items()),
        "",
    ]
    return lines


def _without_the_model(
    accelerator: str,
    precision: Precision,
    usable: Sequence[Sample],
    sets: dict[tuple[str, Precision], tuple[MeasuredLayer, ...]],
) -> np.ndarray:
    """Return the errors of models left out where the guess has not seen them on any accelerator either."""
    part = CATALOG.accelerator(accelerator)
    errors: list[float] = []
    blocks = [sample for sample in usable if sample.kind is LayerKind.BLOCK]
    for model in sorted({sample.model for sample in blocks}):
        kept = [sample for sample in blocks if sample.model != model]
        if not kept:
            continue
        others = {key: tuple(row for row in rows if row.model != model) for key, rows in sets.items()}
        efficiencies = fit_roofline({key: rows for key, rows in others.items() if rows})
        guess = feature_guess(part, precision, efficiencies=efficiencies)
        errors += errors_of([sample for sample in blocks if sample.model == model], kept, guess=guess)
    return np.array(errors)


def fit_roofline(sets: dict[tuple[str, Precision], tuple[MeasuredLayer, ...]]) -> Efficiencies:
    """Fit the efficiencies on blocks, every set with equal weight, in log of time; pulled weakly to where it starts."""
    start = np.array([0.8, 0.5, 0.6, 0.3, 2.0, 5.0])

    def errors(values: np.ndarray) -> np.ndarray:
        chosen = _efficiencies(values)
        parts = []
        for (accelerator, precision), rows in sets.items():
            found = np.log1p(roofline_errors(accelerator, precision, rows, chosen))
            parts.append(found / np.sqrt(len(found)))
        return np.concatenate([*parts, 0.05 * (values / start - 1.0)])

    bounds = ([0.05, 0.05, 0.05, 0.02, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0, 10.0, 15.0])
    return _efficiencies(least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=0.1).x)


def roofline_errors(
    accelerator: str, precision: Precision, rows: Sequence[MeasuredLayer], efficiencies: Efficiencies
) -> np.ndarray:
    part = CATALOG.accelerator(accelerator)
    errors = []
    for row in rows:
        if row.layer_kind is not LayerKind.BLOCK:
            continue
        times = roofline_times(
            part,
            DECODERS[row.model],
            sequence_length=row.sequence_length,
            microbatch_size=row.microbatch_size,
            tp=row.tp,
            precision=precision,
            efficiencies=efficiencies,
        )
        predicted = times.forward_s[1] + times.backward_s[1]
        errors.append(predicted / (row.forward_s + row.backward_s) - 1.0)
    return np.array(errors)


def fit_cpu(rows: Sequence[MeasuredLayer], *, write: bool) -> list[str]:
    usable = samples_of(rows)
    fitted = fit(usable)
    alike = held_out_errors(usable, [lambda sample: sample.configuration])
    new = held_out_errors(usable, families(usable))
    lines = [
        "## CPU",
        "",
        f"CPU-fast: {CPU_SOURCE}. Error of a block of the same models {_stats(alike)}, of a new model {_stats(new)}.",
        "",
    ]
    if write:
        groups = len({sample.configuration for sample in usable})
        origin = ProfileOrigin(
            accelerator="CPU-fast",
            stack=CPU_STACK,
            precision=Precision.FP32,
            fitted_on=f"{groups} configurations of GPT-2 layers: hidden 64 to 384, sequence 64 to 256, 1 to 8 samples",
            as_of="2026-11-21",
            source=CPU_SOURCE,
        )
        write_profile(FOLDER / "CPU-fast.json", origin, fitted)
        write_measured(FOLDER / "CPU-fast.csv", rows)
        slow = dataclasses.replace(
            fitted,
            forward={kind: 2.0 * values for kind, values in fitted.forward.items()},
            backward={kind: 2.0 * values for kind, values in fitted.backward.items()},
        )
        origin = dataclasses.replace(
            origin,
            accelerator="CPU-slow",
            fitted_on="twice the layer times of CPU-fast: by definition every kernel of a layer runs twice",
        )
        write_profile(FOLDER / "CPU-slow.json", origin, slow)
    return lines


def _write(name: str, accelerator: str, precision: Precision, usable: Sequence[Sample], groups: int) -> None:
    models = sorted({sample.model for sample in usable})
    degrees = sorted({sample.tp for sample in usable})
    origin = ProfileOrigin(
        accelerator=accelerator,
        stack=STACK,
        precision=precision,
        fitted_on=f"{groups} configurations of {', '.join(models)}, tp {', '.join(map(str, degrees))}",
        as_of=AS_OF,
        source=SOURCE,
    )
    fitted = fit(usable, guess=feature_guess(CATALOG.accelerator(accelerator), precision))
    write_profile(FOLDER / f"{name}.json", origin, fitted)


def _efficiencies(values: np.ndarray) -> Efficiencies:
    return Efficiencies(
        cores=float(values[0]),
        tensor_cores=float(values[1]),
        memory=float(values[2]),
        link=float(values[3]),
        launch_s=float(values[4]) * 1e-4,
        score_passes=float(values[5]),
    )


def _stats(errors: np.ndarray) -> str:
    if not len(errors):
        return "one model only"
    return f"{errors.mean():.1%} / {np.median(errors):.1%} / {errors.max():.1%}"


CATALOG = catalog.load()
DECODERS = {ours: decoder(ModelSource(preset=ours)) for ours in MODELS.values()}

if __name__ == "__main__":
    sys.exit(main())
