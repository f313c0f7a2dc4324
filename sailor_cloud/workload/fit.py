"""Fits layer times of one accelerator to the features of the layers, and tells the error on points left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.workload.features import FEATURES, LayerKind

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured layer: its features in the order of FEATURES, its parameters per device, and its seconds.

    `group` names the configuration (model, microbatch size, tp) that is left out together in cross-validation.
    """

    kind: LayerKind
    group: str
    features: Floats
    parameters: int
    forward_s: float
    backward_s: float
    update_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Coefficients by layer kind and pass, in FEATURES order, and relative errors of held-out blocks' times."""

    forward: dict[LayerKind, Floats]
    backward: dict[LayerKind, Floats]
    update: Floats
    error_p50: float
    error_p90: float


def fit(samples: Sequence[Sample], *, seconds_per_flop: float = 0.0) -> Fitted:
    """Return the non-negative least-squares fit of relative errors over all samples.

    No FLOP of a block is charged less than `seconds_per_flop`, the device's datasheet rate where it is known:
    models of one width alone do not tell FLOPs from bytes, and a fit that charges bytes is far off at other widths. The
    errors come from leaving one configuration out at a time and predicting forward plus backward of its blocks.
    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no measured layers to fit")
    errors = held_out_errors(samples, seconds_per_flop=seconds_per_flop)
    return Fitted(
        forward=_by_kind(samples, lambda sample: sample.forward_s, seconds_per_flop),
        backward=_by_kind(samples, lambda sample: sample.backward_s, 2.0 * seconds_per_flop),
        update=_fit_update(samples),
        error_p50=float(np.quantile(errors, 0.5)),
        error_p90=float(np.quantile(errors, 0.9)),
    )


def held_out_errors(samples: Sequence[Sample], *, seconds_per_flop: float = 0.0) -> Floats:
    """Return the relative error of forward plus backward of each block when its configuration is left out."""
    blocks = [sample for sample in samples if sample.kind is LayerKind.BLOCK]
    errors = []
    for group in sorted({sample.group for sample in blocks}):
        kept = [sample for sample in blocks if sample.group != group]
        if not kept:
            continue
        forward = _relative_fit(kept, lambda sample: sample.forward_s, seconds_per_flop)
        backward = _relative_fit(kept, lambda sample: sample.backward_s, 2.0 * seconds_per_flop)
        for sample in blocks:
            if sample.group == group:
                actual = sample.forward_s + sample.backward_s
                errors.append(abs(float(sample.features @ (forward + backward)) / actual - 1.0))
    return np.array(errors or [1.0])


def _by_kind(
    samples: Sequence[Sample], seconds: Callable[[Sample], float], seconds_per_flop: float
) -> dict[LayerKind, Floats]:
    fits = {}
    for kind in LayerKind:
        chosen = [sample for sample in samples if sample.kind is kind]
        fits[kind] = (
            _relative_fit(chosen, seconds, seconds_per_flop if kind is LayerKind.BLOCK else 0.0)
            if chosen
            else np.zeros(len(FEATURES))
        )
    return fits


def _relative_fit(samples: Sequence[Sample], seconds: Callable[[Sample], float], seconds_per_flop: float) -> Floats:
    from scipy.optimize import nnls

    timed = [sample for sample in samples if seconds(sample) > 0.0]
    if not timed:
        return np.zeros(len(FEATURES))
    design = np.array([sample.features / seconds(sample) for sample in timed])
    # Columns differ by 15 orders of magnitude (FLOPs beside launches); the solver needs them alike.
    scale = design.max(axis=0)
    scale[scale == 0.0] = 1.0
    least = np.where(np.array(FEATURES) == "flops", seconds_per_flop, 0.0)
    solution, _ = nnls(design / scale, np.ones(len(timed)) - design @ least)
    return np.asarray(solution / scale + least, dtype=np.float64)


def _fit_update(samples: Sequence[Sample]) -> Floats:
    """Return seconds per layer and seconds per parameter of the optimizer step."""
    from scipy.optimize import nnls

    used = [sample for sample in samples if sample.update_s > 0.0 and sample.parameters > 0]
    if not used:
        return np.zeros(2)
    design = np.array([[1.0 / sample.update_s, sample.parameters / sample.update_s] for sample in used])
    scale = design.max(axis=0)
    solution, _ = nnls(design / scale, np.ones(len(used)))
    return np.asarray(solution / scale, dtype=np.float64)
