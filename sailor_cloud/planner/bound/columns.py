"""Columns of the master program: pipelines by what they take and what they are paid for it.

The devices of a pipeline have a price in units, a whole number for each accelerator. Their number is counted besides,
so that one fast device does not stand for several slow ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

# A number of devices that no pipeline has.
_NONE = 10**9


class Column(NamedTuple):
    """A pipeline: whether it leaves home, the price of its devices in units, their number, its samples."""

    crossing: bool
    units: int
    devices: int
    samples: int


class Taken(NamedTuple):
    """What a pipeline takes of each row of a supply: for each of its units, for each of its devices, and besides."""

    by_unit: Floats
    by_device: Floats
    fixed: Floats

    def of(self, column: Column) -> Floats:
        return self.by_unit * column.units + self.by_device * column.devices + self.fixed


class Value(NamedTuple):
    """The value of a pipeline: of a sample, less those of a unit and a device, less a fixed one; all at least 0."""

    sample: float
    unit: float
    device: float
    fixed: float

    def of(self, column: Column) -> float:
        return self.sample * column.samples - self.unit * column.units - self.device * column.devices - self.fixed


@dataclass(slots=True)
class Packing:
    """The devices of a pipeline by its units: `prices` are the units of each, `least` their least number."""

    prices: tuple[int, ...]
    least: int
    _fewest: list[int] = field(default_factory=lambda: [0])

    def fewest(self, units: int) -> Whole:
        """Return the fewest devices of exactly 0 to `units` units and some more; `_NONE` if there are no such ones."""
        for number in range(len(self._fewest), units + max(self.prices) + 1):
            before = (self._fewest[number - price] for price in self.prices if price <= number)
            self._fewest.append(min(_NONE, 1 + min(before, default=_NONE)))
        return np.maximum(self.least, self._fewest)

    def smallest(self, units: int) -> list[tuple[int, int]]:
        """Return units, at least `units`, with fewer and fewer devices."""
        found: list[tuple[int, int]] = []
        for number, devices in enumerate(self.fewest(units)[units:], units):
            if devices < (found[-1][1] if found else _NONE):
                found.append((number, int(devices)))
        return found


@dataclass(slots=True)
class Cost:
    """The least cost of a pipeline in samples, by the units that it needs; of a `unit` and of a `device` of it.

    `fewest`: devices by units, as in `Packing`.
    """

    unit: float
    device: float
    fewest: Whole
    _exact: Floats = field(init=False)
    _least: Floats = field(init=False)

    def __post_init__(self) -> None:
        units = np.arange(len(self.fewest))
        self._exact = np.where(self.fewest < _NONE, self.unit * units + self.device * self.fewest, np.inf)
        self._least = np.minimum.accumulate(self._exact[::-1])[::-1]

    @property
    def least_per_unit(self) -> float:
        """The least cost of a unit of any pipeline."""
        per_unit = self.fewest[1:] / np.arange(1, len(self.fewest))
        return self.unit + self.device * float(per_unit.min())

    def of(self, units: int) -> float:
        """Return the least cost of a pipeline of at least `units` units."""
        return float(self._least[units])

    def units_for(self, cost: float) -> int:
        """Return the most units for a cost."""
        return int(np.searchsorted(self._least, cost, side="right")) - 1

    def cheapest(self, units: int) -> tuple[int, int]:
        """Return the units, at least `units`, that cost least, and their devices."""
        best = units + int(self._exact[units:].argmin())
        return best, int(self.fewest[best])
