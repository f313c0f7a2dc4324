"""Tensors between the stages of a pipeline, of any tp: sent once computed, received while the stage still computes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.spec import PipelineSpec

# Tags keep the two directions of a cut apart under gloo; under NCCL, which has no tags, their groups do.
_ACTIVATION_TAG, _GRADIENT_TAG = 0, 1
_WARM_UP, _MEASURED = 1, 3


def receivers(index: int, senders: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return which of the receiving `ranks` take their copy from sender `index` of `senders`."""
    return tuple(rank for j, rank in enumerate(ranks) if j * senders // len(ranks) == index)


def sender(index: int, receivers: int, ranks: tuple[int, ...]) -> int:
    """Return which of the sending `ranks` receiver `index` of `receivers` takes its copy from."""
    return ranks[index * len(ranks) // receivers]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """One direction of one cut as this rank sees it: whom it sends to or takes from."""

    ranks: tuple[int, ...]
    tag: int
    group: dist.ProcessGroup | None


class Transfers:
    """Moves activations to the next stage and gradients to the one before.

    One receive of each direction is posted at any time, so that a tensor travels while this stage computes; what it
    costs is one more tensor per direction. Sends never block. `directions` are the groups of both directions, two
    communicators under NCCL: in one, a send could wait for a receive that its own peer has put behind another send.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        stage: int,
        tp_index: int,
        directions: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None],
        device: torch.device,
    ) -> None:
        self._stage, self._stages = stage, len(pipeline.stages)
        self._device = device
        self._pending: list[tuple[Any, Tensor]] = []
        self._posted: dict[int, tuple[Any, Tensor]] = {}
        self._left: dict[int, int] = {}
        self._shape: tuple[int, ...] = ()
        self._dtype = torch.float32
        tags = {1: (_ACTIVATION_TAG, directions[0]), -1: (_GRADIENT_TAG, directions[1])}
        self._to: dict[int, _Lane] = {}
        self._from: dict[int, _Lane] = {}
        size = len(pipeline.stages[stage].ranks)
        for direction, (tag, group) in tags.items():
            target, source = stage + direction, stage - direction
            if 0 <= target < self._stages:
                ranks = receivers(tp_index, size, pipeline.stages[target].ranks)
                self._to[direction] = _Lane(ranks=ranks, tag=tag, group=group)
            if 0 <= source < self._stages:
                rank = sender(tp_index, size, pipeline.stages[source].ranks)
                self._from[direction] = _Lane(ranks=(rank,), tag=tag, group=group)

    def begin(self, shape: tuple[int, ...], dtype: torch.dtype, microbatches: int) -> None:
        """Expect one tensor per microbatch from each neighbour; what was sent before must have left."""
        self.drain()
        self._shape, self._dtype = shape, dtype
        self._left = dict.fromkeys(self._from, microbatches)
        for direction in self._from:
            self._post(direction)

    def receive(self, direction: int) -> Tensor:
        """Wait for the next tensor: an activation for direction 1, a gradient for -1."""
        work, value = self._posted.pop(direction)
        work.wait()
        self._post(direction)
        return value

    def send(self, value: Tensor, direction: int) -> None:
        """Begin to send a tensor to all ranks that take it from this one."""
        lane = self._to.get(direction)
        if lane is None or not lane.ranks:
            return
        value = value.contiguous()
        self._pending = [(work, held) for work, held in self._pending if not work.is_completed()]
        for rank in lane.ranks:
            self._pending.append((dist.isend(value, rank, group=lane.group, tag=lane.tag), value))

    def drain(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()

    def connect(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[int, float]:
        """Send a tensor back and forth over each cut, one cut after the other; return the seconds of one way.

        By direction of the tensors that this rank receives, while nobody computes. This also makes NCCL's
        communicators, which both ends must do at the same time: left to the first step, neighbours could wait in a
        circle.
        """
        value = torch.zeros(shape, dtype=dtype, device=self._device)
        found: dict[int, float] = {}
        for cut in range(self._stages - 1):
            direction = {cut: -1, cut + 1: 1}.get(self._stage)
            if direction is None:
                continue
            rounds = [self._round(value, direction) for _ in range(_WARM_UP + _MEASURED)]
            found[direction] = min(rounds[_WARM_UP:]) / 2.0
        self.drain()
        return found

    def _round(self, value: Tensor, direction: int) -> float:
        """Take part in one way there and back over a cut; `direction` is that of the tensors that come here."""
        started = time.perf_counter()
        self._shape, self._dtype, self._left = tuple(value.shape), value.dtype, {direction: 1}
        if direction < 0:
            self.send(value, 1)
        self._post(direction)
        self.receive(direction)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if direction > 0:
            self.send(value, -1)
        return time.perf_counter() - started

    def _post(self, direction: int) -> None:
        if self._left[direction] == 0:
            return
        self._left[direction] -= 1
        lane = self._from[direction]
        value = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        self._posted[direction] = (dist.irecv(value, lane.ranks[0], group=lane.group, tag=lane.tag), value)
