"""One rank's training state under a plan, and one optimizer step of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.spec import RunSpec
from sailor_runtime.training import optimizer
from sailor_runtime.training.data import Samples
from sailor_runtime.training.decoder import Microbatch
from sailor_runtime.training.devices import Device
from sailor_runtime.training.dropout import Dropout
from sailor_runtime.training.executor import Executor
from sailor_runtime.training.first_weights import first_weights
from sailor_runtime.training.gradients import GradientSum
from sailor_runtime.training.layout import Atom, Place
from sailor_runtime.training.loss_scale import FIRST_SCALE, LossScale
from sailor_runtime.training.precision import Precision
from sailor_runtime.training.stage import StageModule
from sailor_runtime.training.tensor_parallel import TensorParallel
from sailor_runtime.training.weights import MasterWeights
from sailor_runtime.training.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step came to; seconds are this rank's. `flags` are the sums over ranks of what each passed in."""

    loss: float
    gradient_norm: float
    flags: tuple[float, ...]
    learning_rate: float
    iteration_s: float
    compute_s: float
    transfer_s: float
    sync_s: float
    update_s: float
    skipped: bool = False

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


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
    ) -> None:
        self.spec = spec
        self.scale = LossScale(scale=FIRST_SCALE, dynamic=True) if precision.scales_loss else LossScale()
        self.next_step = 0
        self.updates = 0
        self._world = world
        self._samples = samples
        self._device = device
        self._pipeline = spec.pipelines[place.pipeline]
        self._first_sample = sum(p.microbatch_size * p.microbatches for p in spec.pipelines[: place.pipeline])
        stage = self._pipeline.stages[place.stage]
        parallel = TensorParallel(world.group(stage.ranks), len(stage.ranks), place.tp_index)
        self.module = StageModule(spec.model, stage, parallel, device, precision.compute)
        self.weights = MasterWeights(
            world.rank, self.module, atoms, world.group, master=precision.master, zero_stage=spec.zero_stage
        )
        self.weights.fill(first_weights(spec.model, spec.training.seed))
        self.optimizer = optimizer.build(spec.training, [piece.value for piece in self.weights.pieces])
        self._gradients = GradientSum(world.rank, atoms, self.module, world.group)
        self._executor = Executor(self._pipeline, place.stage, place.tp_index, self.module)
        # One rank per pipeline reports the loss of its last stage.
        self._reports_loss = self._executor.is_last and place.tp_index == 0

    @property
    def device(self) -> torch.device:
        return self._device.torch_device

    def step(self, flags: Sequence[float] = ()) -> Step:
        """Train one step; where loss or gradient are not finite, leave the weights alone and say so in the result.

        Under loss scaling an infinite gradient is expected now and then: such a step is skipped, its samples count.
        """
        started = time.perf_counter()
        training = self.spec.training
        self.module.clear_gradients()
        shape = (self._pipeline.microbatch_size, training.sequence_length, self.spec.model.hidden_size)
        loss = self._executor.run(self._microbatch, shape, self.module.dtype)
        summing = time.perf_counter()
        squares = self._gradients.run()
        totals = torch.stack([squares, loss if self._reports_loss else torch.zeros_like(loss)])
        totals = torch.cat([totals, torch.tensor(list(flags), dtype=torch.float64)]).to(self._device.torch_device)
        dist.all_reduce(totals, group=self._world.everyone)
        norm = totals[0].sqrt().item() / self.scale.scale
        updating = time.perf_counter()
        rate = optimizer.learning_rate(training, self.next_step)
        result = Step(
            loss=totals[1].item() / self.scale.scale,
            gradient_norm=norm,
            flags=tuple(totals[2:].tolist()),
            learning_rate=rate,
            iteration_s=0.0,
            compute_s=self._executor.compute_s,
            transfer_s=self._executor.transfer_s,
            sync_s=updating - summing,
            update_s=0.0,
        )
        overflowed = math.isfinite(result.loss) and not math.isfinite(norm)
        result = replace(result, skipped=self.scale.dynamic and overflowed)
        if result.finite:
            self._update(norm, rate)
            self.updates += 1
        if result.finite or result.skipped:
            self.scale.update(overflowed=result.skipped)
            self.next_step += 1
        ended = time.perf_counter()
        update_s = ended - updating
        return replace(result, iteration_s=ended - started, update_s=update_s, compute_s=result.compute_s + update_s)

    def _update(self, norm: float, rate: float) -> None:
        limit = self.spec.training.gradient_clipping
        factor = 1.0 / self.scale.scale
        # The same small constant as torch.nn.utils.clip_grad_norm_ keeps the division defined.
        if limit is not None and limit / (norm + 1e-6) < 1.0:
            factor *= limit / (norm + 1e-6)
        if factor != 1.0:
            self._gradients.scale(factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.weights.take_gradients()
        self.optimizer.step()
        self.weights.publish()

    def _microbatch(self, number: int) -> Microbatch:
        training, size = self.spec.training, self._pipeline.microbatch_size
        first = self._first_sample + number * size
        device = self._device.torch_device
        needed = self._executor.is_first or self._executor.is_last
        base = self.next_step * training.global_batch_size
        tokens = self._samples.read(range(base + first, base + first + size)).to(device) if needed else _NOTHING
        return Microbatch(
            tokens=tokens[..., :-1],
            targets=tokens[..., 1:],
            # Dividing by all tokens of the iteration makes the plain sum over microbatches and pipelines the mean.
            weight=self.scale.scale / (training.global_batch_size * training.sequence_length),
            dropout=Dropout(
                probability=training.dropout,
                seed=training.seed,
                step=self.next_step,
                samples=torch.arange(first, first + size, device=device),
            ),
        )
