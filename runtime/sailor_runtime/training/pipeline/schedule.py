"""The order in which one stage computes: DeepSpeed's 1F1B schedule or one of torch's others, without transfers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
    sent once it is computed, and `receives_ahead` says when receives are posted.
    """
    # A single stage has no bubble to fill.
    if schedule == ONE_F_ONE_B or stages == 1:
        return _one_forward_one_backward(microbatches, stages, stage)
    if schedule == INTERLEAVED:
        return _interleaved(microbatches, stages, stage, ranges)
    return _zero_bubble(microbatches, stages, stage)


def receives_ahead(orders: Sequence[Sequence[Pass]], stage: int, ranges: int = 1) -> list[list[tuple[int, int]]]:
    """Return for each pass of a stage the receives to post before it computes, as chunk and direction.

    `orders` are the passes of every stage. A receive is posted after the one before it in its direction, and never
    before the local passes that its tensor depends on: a wait for the device would then wait for itself. What is not
    posted ahead is posted when it is needed, such as the first gradient.
    """
    before = _own_passes_before(orders, stage, ranges)
    ahead: list[list[tuple[int, int]]] = [[] for _ in before]
    last: dict[tuple[int, int], int] = {}
    for number, each in enumerate(orders[stage]):
        received = _received(each, stage, len(orders), ranges)
        if received is None:
            continue
        key = (each.chunk, received.direction)
        earliest = max(last.get(key, 0 if received.direction > 0 else number), before[number])
        if earliest < number:
            ahead[earliest].append(key)
        last[key] = number
    return ahead


class _Sent(NamedTuple):
    """A tensor between virtual stages, by the one that sends it."""

    direction: int
    virtual_stage: int
    microbatch: int


def _received(each: Pass, stage: int, stages: int, ranges: int) -> _Sent | None:
    """Return the tensor that a pass of a stage needs from another one."""
    if each.kind is Kind.WEIGHTS:
        return None
    direction = 1 if each.kind is Kind.FORWARD else -1
    source = each.chunk * stages + stage - direction
    return _Sent(direction, source, each.microbatch) if 0 <= source < stages * ranges else None


def _own_passes_before(orders: Sequence[Sequence[Pass]], stage: int, ranges: int) -> list[int]:
    """Return for each pass of a stage how many of the stage's passes come before its tensor is sent, on any path."""
    sent: dict[_Sent, int] = {}
    most, found = [0] * len(orders), [0] * len(orders[stage])
    left = [deque(enumerate(order)) for order in orders]
    while any(left):
        for number, passes_left in enumerate(left):
            while passes_left:
                at, each = passes_left[0]
                received = _received(each, number, len(orders), ranges)
                if received is not None and received not in sent:
                    break
                passes_left.popleft()
                needed = 0 if received is None else sent[received]
                most[number] = max(most[number], needed)
                if number == stage:
                    found[at], most[number] = needed, at + 1
                if each.kind is not Kind.WEIGHTS:
                    direction = 1 if each.kind is Kind.FORWARD else -1
                    sent[_Sent(direction, each.chunk * len(orders) + number, each.microbatch)] = most[number]
    return found


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
