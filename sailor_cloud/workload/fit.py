"""Fits layer times of one accelerator to the features of the layers, with the error on held-out layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.workload.features import FEATURES, LayerKind

Floats = NDArray[np.float64]

# A repeated run differs by this much, so no profile claims less: two runs of Sailor's 15 jobs differ by 5.0 % mean.
REPEAT_P50 = 0.05
REPEAT_P90 = 0.10
# The weight of the guess: the spread of measured times over that of datasheet guesses, 5 % over 50 %; judgement. Mean
# errors of new models moved by at most 1.4 points between 0.03 and 0.2 (2026-11-21).
_PRIOR_WEIGHT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured layer: its features in the order of FEATURES, its parameters per device, and its seconds."""

    kind: LayerKind
    model: str
    microbatch_size: int
    sequence_length: int
    tp: int
    features: Floats
    parameters: int
    forward_s: float
    backward_s: float
    update_s: float

    @property
    def configuration(self) -> tuple[str, int, int, int]:
        return (self.model, self.microbatch_size, self.sequence_length, self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What is known about an accelerator before measurements.

    `seconds_per_flop` is the datasheet's rate, the least for a FLOP of a block. `coefficients` are those of a forward
    and of a backward pass in the order of FEATURES, 0 without a guess.
    """

    seconds_per_flop: float
    coefficients: Mapping[LayerKind, tuple[Floats, Floats]]


NOTHING_KNOWN = Guess(seconds_per_flop=0.0, coefficients={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Coefficients by layer kind and pass, in FEATURES order, and relative errors of held-out blocks' times."""

    forward: dict[LayerKind, Floats]
    backward: dict[LayerKind, Floats]
    update: Floats
    error_p50: float
    error_p90: float


def fit(samples: Sequence[Sample], *, guess: Guess = NOTHING_KNOWN) -> Fitted:
    """Return the non-negative least-squares fit of relative errors over all samples, with a weak prior.

    Models of a single width do not separate FLOPs from bytes, and one tp degree does not predict another; there the
    guess decides. The errors are those of held-out models (`families`), but at least those of a repeated run. Raises
    ValueError without samples.
    """
    if not samples:
        raise ValueError("no measured layers to fit")
    errors = held_out_errors(samples, families(samples), guess=guess)
    return Fitted(
        forward={kind: _of_kind(samples, kind, 0, guess) for kind in LayerKind},
        backward={kind: _of_kind(samples, kind, 1, guess) for kind in LayerKind},
        update=_fit_update(samples),
        error_p50=max(float(np.quantile(errors, 0.5)), REPEAT_P50),
        error_p90=max(float(np.quantile(errors, 0.9)), REPEAT_P90),
    )


Family = Callable[[Sample], object]


def families(samples: Sequence[Sample]) -> list[Family]:
    """Return the criteria for samples that are held out together, so that the error is that of a new model.

    The model; if all samples are of one model, the microbatch size and the tp degree.
    """
    if len({sample.model for sample in samples}) > 1:
        return [lambda sample: sample.model]
    return [lambda sample: sample.microbatch_size, lambda sample: sample.tp]


def held_out_errors(samples: Sequence[Sample], left_out: Sequence[Family], *, guess: Guess = NOTHING_KNOWN) -> Floats:
    """Return the relative error of forward plus backward of each block when its family is held out."""
    blocks = [sample for sample in samples if sample.kind is LayerKind.BLOCK]
    errors = []
    for family in left_out:
        for value in sorted({family(sample) for sample in blocks}, key=str):
            kept = [sample for sample in blocks if family(sample) != value]
            if kept:
                errors += errors_of([sample for sample in blocks if family(sample) == value], kept, guess=guess)
    return np.array(errors or [1.0])


def errors_of(held: Sequence[Sample], kept: Sequence[Sample], *, guess: Guess = NOTHING_KNOWN) -> list[float]:
    """Return the relative errors of forward plus backward of held-out blocks by the fit on the others."""
    both = _of_kind(kept, LayerKind.BLOCK, 0, guess) + _of_kind(kept, LayerKind.BLOCK, 1, guess)
    return [abs(float(sample.features @ both) / (sample.forward_s + sample.backward_s) - 1.0) for sample in held]


def _of_kind(samples: Sequence[Sample], kind: LayerKind, direction: int, guess: Guess) -> Floats:
    """Fit one kind of layer in one direction: 0 forward, 1 backward, whose FLOPs count double."""
    nothing = np.zeros(len(FEATURES))
    timed = [
        (sample.features, seconds)
        for sample in samples
        if sample.kind is kind and (seconds := (sample.forward_s, sample.backward_s)[direction]) > 0.0
    ]
    if not timed:
        return nothing
    least = nothing.copy()
    if kind is LayerKind.BLOCK:
        least[FEATURES.index("flops")] = guess.seconds_per_flop * (1.0 + direction)
    prior = guess.coefficients.get(kind, (nothing, nothing))[direction]
    known = np.flatnonzero(prior)
    held = np.zeros((len(known), len(FEATURES)))
    held[np.arange(len(known)), known] = _PRIOR_WEIGHT / prior[known]
    design = np.vstack([np.array([features / seconds for features, seconds in timed]), held])
    wanted = np.concatenate([np.ones(len(timed)), np.full(len(known), _PRIOR_WEIGHT)])
    return _least_squares(design, wanted - design @ least) + least


def _fit_update(samples: Sequence[Sample]) -> Floats:
    """Return seconds per layer and seconds per parameter of the optimizer step."""
    used = [sample for sample in samples if sample.update_s > 0.0 and sample.parameters > 0]
    if not used:
        return np.zeros(2)
    design = np.array([[1.0 / sample.update_s, sample.parameters / sample.update_s] for sample in used])
    return _least_squares(design, np.ones(len(used)))


def _least_squares(design: Floats, wanted: Floats) -> Floats:
    """Return the non-negative solution; columns may differ by 15 orders of magnitude, as FLOPs and launches do."""
    from scipy.optimize import nnls

    scale = design.max(axis=0)
    scale[scale == 0.0] = 1.0
    solution, _ = nnls(design / scale, wanted)
    return np.asarray(solution / scale, dtype=np.float64)
