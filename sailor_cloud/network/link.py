"""A connection between two places, as a curve of bandwidth over message size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import date
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.units import GB, MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bandwidth in GB/s is a*x**2 + b*x + c with x = log2(bytes / 1e6), of all concurrent pairs together.

    The curve covers `min_bytes` to `max_bytes`; outside it keeps its end values. It never exceeds `max_bytes_per_s`,
    which an instance's network limit may have lowered. `error` is the relative error of the bandwidth that 9 of 10
    comparable measurements keep; `measured` is False for an estimate.
    """

    a: float
    b: float
    c: float
    min_bytes: float
    max_bytes: float
    max_bytes_per_s: float
    rtt_s: float
    pairs: int
    measured: bool
    error: float
    source: str
    as_of: date
    # How much longer the shortest message on the curve takes than its bytes at the highest rate; and how much longer
    # half a round trip takes than this excess. They are cached because every transfer of a search needs them.
    _ramp_s: float = field(init=False, repr=False, compare=False)
    _late_s: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ramp_s = self.min_bytes / self._rate(self.min_bytes) - self.min_bytes / self.max_bytes_per_s
        object.__setattr__(self, "_ramp_s", ramp_s)
        object.__setattr__(self, "_late_s", max(0.0, self.rtt_s / 2 - ramp_s))

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The rate of the longest message on the curve."""
        return self._rate(self.max_bytes)

    @overload
    def transfer_s(self, nbytes: float) -> float: ...

    @overload
    def transfer_s(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]: ...

    def transfer_s(self, nbytes: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Return the seconds for `nbytes` in total, split evenly over the concurrent pairs; 0 bytes take no time.

        From `min_bytes` on, the curve gives the time. Below, it is the ramp at the start of a transfer plus the bytes
        at the highest rate. Half a round trip is added as far as it exceeds this ramp.
        """
        ramp_s, late_s = self._ramp_s, self._late_s
        if isinstance(nbytes, np.ndarray):
            x = np.log2(np.clip(nbytes, self.min_bytes, self.max_bytes) / MB)
            rate = np.minimum(((self.a * x + self.b) * x + self.c) * GB, self.max_bytes_per_s)
            short = ramp_s + nbytes / self.max_bytes_per_s
            seconds = late_s + np.where(nbytes < self.min_bytes, short, nbytes / rate)
            return np.where(nbytes > 0, seconds, 0.0)
        if nbytes <= 0:
            return 0.0
        if nbytes < self.min_bytes:
            return late_s + ramp_s + nbytes / self.max_bytes_per_s
        return late_s + nbytes / self._rate(nbytes)

    def latency_s(self, most_bytes: float) -> float:
        """Return the least seconds of a transfer of up to `most_bytes` besides those in proportion to its bytes.

        With a lower rate, a transfer takes at least as much.
        """
        return self.rtt_s / 2 if most_bytes <= self.min_bytes else self._late_s

    def capped(self, bytes_per_s: float) -> Link:
        """Return the link with at most this rate; the start of a transfer stays as slow."""
        if bytes_per_s >= self.max_bytes_per_s:
            return self
        return replace(self, max_bytes_per_s=bytes_per_s, rtt_s=max(self.rtt_s, 2 * self._ramp_s))

    def scaled(self, factor: float) -> Link:
        """Return a link of the same shape that is `factor` times as fast."""
        return replace(
            self,
            a=self.a * factor,
            b=self.b * factor,
            c=self.c * factor,
            max_bytes_per_s=self.max_bytes_per_s * factor,
        )

    def at_most(self, bytes_per_s: float) -> Link:
        """Return a link that never exceeds a rate."""
        return self if self.max_bytes_per_s <= bytes_per_s else replace(self, max_bytes_per_s=bytes_per_s)

    def _rate(self, nbytes: float) -> float:
        x = math.log2(min(max(nbytes, self.min_bytes), self.max_bytes) / MB)
        return min(((self.a * x + self.b) * x + self.c) * GB, self.max_bytes_per_s)


def ramp_rtt_s(a: float, b: float, c: float, min_bytes: float, max_bytes_per_s: float) -> float:
    """Return the round trip that a curve's start implies, for curves fitted without a measured one."""
    x = math.log2(min_bytes / MB)
    rate = min(((a * x + b) * x + c) * GB, max_bytes_per_s)
    return 2 * (min_bytes / rate - min_bytes / max_bytes_per_s)
