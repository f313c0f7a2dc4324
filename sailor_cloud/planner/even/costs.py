"""What stages, cuts and sums cost, as arrays: all that the search over even batches knows of a simulator."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of one microbatch size, in seconds of one microbatch.

    A kind is a sort of stage, an accelerator with a tp degree for instance. use: [kind, pool], devices of one replica.
    compute_s: [stages to the end - 1, kind, first, end], infinite where it doesn't fit. The next four are
    [kind, next kind, cut]: for how long a cut keeps the stage before it (`after_s`) and the one behind it (`before_s`)
    busy, and what each side adds to the way of one microbatch. first_after: [stages], by how much more the first
    stage's side of its cut counts in a pipeline of so many stages less one; last_before: the same for the last stage's
    side. update_s: [kind, first, end]. exact: [pools], which pools a pipeline has to use up even where devices may be
    left over.
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
    exact: Bools | None = None
    handed: bool = False
    twice: bool = False
    held: Ints | None = None
    most_held: Ints | None = None

    @property
    def counted(self) -> Bools:
        """Which pools are devices that may be left over, shape [pools]."""
        return np.ones(self.use.shape[1], dtype=np.bool_) if self.exact is None else ~self.exact

    def once(self) -> StageCosts:
        """Return the costs of the first half of kinds that come twice; cuts are the same or less than with rings."""
        if not self.twice:
            return self
        half = self.kinds // 2
        return replace(
            self,
            use=self.use[:half],
            compute_s=self.compute_s[:, :half],
            after_s=self.after_s[:half, :half],
            before_s=self.before_s[:half, :half],
            after_way_s=self.after_way_s[:half, :half],
            before_way_s=self.before_way_s[:half, :half],
            update_s=self.update_s[:half],
            twice=False,
            held=None,
            most_held=None,
        )

    @property
    def layers(self) -> int:
        return int(self.compute_s.shape[-1]) - 1

    @property
    def kinds(self) -> int:
        return int(self.compute_s.shape[1])

    @property
    def max_stages(self) -> int:
        return int(self.compute_s.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A chain put in place: its value and what describes it, or None where there is no room for it.

    bound: a value that no other places of it undercut, unless that is no use by the question; without one, the worth by
    its costs counts.
    """

    value: float = math.inf
    placed: object | None = None
    bound: float = -math.inf


class Problem(Protocol):
    """A space of even batches under one simulator."""

    @property
    def batch(self) -> int:
        """Samples of an iteration."""

    @property
    def rising(self) -> bool:
        """Whether more devices never make a plan worth less, so that only the largest vectors need be looked at."""

    @property
    def timed(self) -> bool:
        """Whether plans are compared by time alone, however many devices they use; limits may depend on devices."""

    def most(self, replicas: int) -> Ints:
        """Return the most devices of each pool for one of so many replicas, shape [pools]."""

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

    @property
    def settles(self) -> bool:
        """Whether places of a chain are found that no others undercut, where asked to look closely."""

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        """Put a chain in place.

        `seconds` are those of an iteration by the costs; the value must not be less than the worth at them. Plans from
        the value `below` on are of no use.
        """
