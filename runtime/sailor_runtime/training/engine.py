"""One rank's training state under a plan, and one optimizer step of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.data.samples import Prefetcher, Samples
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.model.weights import first_weights
from sailor_runtime.training.observe.metrics import ROW_LENGTH, Spent, memory_peak_bytes, spent
from sailor_runtime.training.optimizer import optimizer
from sailor_runtime.training.optimizer.gradients import GradientAllReduce
from sailor_runtime.training.optimizer.loss_scale import FIRST_SCALE, LossScale
from sailor_runtime.training.optimizer.outer import Outer, is_due
from sailor_runtime.training.optimizer.pass_sharing import PassSharing
from sailor_runtime.training.optimizer.precision import Precision
from sailor_runtime.training.optimizer.weights import MasterWeights
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.executor import Executor
from sailor_runtime.training.pipeline.layout import Atom, Place
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.spans import Activity, Span, Spans, total_s
from sailor_runtime.training.pipeline.stage import StageModule
from sailor_runtime.training.pipeline.transfers import Transfers, connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of one step; seconds are this rank's.

    `flags` are the sums over ranks of the flags passed in. `rows` say for every rank how it spent the previous step
    (see metrics.Spent), exchanged in this step's sums.
    """

    loss: float
    gradient_norm: float
    flags: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    learning_rate: float
    spent: Spent
    update_s: float
    skipped: bool = False

    @property
    def iteration_s(self) -> float:
        return self.spent.iteration_s

    @property
    def compute_s(self) -> float:
        return self.spent.compute_s

    @property
    def transfer_s(self) -> float:
        return self.spent.transfer_s

    @property
    def sync_s(self) -> float:
        return self.spent.sync_s

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    @property
    def counts(self) -> bool:
        """Whether its samples are used up: the weights moved, or loss scaling skips it."""
        return self.finite or self.skipped


class _Totals:
    """Sums over all ranks: on the device for work queued next; the host waits for them only when it reads them."""

    def __init__(self, on_device: Tensor) -> None:
        self.on_device = on_device
        self._copy, self._copied = on_device, None
        if on_device.is_cuda:
            self._copy = torch.empty_like(on_device, device="cpu", pin_memory=True).copy_(on_device, non_blocking=True)
            self._copied = torch.cuda.current_stream().record_event()

    def read(self) -> list[float]:
        if self._copied is not None:
            self._copied.synchronize()
        values: list[float] = self._copy.tolist()
        return values


_NOT_YET = Spent(iteration_s=0.0, compute_s=0.0, transfer_s=0.0, sync_s=0.0, memory_peak_bytes=0.0)

# Stages in the middle need no tokens.
_NOTHING: Tensor = torch.empty((0, 1), dtype=torch.int64)


