"""One number of replicas at one microbatch size, to be searched for even batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Worth
from sailor_cloud.planner.even.relax import Relaxed

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Node:
    """A number of replicas at one microbatch size, with what each vector of devices takes at least.

    sync_s: what the longest sum takes at least, 0 while `refined` is false.
    """

    part: int
    size: int
    replicas: int
    microbatches: int
    vectors: Ints
    relaxed: Relaxed
    sync_s: Floats
    least_s: Floats
    worth: Worth
    refined: bool = False

    @property
    def value(self) -> float:
        return float((self.worth.slope * self.least_s + self.worth.offset).min())

    def chosen(self, some: NDArray[np.bool_]) -> Node:
        """Return the node with some of its vectors."""
        worth = self.worth
        return replace(
            self,
            vectors=self.vectors[some],
            sync_s=self.sync_s[some],
            least_s=self.least_s[some],
            worth=Worth(slope=worth.slope[some], offset=worth.offset[some], longest_s=worth.longest_s[some]),
        )
