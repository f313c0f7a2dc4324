"""The distribution of what a predicted iteration is off by, and how much each unknown contributes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.catalog.files.tables import constants
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload.kernels import Generation

FILE = "prediction_errors.csv"
# What half and nine in ten of the errors are below, either way.
_UPPER_QUARTILE, _UPPER_TWENTIETH = 0.75, 0.95
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """What half of the errors are below, as natural logarithms of measured over predicted seconds.

    `layers`: of layer times that were fitted on other runs of the accelerator, `layers_unmeasured` where none of its
    generation were. On top come `precision` in one that none was in, `accelerator` where all were of others of the
    generation, and `modules` where layers run as modules of torch. `exchange`: of what tensor parallelism exchanges;
    `network`: of transfers between stages and gradient all-reduces, beside the link's own error; `overlap`: of what is
    exchanged beside computing; `repeat`: of the same run made again. `memory`: of the tensors of the fullest device,
    `memory_repeat` between two runs of a plan. `tail`: lambda of Tukey's distribution, 0.14 for normal errors and
    smaller for more large ones.
    """

    layers: float
    layers_unmeasured: float
    precision: float
    accelerator: float
    modules: float
    exchange: float
    network: float
    overlap: float
    repeat: float
    memory: float
    memory_repeat: float
    tail: float

    def layers_on(
        self, accelerator: Accelerator, precision: Precision, generation: Generation, *, as_modules: bool
    ) -> float:
        """Return the error of layers by the constants of a generation."""
        modules = self.modules if as_modules else 0.0
        if not generation.accelerators or accelerator.compute_capability != generation.compute_capability:
            return math.hypot(max(self.layers, self.layers_unmeasured), modules)
        return math.hypot(
            self.layers,
            modules,
            0.0 if precision in generation.precisions else self.precision,
            0.0 if accelerator.name in generation.accelerators else self.accelerator,
        )

    def of(self, half: float) -> ErrorDistribution:
        return ErrorDistribution(half=half, tail=self.tail)

    def of_p50(self, error: float) -> ErrorDistribution:
        """Return the distribution that half of the relative errors are below such a one of."""
        return self.of(math.asinh(error))

    def at_least(self, half: float, nine_in_ten: float) -> float:
        """Return what half of the errors are below, of relative errors that half and nine in ten are below.

        The distribution is no narrower than either figure asks for.
        """
        return max(math.log1p(half), self.half_of(nine_in_ten))

    def half_of(self, nine_in_ten: float) -> float:
        """Return what half of the errors are below, of what nine in ten are below, relative."""
        return math.log1p(nine_in_ten) * _shape(_UPPER_QUARTILE, self.tail) / _shape(_UPPER_TWENTIETH, self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDistribution:
    """Measured over predicted seconds: the logarithm is symmetric around 0, `half` of it within that."""

    half: float
    tail: float

    def ratio(self, probability: float) -> float:
        """Return the ratio that is not exceeded with a probability."""
        return math.exp(self._logarithm(probability))

    def probability(self, ratio: float) -> float:
        """Return how probable it is that a ratio is not exceeded."""
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
        """The relative error that half are below, either way."""
        return math.sinh(self.half)

    @property
    def p90(self) -> float:
        """The relative error that nine in ten are below, either way."""
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
