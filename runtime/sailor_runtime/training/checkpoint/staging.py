"""Memory for tensors that are waiting to be written while training changes the originals."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


class Staging:
    """Copies of tensors, one per key, in memory that is reused.

    A copy into fresh memory takes six times as long, since the system provides each page of it again (0.32 s against
    0.055 s of processor time for 378 MiB; 2026-11, 2 cores). It costs nothing at the peak: during a save the copies
    exist in any case. Tensors of a CUDA device are copied into pinned memory, without waiting for the device.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def copy(self, key: Hashable, value: Tensor) -> Tensor:
        """Return a copy in the node's memory: complete after `wait`, overwritten by the next copy of the same key."""
        kept = self._kept.get(key)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = self._kept[key] = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
        kept.copy_(value.detach(), non_blocking=True)
        if value.is_cuda:
            self._copied = torch.cuda.current_stream(value.device).record_event()
        return kept

    def wait(self) -> None:
        """Wait until all copies are complete; later work of the device does not change them."""
        if self._copied is not None:
            self._copied.synchronize()
