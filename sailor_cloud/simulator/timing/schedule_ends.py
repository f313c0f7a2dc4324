"""Computes the stages' ends in a replay of one pipeline without recording it, for any number of microbatches.

Equal to `replay` except for rounding. A 1F1B schedule becomes periodic once every stage alternates between forward and
backward passes: after some rounds all clocks have advanced by the same time, and equal rounds follow. They are counted
instead of run. If that takes long, the remaining rounds are one power of a max-plus matrix: a round only adds times and
takes maxima.
"""

from __future__ import annotations

import math
from dataclasses import replace as replaced
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.simulator.engine import Transfers
from sailor_cloud.simulator.timing.replay import PipelineTimes, replay

Floats = NDArray[np.float64]

# Clock advances count as equal if they differ by less than this share of the elapsed time.
_EQUAL = 1e-12
# Rounds that are run before the matrix is computed, which takes about as long.
_RUN = 500
# Other schedules, and transfers that block stages, are run for up to twice this many microbatches. Beyond, each further
# stride takes the same time. That is exact for schedules whose period divides it.
_STRIDE = 840
# The number of cached pipelines; a search asks for the same ones repeatedly.
_KEPT = 1 << 15


class ScheduleEnds(NamedTuple):
    """Per stage the end of its passes and its waits for tensors; per virtual stage the start of its last backward."""

    end_s: tuple[float, ...]
    last_backward_start_s: tuple[float, ...]
    transfer_s: tuple[float, ...]


@lru_cache(maxsize=_KEPT)
def schedule_ends(times: PipelineTimes, transfers: Transfers) -> ScheduleEnds:
    """Return when the stages of a pipeline end, in seconds of the iteration."""
    if transfers is Transfers.OVERLAPPED and not times.halved and times.chunks == 1:
        return _overlapped(times)
    # With several layer ranges, microbatches run in rounds.
    stride = _STRIDE if times.chunks == 1 else math.lcm(_STRIDE, times.per_round or times.stages)
    if times.microbatches <= 2 * stride:
        return _ends(times, transfers)
    more, rest = divmod(times.microbatches - 2 * stride, stride)
    first, second = (_ends(replaced(times, microbatches=count + rest), transfers) for count in (stride, 2 * stride))
    return ScheduleEnds(
        *(
            tuple(after + more * (after - before) for before, after in zip(*both, strict=True))
            for both in zip(first, second, strict=True)
        )
    )


def _ends(times: PipelineTimes, transfers: Transfers) -> ScheduleEnds:
    done = replay(times, transfers)
    return ScheduleEnds(done.end_s, done.last_backward_start_s, done.transfer_s)


class _Round(NamedTuple):
    """The state after a round of the schedule, before a slot; `held_s` as `ScheduleEnds.transfer_s`."""

    slot: int
    state: tuple[float, ...]
    held_s: tuple[float, ...]


