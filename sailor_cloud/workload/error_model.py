"""The error distribution of a predicted iteration, and the contribution of each unknown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.catalog.files.tables import constants
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload.kernels import MODULES_CAPABILITY, Generation, Program

FILE = "prediction_errors.csv"
# The quantiles for half and nine in ten of the errors, in either direction.
_UPPER_QUARTILE, _UPPER_TWENTIETH = 0.75, 0.95
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """Median errors, as natural logarithms of measured over predicted seconds.

    `layers`: of layer times fitted on other runs of the accelerator; `layers_unmeasured`: if none of its generation
    were in the fit. Added to these: `precision` if no run had it, `accelerator` if all runs were of others of the
    generation, `modules` if layers run as modules of torch, and `program` if the generation has no runs of the program;
    of these two, the larger one counts. `exchange`: of tensor-parallel communication. `network`: of transfers between
    stages and gradient all-reduces, in addition to the link's error. `overlap`: of communication during computation.
    `repeat`: of the same run repeated. `memory`: of the tensors of the fullest device, `memory_repeat` between two runs
    of a plan. `tail`: lambda of Tukey's distribution, 0.14 for normal errors and smaller for more large ones.
    """

    layers: float
    layers_unmeasured: float
    precision: float
    accelerator: float
    program: float
    modules: float
    exchange: float
    network: float
    overlap: float
    repeat: float
    memory: float
    memory_repeat: float
    tail: float

    def layers_on(
        self, accelerator: Accelerator, precision: Precision, generation: Generation, *, program: Program
    ) -> float:
        """Return the error of a program's layers with the constants of a generation."""
        as_modules = program.modules is not None
        modules = self.modules if as_modules else 0.0
        known = as_modules and generation.compute_capability == MODULES_CAPABILITY
        if not generation.accelerators or accelerator.compute_capability != generation.compute_capability:
            return math.hypot(max(self.layers, self.layers_unmeasured), modules)
        return math.hypot(
            self.layers,
            modules if known or program.name in generation.programs else max(modules, self.program),
            0.0 if precision in generation.precisions else self.precision,
            0.0 if accelerator.name in generation.accelerators else self.accelerator,
        )

    def of(self, half: float) -> ErrorDistribution:
        return ErrorDistribution(half=half, tail=self.tail)

    def of_p50(self, error: float) -> ErrorDistribution:
        """Return the distribution with a median relative error."""
        return self.of(math.asinh(error))

    def at_least(self, half: float, nine_in_ten: float) -> float:
        """Return the least median error whose distribution has at least the given p50 and p90 errors."""
        return max(math.log1p(half), self.half_of(nine_in_ten))

    def half_of(self, nine_in_ten: float) -> float:
        """Return the median error, as a logarithm, of a distribution with a p90 relative error."""
        return math.log1p(nine_in_ten) * _shape(_UPPER_QUARTILE, self.tail) / _shape(_UPPER_TWENTIETH, self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDistribution:
    """Measured over predicted seconds: the logarithm is symmetric around 0, and `half` of it is within that."""

    half: float
    tail: float

    def ratio(self, probability: float) -> float:
        """Return the ratio that is not exceeded with a probability."""
        return math.exp(self._logarithm(probability))

    def probability(self, ratio: float) -> float:
        """Return the probability that a ratio is not exceeded."""
        if ratio <= 0.0:
            return 0.0
        if self.half <= 0.0:
            return 1.0 if ratio >= 1.0 else 0.0
        wanted, low, high = math.log(ratio), 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._logarithm(middle) <= wanted else (low, middle)
        return low

    @property
    def p50(self) -> float:
        """The median relative error, in either direction."""
        return math.sinh(self.half)

    @property
    def p90(self) -> float:
        """The p90 relative error, in either direction."""
        return math.sinh(self._logarithm(_UPPER_TWENTIETH))

    def _logarithm(self, probability: float) -> float:
        return self.half * _shape(probability, self.tail) / _shape(_UPPER_QUARTILE, self.tail)


def _shape(probability: float, tail: float) -> float:
    """Quantile of Tukey's lambda distribution (Tukey 1962); the logistic one where lambda is 0."""
    low, high = max(probability, 1e-300), max(1.0 - probability, 1e-300)
    if abs(tail) < 1e-6:
        return math.log(low / high)
    return float((low**tail - high**tail) / tail)


def read_error_model(path: Path) -> ErrorModel:
    """Read the table of calibrated errors. Raises DataError."""
    return constants(path, ErrorModel, "errors of predictions")
