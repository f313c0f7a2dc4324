"""What is compared: the runtime and other programs that train the same decoder under the same uniform plan.

Each is made once, inside a world that has been joined, and then asked for one optimizer step at a time. All of them
run the same modules of transformers, accumulate the same microbatches, clip at the same norm and update with torch's
fused AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from model import groups, layers, loss_of
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import verify
from sailor_runtime.training.data.samples import SyntheticSamples
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.optimizer.optimizer import ADAM_BETAS, ADAM_EPSILON
from sailor_runtime.training.optimizer.precision import precision_of
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import device_of
from sailor_runtime.training.pipeline.process_groups import World


class Runtime:
    """sailor_runtime."""

    def __init__(self, spec: RunSpec, rank: int, world: World) -> None:
        device = device_of(spec.node_of(rank), 0)
        self._samples = SyntheticSamples(spec.model.vocab_size, spec.training.sequence_length, spec.training.seed)
        place, precision = layout.places(spec)[rank], precision_of(spec.training.precision)
        self._engine = Engine(spec, place, world, layout.atoms(spec), self._samples, device, precision)

    def step(self) -> float:
        return self._engine.step().loss

    def difference(self, world: World, steps: int = 3) -> float:
        """Return the largest difference of weights from one process after some steps; a collective."""
        found = verify.verify(
            self._engine, world, self._samples, steps=steps, tolerance=verify.TOLERANCE, alive=lambda: None
        )
        return found.max_abs_difference

    def forbid_waits(self) -> None:
        """Make it an error if the host waits for a CUDA device between backward pass and optimizer."""
        engine = self._engine
        for owner, name in ((engine._gradients, "finish"), (engine, "_totals"), (engine, "_update")):
            setattr(owner, name, _without_waits(getattr(owner, name)))


class PlainLoop:
    """One device and an ordinary loop."""

    def __init__(self, spec: RunSpec, rank: int, world: World) -> None:
        self._spec = spec
        self._device = device_of(spec.node_of(rank), 0).torch_device
        self._module = nn.Sequential(*layers(spec.model)).to(self._device)
        self._optimizer = _optimizer(spec, list(self._module.parameters()))
        self._batches = _batches(spec, 0, self._device)
        self._low = precision_of(spec.training.precision).compute
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=self._low == torch.float16)

    def step(self) -> float:
        total = 0.0
        microbatches = self._spec.pipelines[0].microbatches
        self._optimizer.zero_grad()
        for tokens, targets in next(self._batches):
            with torch.autocast(self._device.type, self._low, enabled=self._low.itemsize < 4):
                loss = loss_of(self._module(tokens), targets) / microbatches
            self._scaler.scale(loss).backward()
            total += loss.detach()
        self._scaler.unscale_(self._optimizer)
        _clip(self._spec, list(self._module.parameters()))
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return float(total)


class TorchDDP:
    """torch's DistributedDataParallel, as its documentation has it: gradients are summed at the last microbatch."""

    def __init__(self, spec: RunSpec, rank: int, world: World) -> None:
        self._spec = spec
        device = device_of(spec.node_of(rank), 0).torch_device
        ids = None if device.type == "cpu" else [device]
        whole = nn.Sequential(*layers(spec.model)).to(device)
        self._module = nn.parallel.DistributedDataParallel(whole, device_ids=ids)
        self._optimizer = _optimizer(spec, list(self._module.parameters()))
        self._batches = _batches(spec, layout.places(spec)[rank].pipeline, device)
        self._own = spec.pipelines[layout.places(spec)[rank].pipeline].microbatches

    def step(self) -> float:
        total = torch.zeros(())
        self._optimizer.zero_grad()
        for number, (tokens, targets) in enumerate(next(self._batches)):
            with self._module.no_sync() if number < self._own - 1 else nullcontext():
                loss = loss_of(self._module(tokens), targets) / self._own
                loss.backward()
            total += loss.detach().cpu()
        _clip(self._spec, list(self._module.parameters()))
        self._optimizer.step()
        dist.all_reduce(total)
        return total.item() / len(self._spec.pipelines)


