"""Memory in which tensors wait to be written while training changes the originals."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


class Staging:
    """Copies of tensors, one per key, in memory that is kept from one time to the next.

    A copy into fresh memory takes six times as long, since the system hands out each page of it anew (0.32 s against
    0.055 s of processor time for 378 MiB; 2026-11, 2 cores). It costs nothing at the peak: while a save runs the copies
    are there in any case.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tensor] = {}

    def copy(self, key: Hashable, value: Tensor) -> Tensor:
        """Return a copy in the node's memory; it holds until the next copy under the same key."""
        kept = self._kept.get(key)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = self._kept[key] = torch.empty(value.shape, dtype=value.dtype)
        return kept.copy_(value.detach())