class Engine:
    """The parameters, optimizer and pipeline of one rank."""

    def __init__(
        self,
        spec: RunSpec,
        place: Place,
        world: World,
        atoms: tuple[Atom, ...],
        samples: Samples,
        device: Device,
        precision: Precision,
        *,
        restored: bool = False,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`restored`: a checkpoint gives trained weights their values. alive: called while first weights are made."""
        self.spec = spec
        self.scale = LossScale(scale=FIRST_SCALE, dynamic=True) if precision.scales_loss else LossScale()
        self.next_step = 0
        self.updates = 0
        self._world = world
        self._ahead = Prefetcher(samples, device.torch_device)
        self._device = device
        self._pipeline = spec.pipelines[place.pipeline]
        own = layout.samples_of(spec, place.pipeline)
        self._first_sample = own.start
        every = torch.arange(own.start, own.stop, device=device.torch_device)
        # The sample positions of each microbatch in the global batch.
        self._positions = every.split(self._pipeline.microbatch_size)
        islands = layout.islands(spec)
        self.islands = len(islands)
        self.island = next(number for number, island in enumerate(islands) if place.pipeline in island)
        sizes = [sum(len(layout.samples_of(spec, pipeline)) for pipeline in island) for island in islands]
        self._shares = [size / spec.training.global_batch_size for size in sizes]
        self._weighting = torch.tensor(self._shares, dtype=torch.float64, device=device.torch_device)
        stage = self._pipeline.stages[place.stage]
        parallel = TensorParallel(world.group(stage.ranks), len(stage.ranks), place.tp_index)
        self.module = StageModule(
            spec.model,
            stage,
            parallel,
            device,
            precision.compute,
            dropout=spec.training.dropout > 0.0,
            compiled=spec.training.compile,
            zero_stage=spec.zero_stage,
        )
        self._gradients = GradientAllReduce(
            world.rank,
            spec.model,
            atoms,
            self.module,
            world.exchange,
            world.background,
            zero_stage=spec.zero_stage,
            wire=torch.bfloat16 if spec.training.sums == "bf16" else None,
        )
        self.weights = MasterWeights(
            self.module,
            self._gradients,
            world.background,
            master=precision.master,
            zero_stage=spec.zero_stage,
            offload=optimizer.offloads(spec.training.optimizer),
        )
        self.weights.fill(first_weights(spec.model, spec.training.seed), alive, only_frozen=restored)
        self.optimizer = optimizer.build(spec.training, [piece.value for piece in self.weights.pieces])
        self.outer = None
        if len(islands) > 1:
            self.outer = Outer(spec, world, self.module, self.weights, self._shares[self.island])
        self._spans = Spans(device.torch_device)
        if spec.zero_stage >= 2:
            self.module.sharing = PassSharing(self._gradients, self.weights, self._spans)
        self._spent = _NOT_YET
        # CUDA loads a kernel at its first use, and waits until the device is idle. A posted receive keeps it busy. In
        # the first step a stage could wait for itself: the tensor it receives depends on one that it has yet to send.
        self._overlaps = device.torch_device.type != "cuda"
        self._shape = (self._pipeline.microbatch_size, spec.training.sequence_length, spec.model.hidden_size)
        virtual_stages = self._pipeline.virtual_stages
        transfers = [
            Transfers(self._pipeline, number, parallel, world.lanes, device.torch_device)
            for number, (stage_number, _) in enumerate(virtual_stages)
            if stage_number == place.stage
        ]
        wire_s = connected(transfers, len(virtual_stages) - 1, self._shape, self.module.dtype)
        self._wire_s = {
            (doing, chunk): seconds[direction]
            for chunk, seconds in enumerate(wire_s)
            for doing, direction in ((Activity.RECEIVE_ACTIVATION, 1), (Activity.RECEIVE_GRADIENT, -1))
            if direction in seconds
        }
        self._executor = Executor(
            self._pipeline, place.stage, spec.pipeline_schedule, self.module, transfers, self._spans
        )
        # One rank per pipeline reports the loss of its last stage.
        self._reports_loss = self._executor.is_last and place.tp_index == 0
        # Whether buffers that a forward pass changes have the values of one process.
        self.keeps_buffers = len(spec.pipelines) == self._pipeline.microbatches == 1 and self.module.passes_once
        self._steps_here = 0

    @property
    def device(self) -> torch.device:
        return self._device.torch_device

    def step(self, flags: Sequence[float] = ()) -> Step:
        """Train one step; if loss or gradient are not finite, leave the weights unchanged and report it in the result.

        Under loss scaling an infinite gradient is expected occasionally: such a step is skipped, its samples count, and
        islands that are due to meet after it do.
        """
        started = time.perf_counter()
        self._spans.begin()
        self._gradients.clear()
        self.module.clear_gradients()
        loss = self._executor.run(
            self._microbatch,
            self._shape,
            self.module.dtype,
            self._gradients.layer_done,
            self._weights_of,
            overlaps=self._overlaps,
        )
        with self._spans.during(Activity.SYNC):
            squares = self._gradients.finish()
            totals = self._totals(squares, loss, flags)
        self._spans.share()
        rate = optimizer.learning_rate(self.spec.training, self.next_step)
        with self._spans.during(Activity.UPDATE):
            self._update(totals.on_device, rate)
            # Also after a skipped step: it may be the last one.
            if (
                self.outer is not None
                and is_due(self.spec, self.next_step)
                and self._result(totals, flags, rate).counts
            ):
                self.outer.step()
            self.weights.publish()
        self.weights.gather()
        result = self._result(totals, flags, rate)
        self._overlaps = True
        self._steps_here += 1
        # Powers of two: a buffer may first change after many steps, and a comparison costs time.
        if self._steps_here & (self._steps_here - 1) == 0:
            self.check_buffers()
        self.updates += result.finite
        if result.counts:
            self.scale.update(overflowed=result.skipped)
            self.next_step += 1
        return self._timed(result, started)

    def _result(self, totals: _Totals, flags: Sequence[float], rate: float) -> Step:
        """Wait for the totals, and return the result of the step."""
        values, islands = totals.read(), self.islands
        rows = values[islands + 1 + len(flags) :]
        # Each island clips by its own norm; the reported one is their root mean square.
        everywhere = sum(share * each for share, each in zip(self._shares, values, strict=False))
        result = Step(
            loss=values[islands] / self.scale.scale,
            gradient_norm=math.sqrt(everywhere) / self.scale.scale,
            flags=tuple(values[islands + 1 : islands + 1 + len(flags)]),
            rows=tuple(tuple(rows[i : i + ROW_LENGTH]) for i in range(0, len(rows), ROW_LENGTH)),
            learning_rate=rate,
            spent=_NOT_YET,
            update_s=0.0,
        )
        overflowed = math.isfinite(result.loss) and not math.isfinite(result.gradient_norm)
        return replace(result, skipped=self.scale.dynamic and overflowed)

    def check_buffers(self) -> None:
        """Raise RefusedError if a buffer changes from step to step under a plan that gives it another value."""
        if self.keeps_buffers or self.module.buffers is None:
            return
        moved = self.module.buffers.moved()
        # In its first step a module may fill a buffer that stays the same afterwards.
        if moved and self._steps_here > 1:
            raise RefusedError(
                f"{moved[0]} of {self.spec.model.module} changes in forward passes, and its value depends on how this "
                "plan cuts the batch. Such a buffer needs one pipeline with one microbatch, stages of one device and "
                f"no recomputation: make a plan with simulate --layout 'pp=1 dp=1 tp=1 "
                f"microbatch={self.spec.training.global_batch_size}', and give it to up --plan"
            )

    @property
    def spans(self) -> list[Span]:
        """The spans of this rank in the last step."""
        return self._spans.read()

    def exchange(self) -> tuple[tuple[float, ...], ...]:
        """Return the rows of the last step now, if no other step follows; a collective."""
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        rows = self._totals(nothing, nothing, ()).read()[self.islands + 1 :]
        return tuple(tuple(rows[i : i + ROW_LENGTH]) for i in range(0, len(rows), ROW_LENGTH))

    def _totals(self, squares: Tensor, loss: Tensor, flags: Sequence[float]) -> _Totals:
        """Return each island's sum of squares, the sums of loss and flags, then each rank's row, in one message."""
        rows = [0.0] * (self._world.size * ROW_LENGTH)
        rows[self._world.rank * ROW_LENGTH : (self._world.rank + 1) * ROW_LENGTH] = self._spent.row()
        own = [*[0.0] * (self.islands + 1), *flags, *rows]
        totals = torch.tensor(own, dtype=torch.float64, pin_memory=self.device.type == "cuda")
        totals = totals.to(self.device, non_blocking=True)
        totals[self.island] = squares
        if self._reports_loss:
            totals[self.islands] = loss * self._shares[self.island]
        if self._world.size > 1:
            dist.all_reduce(totals, group=self._world.everyone)
        return _Totals(totals)

    def _timed(self, step: Step, started: float) -> Step:
        spans = self._spans.read()
        iteration_s = time.perf_counter() - started
        self._spent = spent(spans, iteration_s, self._wire_s, memory_peak_bytes(self._device.torch_device))
        return replace(step, spent=self._spent, update_s=total_s(spans, Activity.UPDATE))

    def _update(self, totals: Tensor, rate: float) -> None:
        """Move the weights unless loss or gradient norm are not finite; queued without waiting for the totals."""
        training, scale = self.spec.training, self.scale.scale
        everywhere = totals[: self.islands].dot(self._weighting)
        skip = torch.logical_not(torch.isfinite(totals[self.islands]) & torch.isfinite(everywhere))
        factor = None if scale == 1.0 else totals.new_full((), 1.0 / scale)
        if training.gradient_clipping is not None:
            # The same small constant as in torch.nn.utils.clip_grad_norm_ avoids a division by zero.
            norm = totals[self.island].sqrt() / scale
            factor = (training.gradient_clipping / (norm + 1e-6)).clamp(max=1.0) / scale
        self.weights.take_gradients(self._gradients.totals)
        optimizer.step(self.optimizer, rate=rate, factor=factor, skip=skip)

    def _weights_of(self, layer: int) -> None:
        if self.spec.zero_stage > 0:
            with self._spans.during(Activity.GATHER):
                self.weights.wait_for(layer)

    def _microbatch(self, number: int, with_tokens: bool) -> Microbatch:
        training = self.spec.training
        tokens = _NOTHING
        if with_tokens:
            count = self._pipeline.microbatches
            step, following = self.next_step + (number + 1) // count, (number + 1) % count
            # Samples after the last step may not exist.
            more = step == self.next_step or step < training.steps
            numbers = self._numbers(self.next_step, number)
            tokens = self._ahead.read(numbers, self._numbers(step, following) if more else None)
        return Microbatch(
            tokens=tokens[..., :-1],
            targets=tokens[..., 1:],
            # Dividing by all tokens of the island's iteration makes the plain sum over its microbatches the mean.
            weight=self.scale.scale
            / (training.global_batch_size * self._shares[self.island] * training.sequence_length),
            dropout=Dropout(
                probability=training.dropout,
                seed=training.seed,
                step=self.next_step,
                samples=self._positions[number],
            ),
        )

    def _numbers(self, step: int, microbatch: int) -> range:
        """Return the samples of a microbatch of this pipeline."""
        size = self._pipeline.microbatch_size
        first = step * self.spec.training.global_batch_size + self._first_sample + microbatch * size
        return range(first, first + size)
