"""Times the real schedule with all ranks running together."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from sailor_runtime.training.engine import Engine, Step
from sailor_runtime.training.pipeline.layout import Place
from sailor_runtime.training.pipeline.process_groups import World

_WARM_UP = 1
_MEASURED = 3


def calibrate(engine: Engine, place: Place, world: World, alive: Callable[[], None]) -> dict[str, Any]:
    """Train a few steps with a fresh engine and return measured seconds of every rank, the same on all ranks.

    Layer times are per microbatch (mean over the measured iterations), the rest per iteration (median).
    """
    for _ in range(_WARM_UP):
        engine.step()
        alive()
    engine.module.times_layers = True
    engine.module.reset_times()
    steps = []
    for _ in range(_MEASURED):
        steps.append(engine.step())
        alive()
    microbatches = engine.spec.pipelines[place.pipeline].microbatches * _MEASURED
    layers = engine.module.layers
    forward_s, backward_s = engine.module.layer_times()
    own = {
        "rank": world.rank,
        "pipeline": place.pipeline,
        "stage": place.stage,
        "tp_index": place.tp_index,
        "layers": list(layers),
        "forward_s": [forward_s[layer] / microbatches for layer in layers],
        "backward_s": [backward_s[layer] / microbatches for layer in layers],
        "transfer_s": _median(steps, "transfer_s"),
        "sync_s": _median(steps, "sync_s"),
        "update_s": _median(steps, "update_s"),
    }
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, own, group=world.everyone)
    return {"iteration_s": _median(steps, "iteration_s"), "iterations": _MEASURED, "ranks": everyone}


def _median(steps: list[Step], name: str) -> float:
    return statistics.median(getattr(step, name) for step in steps)
