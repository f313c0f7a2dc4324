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

    def coarse(self, most: int) -> Node:
        """Return the node with few vectors of devices, each for those of no more worth down to the next one.

        For pipelines that may leave devices over; a vector counts with the best of what it stands for.
        """
        if len(self.vectors) <= most or (self.vectors[:, 1:] != self.vectors[0, 1:]).any():
            return self
        parts = np.array_split(np.lexsort(self.vectors.T), most)

        def least(values: Floats) -> Floats:
            return np.array([values[part].min() for part in parts])

        worth = Worth(
            slope=least(self.worth.slope), offset=least(self.worth.offset), longest_s=-least(-self.worth.longest_s)
        )
        vectors = self.vectors[[part[-1] for part in parts]]
        return replace(self, vectors=vectors, sync_s=least(self.sync_s), least_s=least(self.least_s), worth=worth)