class TorchPipelining:
    """torch.distributed.pipelining's 1F1B, gradients of replicas summed in one message."""

    def __init__(self, spec: RunSpec, rank: int, world: World) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        self._spec = spec
        place = layout.places(spec)[rank]
        pipeline = spec.pipelines[place.pipeline]
        stage = pipeline.stages[place.stage]
        self._first, self._last = place.stage == 0, place.stage == len(pipeline.stages) - 1
        self._module = nn.Sequential(*layers(spec.model)[stage.first_layer : stage.end_layer])
        every = [[stage.ranks[0] for stage in pipeline.stages] for pipeline in spec.pipelines]
        own = [dist.new_group(ranks) for ranks in every][place.pipeline]
        self._replicas = [dist.new_group(list(ranks)) for ranks in zip(*every, strict=True)][place.stage]
        built = PipelineStage(self._module, place.stage, len(pipeline.stages), torch.device("cpu"), group=own)
        self._schedule = Schedule1F1B(built, pipeline.microbatches, loss_fn=loss_of)
        self._optimizer = _optimizer(spec, list(self._module.parameters()))
        self._batches = _batches(spec, place.pipeline, torch.device("cpu"))

    def step(self) -> float:
        microbatches = next(self._batches)
        tokens, targets = (torch.cat(parts) for parts in zip(*microbatches, strict=True))
        self._optimizer.zero_grad()
        losses: list[Tensor] = []
        inputs = (tokens,) if self._first else ()
        self._schedule.step(*inputs, **({"target": targets, "losses": losses} if self._last else {}))
        parameters = list(self._module.parameters())
        _sum_over_replicas(parameters, self._replicas, len(self._spec.pipelines))
        _clip_over_ranks(self._spec, parameters)
        self._optimizer.step()
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.all_reduce(loss)
        return loss.item() / len(self._spec.pipelines)


class DeepSpeedPipeline:
    """DeepSpeed's PipelineEngine, started as its documentation has it; its extension is compiled before the world."""

    def __init__(self, spec: RunSpec, rank: int, world: World) -> None:
        import deepspeed
        from deepspeed.pipe import PipelineModule

        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        place = layout.places(spec)[rank]
        pipeline = spec.pipelines[place.pipeline]
        module = PipelineModule(
            layers(spec.model), num_stages=len(pipeline.stages), loss_fn=loss_of, partition_method="uniform"
        )
        config = {
            "train_batch_size": spec.training.global_batch_size,
            "train_micro_batch_size_per_gpu": pipeline.microbatch_size,
            "gradient_accumulation_steps": pipeline.microbatches,
            "gradient_clipping": spec.training.gradient_clipping,
            "steps_per_print": 1_000_000,
        }
        optimizer = _optimizer(spec, list(module.parameters()))
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        # DeepSpeed numbers the ranks of a plan in its own order.
        replica = self._engine.grid.get_data_parallel_id()
        self._batches = self._flat(_batches(spec, replica, torch.device("cpu")))

    def step(self) -> float:
        return float(self._engine.train_batch(self._batches))

    @staticmethod
    def _flat(batches: Iterator[list[tuple[Tensor, Tensor]]]) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            yield from batch


CONTENDERS: dict[str, Any] = {
    "runtime": Runtime,
    "plain loop": PlainLoop,
    "torch DDP": TorchDDP,
    "torch.distributed.pipelining": TorchPipelining,
    "DeepSpeed PipelineEngine": DeepSpeedPipeline,
}


def _without_waits(function: Callable[..., Any]) -> Callable[..., Any]:
    def strict(*arguments: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return function(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return strict


def _optimizer(spec: RunSpec, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
    training = spec.training
    return torch.optim.AdamW(
        groups(parameters, training.weight_decay),
        lr=training.learning_rate,
        betas=ADAM_BETAS,
        eps=ADAM_EPSILON,
        fused=True,
    )


def _batches(spec: RunSpec, pipeline: int, device: torch.device) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield the microbatches of each step, the same samples that the runtime reads."""
    training, own = spec.training, spec.pipelines[pipeline]
    samples = SyntheticSamples(spec.model.vocab_size, training.sequence_length, training.seed)
    before = sum(each.microbatch_size * each.microbatches for each in spec.pipelines[:pipeline])
    step = 0
    while True:
        first = step * training.global_batch_size + before
        starts = [first + number * own.microbatch_size for number in range(own.microbatches)]
        read = [samples.read(range(start, start + own.microbatch_size)).to(device) for start in starts]
        yield [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()) for tokens in read]
        step += 1


def _sum_over_replicas(parameters: list[nn.Parameter], group: dist.ProcessGroup, count: int) -> None:
    if count == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    flat /= count
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def _clip(spec: RunSpec, parameters: list[nn.Parameter]) -> None:
    if spec.training.gradient_clipping is not None:
        nn.utils.clip_grad_norm_(parameters, spec.training.gradient_clipping)


def _clip_over_ranks(spec: RunSpec, parameters: list[nn.Parameter]) -> None:
    """Clip by the norm over all stages; replicas hold equal gradients, so each counts as many times as there are."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.stack(torch._foreach_norm(gradients)).pow(2).sum() / len(spec.pipelines)
    dist.all_reduce(squares)
    limit = spec.training.gradient_clipping
    if limit is not None:
        torch._foreach_mul_(gradients, min(1.0, limit / (squares.sqrt().item() + 1e-6)))
