"""Tensors between the stages of a pipeline, of any tp: sent once computed, received during computation."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.spec import PipelineSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel

_WARM_UP, _MEASURED = 1, 3

# The groups for activations and gradients of a cut.
Lanes = tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]


def parts_sent(index: int, senders: int, receivers: int) -> tuple[int, ...]:
    """Return which parts sender `index` sends; every receiver gets the part of its own number."""
    return tuple(part for part in range(receivers) if part * senders // receivers == index)


def part_of(value: Tensor, number: int, parts: int) -> Tensor:
    """Return a part of a flat tensor; all parts are equally long, except for the last ones."""
    size = -(-len(value) // parts)
    return value[number * size : (number + 1) * size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lane:
    """One direction of one cut as this rank sees it: the ranks at the other end, by the part that they exchange."""

    peers: dict[int, int]
    parts: int
    tag: int
    group: dist.ProcessGroup | None


class Transfers:
    """Moves activations of a virtual stage to the next one, and gradients to the previous one.

    All ranks of a stage have the same tensor. Each receiving rank gets one part of it, so that it crosses the link
    once. The ranks of `parallel`, the receiving stage, then gather the parts. A receive may be posted ahead, one in
    each direction: a tensor arrives while this stage computes, which costs one more tensor per direction. Sends never
    block.

    `lanes` are the groups of both directions of each cut, or of all of them. NCCL has no tags, so messages of the same
    two ranks in both directions, or for several cuts, need a communicator each. With only one, a send could wait for a
    receive that its peer has queued after another send.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        virtual_stage: int,
        parallel: TensorParallel,
        lanes: Sequence[Lanes],
        device: torch.device,
    ) -> None:
        ranks_of = [pipeline.stages[stage].ranks for stage, _ in pipeline.virtual_stages]
        self._virtual_stage, self._virtual_stages = virtual_stage, len(ranks_of)
        self._device = device
        self._pending: list[tuple[Any, Tensor]] = []
        self._posted: dict[int, tuple[Any, Tensor]] = {}
        self._parallel = parallel
        self._shape: tuple[int, ...] = ()
        self._dtype = torch.float32
        self._to: dict[int, _Lane] = {}
        self._from: dict[int, _Lane] = {}
        index, size = parallel.index, parallel.size
        for number, direction in enumerate((1, -1)):
            target, source = virtual_stage + direction, virtual_stage - direction
            if 0 <= target < self._virtual_stages:
                ranks, cut = ranks_of[target], min(virtual_stage, target)
                peers = {part: ranks[part] for part in parts_sent(index, size, len(ranks))}
                group = lanes[cut % len(lanes)][number]
                self._to[direction] = _Lane(peers=peers, parts=len(ranks), tag=2 * cut + number, group=group)
            if 0 <= source < self._virtual_stages:
                ranks, cut = ranks_of[source], min(virtual_stage, source)
                peers = {index: ranks[index * len(ranks) // size]}
                group = lanes[cut % len(lanes)][number]
                self._from[direction] = _Lane(peers=peers, parts=size, tag=2 * cut + number, group=group)

    def begin(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Expect tensors of one shape from each neighbour; earlier sends must have left."""
        self.drain()
        self._shape, self._dtype = shape, dtype

    def post(self, direction: int) -> None:
        """Post the receive of the next tensor from a direction, before `receive` waits for it."""
        lane = self._from[direction]
        [(number, rank)] = lane.peers.items()
        count = math.prod(self._shape)
        # Every rank gathers equal parts, so the last ones are padded.
        flat = torch.empty(-(-count // lane.parts) * lane.parts, dtype=self._dtype, device=self._device)
        part = part_of(flat[:count], number, lane.parts)
        work = dist.irecv(part, rank, group=lane.group, tag=lane.tag) if len(part) else None
        self._posted[direction] = (work, flat)

    def receive(self, direction: int) -> Tensor:
        """Wait for the next tensor: an activation for direction 1, a gradient for -1."""
        if direction not in self._posted:
            self.post(direction)
        work, flat = self._posted.pop(direction)
        if work is not None:
            work.wait()
        self._parallel.gather_parts(flat)
        return flat[: math.prod(self._shape)].view(self._shape)

    def send(self, value: Tensor, direction: int) -> None:
        """Begin to send this rank's parts of a tensor."""
        lane = self._to.get(direction)
        if lane is None:
            return
        value = value.contiguous().view(-1)
        self._pending = [(work, held) for work, held in self._pending if not work.is_completed()]
        for number, rank in lane.peers.items():
            part = part_of(value, number, lane.parts)
            if len(part):
                self._pending.append((dist.isend(part, rank, group=lane.group, tag=lane.tag), part))

    def drain(self) -> None:
        """Wait until all sends have left."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()

    def connect(self, cut: int, shape: tuple[int, ...], dtype: torch.dtype) -> dict[int, float]:
        """Send a tensor back and forth over a cut, if this rank is at either end; return the seconds of one way.

        The keys are the directions of the tensors that arrive here.
        """
        direction = {cut: -1, cut + 1: 1}.get(self._virtual_stage)
        if direction is None:
            return {}
        value = torch.zeros(shape, dtype=dtype, device=self._device)
        rounds = [self._round(value, direction) for _ in range(_WARM_UP + _MEASURED)]
        self.drain()
        return {direction: min(rounds[_WARM_UP:]) / 2.0}

    def _round(self, value: Tensor, direction: int) -> float:
        """Do one round trip over a cut; `direction` is that of the tensors that arrive here."""
        started = time.perf_counter()
        self._shape, self._dtype = tuple(value.shape), value.dtype
        if direction < 0:
            self.send(value, 1)
        self.receive(direction)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if direction > 0:
            self.send(value, -1)
        return time.perf_counter() - started


def connected(
    every: Sequence[Transfers], cuts: int, shape: tuple[int, ...], dtype: torch.dtype
) -> list[dict[int, float]]:
    """Try all cuts of a pipeline, one after the other; return the seconds of one way by range and direction.

    They are for tensors that this rank receives while no rank computes. This also creates NCCL's communicators, which
    both ends must do together: in the first step, neighbours could wait for each other in a circle.
    """
    found: list[dict[int, float]] = [{} for _ in every]
    for cut in range(cuts):
        for transfers, seconds in zip(every, found, strict=True):
            seconds.update(transfers.connect(cut, shape, dtype))
    return found
