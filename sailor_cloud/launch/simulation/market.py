"""A market in time: what can be bought, and what is preempted."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Devices of one accelerator in one zone."""

    zone: str
    accelerator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The number of devices at each place over time; `times_s` ascend from 0.

    A place that is not in the trace has no devices. `spot_only`: on-demand nodes are always available.
    """

    times_s: tuple[float, ...]
    devices: Mapping[Place, tuple[int, ...]]
    spot_only: bool = False

    def available(self, place: Place, at_s: float) -> int:
        """Return the devices that exist at a moment, including those that the run holds."""
        counts = self.devices.get(place)
        if counts is None:
            return 0
        return counts[max(0, bisect.bisect_right(self.times_s, at_s) - 1)]

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(sorted(self.devices))

    def scaled_time(self, factor: float) -> Trace:
        """Return the trace with all times multiplied."""
        return replace(self, times_s=tuple(moment * factor for moment in self.times_s))
