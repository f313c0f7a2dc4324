"""Checks a plan before it trains: some steps in float64 against one process, all weights compared."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.spec import RunSpec
from sailor_runtime.training import reference
from sailor_runtime.training.data.samples import Samples
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.model.architecture import range_parameters
from sailor_runtime.training.pipeline.layout import islands, samples_of
from sailor_runtime.training.pipeline.process_groups import World

TOLERANCE = 1e-10


# With fewer elements in a batch's hidden states, threads wait for each other longer than they compute.
_WORTH_THREADS = 2**17
_MOST_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The largest differences over all weights of all ranks, and over losses and gradient norms of the steps.

    That of norms is relative for norms above 1. Only norms show a factor on all gradients: Adam divides it out.
    """

    steps: int
    losses: tuple[float, ...]
    max_abs_difference: float
    loss_difference: float
    norm_difference: float
    tolerance: float
    seconds: float

    @property
    def passed(self) -> bool:
        # Written so that NaN differences fail.
        differences = (self.max_abs_difference, self.loss_difference, self.norm_difference)
        return all(difference <= self.tolerance for difference in differences)


def verify(
    engine: Engine, world: World, samples: Samples, *, steps: int, tolerance: float, alive: Callable[[], None]
) -> Verification:
    """Train `steps` steps with a fresh engine, then compare it with the reference, which rank 0 trains.

    alive: called after every step, so that a long check does not seem to hang.
    """
    started = time.perf_counter()
    done = []
    for _ in range(steps):
        done.append(engine.step())
        alive()
    buffers = engine.module.buffers
    whole = _largest(float(buffers is not None and bool(buffers.changed())), world, engine.device) > 0.0
    expected = None
    if world.rank == 0:
        expected = _reference(engine, samples, steps, alive, whole=whole)
    difference = weight_difference(engine, world, expected)
    loss_difference = norm_difference = 0.0
    if expected is not None:
        loss_difference = max(abs(step.loss - b) for step, b in zip(done, expected.losses, strict=True))
        norm_difference = max(
            abs(step.gradient_norm - b) / max(1.0, b) for step, b in zip(done, expected.gradient_norms, strict=True)
        )
    return Verification(
        steps=steps,
        losses=tuple(step.loss for step in done),
        max_abs_difference=difference,
        loss_difference=_largest(loss_difference, world, engine.device),
        norm_difference=_largest(norm_difference, world, engine.device),
        tolerance=tolerance,
        seconds=time.perf_counter() - started,
    )


@torch.no_grad()
def weight_difference(engine: Engine, world: World, expected: reference.ReferenceResult | None) -> float:
    """Return the largest difference between `expected` (needed on rank 0) and any rank's weights; a collective."""
    spec, largest = engine.spec, 0.0
    engine.weights.wait_for_all()
    parameters = sorted(range_parameters(spec.model, range(spec.model.layers)).items())
    for island, (name, parameter) in product(range(engine.islands), parameters):
        whole = torch.empty(parameter.shape, dtype=torch.float64, device=engine.device)
        if expected is not None:
            whole.copy_((expected.weights, *expected.others)[island][name])
        dist.broadcast(whole, 0, group=world.everyone)
        if name in engine.module.shards and island == engine.island:
            for offsets, held in engine.weights.local_parts(name):
                box = tuple(slice(first, first + size) for first, size in zip(offsets, held.shape, strict=True))
                difference = (held - whole[box]).abs().max().item()
                largest = math.inf if math.isnan(difference) else max(largest, difference)
    return _largest(largest, world, engine.device)


def _largest(value: float, world: World, device: torch.device) -> float:
    """Return the largest value over all ranks; infinite if one is not a number."""
    result = torch.tensor(math.inf if math.isnan(value) else value, dtype=torch.float64, device=device)
    dist.all_reduce(result, op=dist.ReduceOp.MAX, group=world.everyone)
    return result.item()


def reference_of(
    spec: RunSpec,
    read: Callable[[range], Tensor],
    *,
    steps: int,
    dtype: torch.dtype = torch.float64,
    after_step: Callable[[], None] = lambda: None,
    chunk: int | None = None,
) -> reference.ReferenceResult:
    """Train a spec in this process alone."""
    apart = [[samples_of(spec, pipeline) for pipeline in island] for island in islands(spec)]
    return reference.train(
        spec.model,
        spec.training,
        read,
        steps=steps,
        dtype=dtype,
        after_step=after_step,
        apart=apart if len(apart) > 1 else (),
        chunk=chunk,
    )


def _reference(
    engine: Engine, samples: Samples, steps: int, alive: Callable[[], None], *, whole: bool
) -> reference.ReferenceResult:
    """Train in this process; `whole`: a forward pass takes a whole batch, because it changes buffers."""
    spec, threads = engine.spec, torch.get_num_threads()
    hidden = spec.training.global_batch_size * spec.training.sequence_length * spec.model.hidden_size
    # The other ranks wait meanwhile, so the reference may use the whole processor, if that is worth it.
    cores = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    torch.set_num_threads(cores if hidden >= _WORTH_THREADS else 1)
    try:
        chunk = spec.training.global_batch_size if whole else None
        return reference_of(spec, samples.read, steps=steps, dtype=engine.module.dtype, after_step=alive, chunk=chunk)
    finally:
        torch.set_num_threads(threads)
