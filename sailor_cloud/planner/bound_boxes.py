"""Boxes of pipelines for a bound on time: ranges that are halved where the bound is least."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Numbers of pipelines at which ranges begin.
PIPELINES = (1, 2, 3, 5, 7, 9, 13, 17, 25, 33, 65, 129, 257, 1025, 4097)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Ranges that a pipeline is in; each field has shape [boxes], and `_end` is the last of its range.

    bottleneck: seconds of one sample; sums: of an iteration. size: of a microbatch, a number among those that are
    looked up; pipelines: how many a plan has, a number of `PIPELINES`.
    """

    bottleneck: Floats
    bottleneck_end: Floats
    sums: Floats
    sums_end: Floats
    size: Ints
    size_end: Ints
    pipelines: Ints
    pipelines_end: Ints

    def __len__(self) -> int:
        return len(self.bottleneck)

    def __getitem__(self, at: Ints) -> Boxes:
        return Boxes(**{each.name: getattr(self, each.name)[at] for each in fields(self)})

    def joined(self, other: Boxes) -> Boxes:
        return Boxes(
            **{
                each.name: np.concatenate([getattr(self, each.name), getattr(other, each.name)])
                for each in fields(self)
            }
        )


def halved(boxes: Boxes, dimension: Ints) -> Boxes:
    """Return the lower halves of boxes, then the upper ones, each halved in one of its ranges."""
    lower, upper = ({each.name: getattr(boxes, each.name).copy() for each in fields(boxes)} for _ in range(2))
    for number, name in enumerate(("bottleneck", "sums", "size", "pipelines")):
        at = dimension == number
        low, high = lower[name][at], lower[f"{name}_end"][at]
        if name in ("bottleneck", "sums"):
            middle = np.sqrt(np.maximum(low, high / 8.0) * high)
            lower[f"{name}_end"][at], upper[name][at] = middle, middle
        else:
            lower[f"{name}_end"][at], upper[name][at] = (low + high) // 2, (low + high) // 2 + 1
    return Boxes(**lower).joined(Boxes(**upper))
