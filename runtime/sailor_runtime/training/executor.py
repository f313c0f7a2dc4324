"""The pipeline of one rank: DeepSpeed's 1F1B schedule over point-to-point transfers between stages of any tp."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.schedule import (
    BackwardPass,
    ForwardPass,
    RecvActivation,
    RecvGrad,
    SendActivation,
    SendGrad,
    TrainSchedule,
)
from torch import Tensor

from sailor_runtime.spec import PipelineSpec
from sailor_runtime.training.decoder import Microbatch
from sailor_runtime.training.stage import Activation, StageModule

_ACTIVATION_TAG, _GRADIENT_TAG = 0, 1


def receivers(index: int, senders: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return which of the receiving `ranks` take their copy from sender `index` of `senders`."""
    return tuple(rank for j, rank in enumerate(ranks) if j * senders // len(ranks) == index)


def sender(index: int, receivers: int, ranks: tuple[int, ...]) -> int:
    """Return which of the sending `ranks` receiver `index` of `receivers` takes its copy from."""
    return ranks[index * len(ranks) // receivers]


class Executor:
    """Runs all microbatches of an iteration through one stage."""

    def __init__(self, pipeline: PipelineSpec, stage: int, tp_index: int, module: StageModule) -> None:
        self._pipeline = pipeline
        self._stage = stage
        self._tp_index = tp_index
        self._module = module
        self._pending: list[tuple[Any, Tensor]] = []
        self.transfer_s = 0.0
        self.compute_s = 0.0

    @property
    def is_first(self) -> bool:
        return self._stage == 0

    @property
    def is_last(self) -> bool:
        return self._stage == len(self._pipeline.stages) - 1

    def run(self, microbatch: Callable[[int], Microbatch], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Train on every microbatch, leaving gradients in the parameters; return this stage's loss sum in float64.

        microbatch: gives microbatch i. shape: of a transferred tensor. The loss sum is 0 before the last stage.
        """
        self.transfer_s = self.compute_s = 0.0
        numbers: Iterator[int] = iter(range(self._pipeline.microbatches))
        schedule = TrainSchedule(self._pipeline.microbatches, len(self._pipeline.stages), self._stage)
        received: dict[int, Tensor] = {}
        activations: dict[int, Activation] = {}
        gradients: dict[int, Tensor | None] = {}
        losses: list[Tensor] = []
        for commands in schedule:
            for command in commands:
                buffer = getattr(command, "buffer_id", -1)
                match command:
                    case RecvActivation():
                        received[buffer] = self._receive(shape, dtype, -1)
                    case ForwardPass():
                        started = time.perf_counter()
                        batch = microbatch(next(numbers))
                        activations[buffer] = self._module.forward(received.pop(buffer, None), batch)
                        if self.is_last:
                            losses.append(_given(activations[buffer].result))
                        self.compute_s += time.perf_counter() - started
                    case SendActivation():
                        self._send(activations[buffer].result, 1)
                    case RecvGrad():
                        gradients[buffer] = self._receive(shape, dtype, 1)
                    case BackwardPass():
                        started = time.perf_counter()
                        gradient = gradients.pop(buffer, None)
                        gradients[buffer] = self._module.backward(activations.pop(buffer), gradient)
                        self.compute_s += time.perf_counter() - started
                    case SendGrad():
                        self._send(gradients.pop(buffer), -1)
        self._drain()
        # Asked for at the end only, since each would wait for the device.
        return torch.stack(losses).double().sum().cpu() if losses else torch.zeros((), dtype=torch.float64)

    def _neighbour(self, direction: int) -> tuple[int, ...]:
        return self._pipeline.stages[self._stage + direction].ranks

    def _send(self, value: Tensor | None, direction: int) -> None:
        started = time.perf_counter()
        value = _given(value).contiguous()
        size = len(self._pipeline.stages[self._stage].ranks)
        tag = _ACTIVATION_TAG if direction > 0 else _GRADIENT_TAG
        self._pending = [(work, held) for work, held in self._pending if not work.is_completed()]
        for rank in receivers(self._tp_index, size, self._neighbour(direction)):
            self._pending.append((dist.isend(value, rank, tag=tag), value))
        self.transfer_s += time.perf_counter() - started

    def _receive(self, shape: tuple[int, ...], dtype: torch.dtype, direction: int) -> Tensor:
        started = time.perf_counter()
        value = torch.empty(shape, dtype=dtype, device=next(iter(self._module.parameters.values())).device)
        size = len(self._pipeline.stages[self._stage].ranks)
        tag = _ACTIVATION_TAG if direction < 0 else _GRADIENT_TAG
        work = dist.irecv(value, sender(self._tp_index, size, self._neighbour(direction)), tag=tag)
        assert work is not None
        work.wait()
        self.transfer_s += time.perf_counter() - started
        return value

    def _drain(self) -> None:
        started = time.perf_counter()
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()
        self.transfer_s += time.perf_counter() - started


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
