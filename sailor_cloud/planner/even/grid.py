"""Vectors of devices per replica, as a grid with one axis per pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grid:
    """All vectors from nothing up to `most` devices of each pool; numbers count them with the last axis fastest."""

    most: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count + 1 for count in self.most)

    @property
    def count(self) -> int:
        return int(np.prod(self.shape))

    def vectors(self) -> Ints:
        """Return all vectors, shape [count, pools]."""
        return np.indices(self.shape).reshape(len(self.most), -1).T.astype(np.int64)

    def numbers(self, vectors: Ints) -> Ints:
        """Return the numbers of vectors inside the grid, shape [...]."""
        strides = np.cumprod((1, *self.shape[:0:-1]))[::-1].astype(np.int64)
        return np.asarray(vectors @ strides)

    def shifted(self, use: Ints, axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """Return the indices of vectors before and after `use` is added, behind `axis` other axes; None if outside."""
        if any(int(more) > most for more, most in zip(use, self.most, strict=True)):
            return None
        lead = (slice(None),) * axis
        before = tuple(slice(0, most + 1 - int(more)) for more, most in zip(use, self.most, strict=True))
        after = tuple(slice(int(more), None) for more in use)
        return (*lead, *before), (*lead, *after)
