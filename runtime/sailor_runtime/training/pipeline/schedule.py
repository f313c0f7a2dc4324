"""The order in which one stage computes: DeepSpeed's 1F1B schedule or one of torch's others, without transfers."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import NamedTuple

from sailor_runtime.spec import INTERLEAVED, ONE_F_ONE_B
from sailor_runtime.training.pipeline.deepspeed_schedule import load


class Kind(Enum):
    """`BACKWARD` is a whole backward pass, `INPUT` and `WEIGHTS` are its halves."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "input"
    WEIGHTS = "weights"


class Pass(NamedTuple):
    """`chunk`: the index of the stage's range of layers."""

    kind: Kind
    microbatch: int
    chunk: int = 0


def passes(schedule: str, microbatches: int, stages: int, stage: int, ranges: int = 1) -> tuple[Pass, ...]:
    """Return every pass of a stage in order; each stage has `ranges` ranges of layers.

    The schedules of both libraries also include sends and receives. Here these happen as early as possible: a tensor is
    sent once it is computed, and a receive is posted before the pass that precedes the one that needs it.
    """
    # A single stage has no bubble to fill.
    if schedule == ONE_F_ONE_B or stages == 1:
        return _one_forward_one_backward(microbatches, stages, stage)
    if schedule == INTERLEAVED:
        return _interleaved(microbatches, stages, stage, ranges)
    return _zero_bubble(microbatches, stages, stage)


def microbatches_per_round(microbatches: int, stages: int) -> int | None:
    """Return how many microbatches run through each range of layers at a time; None if they don't divide."""
    return next((count for count in range(stages, 2 * stages) if microbatches % count == 0), None)


def _one_forward_one_backward(microbatches: int, stages: int, stage: int) -> tuple[Pass, ...]:
    schedule = load()
    kinds = {schedule.ForwardPass: Kind.FORWARD, schedule.BackwardPass: Kind.BACKWARD}
    done = dict.fromkeys(kinds.values(), 0)
    result = []
    for commands in schedule.TrainSchedule(microbatches, stages, stage):
        for kind in (kinds[type(command)] for command in commands if type(command) in kinds):
            result.append(Pass(kind, done[kind]))
            done[kind] += 1
    return tuple(result)


def _interleaved(microbatches: int, stages: int, stage: int, ranges: int) -> tuple[Pass, ...]:
    """Return the interleaved 1F1B schedule of Narayanan et al. (SC'21)."""
    from torch.distributed.pipelining import schedules

    per_round = microbatches_per_round(microbatches, stages)
    assert per_round is not None, "pipelines are checked before they run"
    # torch's class requires its own stages and process groups; only the order of these numbers is needed.
    numbers = SimpleNamespace(
        n_local_stages=ranges, pp_group_size=stages, microbatches_per_round=per_round, _n_microbatches=microbatches
    )
    order = schedules.ScheduleInterleaved1F1B._calculate_single_rank_operations
    actions = order(numbers, stage)  # type: ignore[arg-type, no-untyped-call]
    kinds = {"FORWARD": Kind.FORWARD, "FULL_BACKWARD": Kind.BACKWARD}
    return tuple(
        Pass(kinds[action.computation_type.name], action.microbatch_index, action.stage_index // stages)
        for action in actions
        if action is not None
    )


def _zero_bubble(microbatches: int, stages: int, stage: int) -> tuple[Pass, ...]:
    """Return ZB-H1 of Zero Bubble Pipeline Parallelism (ICLR'24).

    No stage holds more microbatches than stage 0 under 1F1B. torch's schedule classes require their own stages and
    process groups, so the function behind them is called.
    """
    from torch.distributed.pipelining import schedules

    ahead = min(stages - 1 - stage, microbatches)
    actions = schedules._get_1f1b_rank_ops(  # type: ignore[no-untyped-call]
        n_local_stages=1,
        pp_group_size=stages,
        warmup_ops=ahead,
        fwd_bwd_ops=microbatches - ahead,
        cooldown_ops=ahead,
        rank=stage,
        forward_stage_index=lambda step: stage,
        backward_stage_index=lambda step: stage,
        num_1f1b_microbatches=stage,
        enable_zero_bubble=True,
    )
    # The first stage has no input gradient to send, and its halves follow each other.
    halves = (Kind.INPUT, Kind.WEIGHTS) if stage else (None, Kind.BACKWARD)
    names = "FORWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"
    kinds = dict(zip(names, (Kind.FORWARD, *halves), strict=True))
    named = ((kinds[action.computation_type.name], action.microbatch_index) for action in actions if action is not None)
    return tuple(Pass(kind, microbatch) for kind, microbatch in named if kind is not None)
