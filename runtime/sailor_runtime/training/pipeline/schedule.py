"""The order in which one stage computes: DeepSpeed's 1F1B schedule, without its transfers."""

from __future__ import annotations

from sailor_runtime.training.pipeline.deepspeed_schedule import load


def passes(microbatches: int, stages: int, stage: int) -> tuple[tuple[bool, int], ...]:
    """Return (is it a forward pass, microbatch) for every pass of a stage in order.

    DeepSpeed's schedule also says when to send and receive, which here happens as early as it can: a tensor is sent
    once it is computed, and a receive is posted before the pass that precedes the one that needs it.
    """
    schedule = load()
    result = []
    forward = backward = 0
    for commands in schedule.TrainSchedule(microbatches, stages, stage):
        for command in commands:
            if isinstance(command, schedule.ForwardPass):
                result.append((True, forward))
                forward += 1
            elif isinstance(command, schedule.BackwardPass):
                result.append((False, backward))
                backward += 1
    return tuple(result)
