"""What stages, cuts and sums cost, as arrays: all that the search over even batches knows of a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of one microbatch size, in seconds of one microbatch.

    A kind is a sort of stage, an accelerator with a tp degree for instance. use: [kind, pool], devices of one replica.
    compute_s: [stages to the end - 1, kind, first, end], infinite where it doesn't fit. The next four are
    [kind, next kind, cut]: for how long a cut keeps the stage before it (`after_s`) and the one behind it (`before_s`)
    busy, and what each side adds to the way of one microbatch. first_after: [stages], by how much more the first
    stage's side of its cut counts in a pipeline of so many stages less one; last_before: the same for the last stage's
    side. update_s: [kind, first, end].
    """

    size: int
    use: Ints
    compute_s: Floats
    after_s: Floats
    before_s: Floats
    after_way_s: Floats
    before_way_s: Floats
    first_after: Floats
    last_before: float
    update_s: Floats

    @property
    def layers(self) -> int:
        return int(self.compute_s.shape[-1]) - 1

    @property
    def kinds(self) -> int:
        return int(self.compute_s.shape[1])

    @property
    def max_stages(self) -> int:
        return int(self.compute_s.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Stages of one replica: stage s is of kinds[s] and holds the layers [cut[s], cut[s + 1])."""

    kinds: tuple[int, ...]
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What a plan is worth that uses so many devices of each pool per replica: a line over its iteration's seconds.

    All arrays have one entry per vector of devices. The value is slope * seconds + offset, to be minimised; longest_s
    is the most seconds that keep the limits, negative where no plan keeps them.
    """

    slope: Floats
    offset: Floats
    longest_s: Floats


class Problem(Protocol):
    """A space of even batches under one simulator."""

    @property
    def batch(self) -> int:
        """Samples of an iteration."""

    @property
    def devices(self) -> Ints:
        """Devices of each pool, shape [pools]."""

    @property
    def rising(self) -> bool:
        """Whether more devices never make a plan worth less, so that only the largest vectors need be looked at."""

    @property
    def timed(self) -> bool:
        """Whether plans are compared by time alone, however many devices they use; limits may depend on devices."""

    def sizes(self) -> list[int]:
        """Return the microbatch sizes that may be used; each divides the batch."""

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        """Return the costs of a microbatch size, or None where nothing fits.

        Those for a number of replicas may be higher than those without, which hold for any number.
        """

    def sync_s(self, size: int, replicas: int) -> Floats:
        """Return the least seconds after the last microbatch in which a stage's replicas sum: [kind, first, end]."""

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        """Return what plans are worth by their devices per replica; use: [vectors, pools]."""

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float) -> tuple[float, object] | None:
        """Return the value of a chain put in place and what describes it, or None where there is no room for it.

        `seconds` are those of an iteration by the costs; the value must not be less than the worth at them.
        """