def _overlapped(times: PipelineTimes) -> ScheduleEnds:
    """Run the schedule slot by slot.

    Stage s of S has the forward pass of microbatch m in slot 2m + s, the backward pass in slot 2m + 2S - 1 - s. A cut
    carries one tensor at a time in each direction, and a pass needs the tensor that was posted in the slot before.
    """
    forward, backward, count = times.forward_s, times.backward_s, times.microbatches
    stages = len(forward)
    if stages == 1:
        end = count * (forward[0] + backward[0])
        return ScheduleEnds((end,), (end - backward[0],), (0.0,))
    activation, gradient = (*times.activation_s, 0.0), (0.0, *times.gradient_s)
    clock, begun, held = [0.0] * stages, [0.0] * stages, [0.0] * stages
    # The arrival of the latest activation at each stage, and of the latest gradient.
    here, back = [0.0] * (stages + 1), [0.0] * (stages + 1)
    last, slot, rounds = 2 * count - 2, 0, 0
    # The previous round, and the latest one whose number is a power of two: a period may be longer than a round.
    before = marked = _Round(0, (), ())
    while slot < 2 * (count + stages - 1):
        for stage in range(max(slot & 1, slot - last), min(stages, slot + 1), 2):
            now = clock[stage]
            if here[stage] > now and stage:
                held[stage] += min(here[stage] - now, activation[stage - 1])
                now = here[stage]
            clock[stage] = now = now + forward[stage]
            there = here[stage + 1]
            here[stage + 1] = (now if now > there else there) + activation[stage]
        for stage in range(max((slot + 1) & 1, 2 * stages - 1 - slot), min(stages, 2 * stages - slot + last), 2):
            now = clock[stage]
            if back[stage + 1] > now and stage < stages - 1:
                held[stage] += min(back[stage + 1] - now, gradient[stage + 1])
                now = back[stage + 1]
            begun[stage] = now
            clock[stage] = now = now + backward[stage]
            there = back[stage]
            back[stage] = (now if now > there else there) + gradient[stage]
        slot += 1
        if slot & 1 or not 2 * stages - 1 < slot < last - 1 or rounds > _RUN:
            continue
        rounds += 1
        done = _Round(slot, (*clock, *here[1:stages], *back[1:stages]), tuple(held))
        since = before if _repeats(before, done) else marked if _repeats(marked, done) else None
        if since is not None:
            runs: float = (last - slot) // (slot - since.slot)
            more = runs * (done.state[0] - since.state[0])
            clock, here, back = ([each + more for each in those] for those in (clock, here, back))
            slot += int(runs) * (slot - since.slot)
        elif rounds == _RUN and last - slot > 2 * _RUN:
            since, runs = marked, (last - slot) / (slot - marked.slot)
            state = _power(_matrix(times), (last - slot) // 2, np.array(done.state)).tolist()
            clock, here[1:stages], back[1:stages] = (
                state[:stages],
                state[stages : 2 * stages - 1],
                state[2 * stages - 1 :],
            )
            slot = last
        else:
            before, marked = done, done if rounds & (rounds - 1) == 0 else marked
            continue
        held = [now + runs * (now - then) for now, then in zip(held, since.held_s, strict=True)]
        rounds = _RUN + 1
    return ScheduleEnds(tuple(clock), tuple(begun), tuple(held))


def _repeats(one: _Round, other: _Round) -> bool:
    """Return whether all clocks advanced by the same time from one round to another."""
    if not one.state:
        return False
    moved = other.state[0] - one.state[0]
    return all(abs(after - old - moved) <= _EQUAL * after for after, old in zip(other.state, one.state, strict=True))


def _matrix(times: PipelineTimes) -> Floats:
    """Return what a round adds from each number of the state to each: row i has the paths that end in number i."""
    stages = len(times.forward_s)
    start = np.where(np.eye(3 * stages - 2, dtype=bool), 0.0, -np.inf)
    nothing = np.full(len(start), -np.inf)
    clock = list(start[:stages])
    here = [nothing, *start[stages : 2 * stages - 1], nothing]
    back = [nothing, *start[2 * stages - 1 :], nothing]
    activation, gradient = (*times.activation_s, 0.0), (0.0, *times.gradient_s)
    for parity in (0, 1):
        for stage in range(parity, stages, 2):
            clock[stage] = np.maximum(clock[stage], here[stage]) + times.forward_s[stage]
            here[stage + 1] = np.maximum(clock[stage], here[stage + 1]) + activation[stage]
        for stage in range(1 - parity, stages, 2):
            clock[stage] = np.maximum(clock[stage], back[stage + 1]) + times.backward_s[stage]
            back[stage] = np.maximum(clock[stage], back[stage]) + gradient[stage]
        here[stages] = back[0] = nothing
    return np.array([*clock, *here[1:stages], *back[1:stages]])


def _power(matrix: Floats, times: int, state: Floats) -> Floats:
    """Return a state after `times` rounds."""
    while times:
        if times & 1:
            state = (matrix + state).max(axis=1)
        times >>= 1
        matrix = np.array([(row[:, None] + matrix).max(axis=0) for row in matrix]) if times else matrix
    return state
