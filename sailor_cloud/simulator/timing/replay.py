"""Replays the schedule of one pipeline operation by operation, in the order in which the runtime runs it.

The order is DeepSpeed's for 1F1B, and torch's for a zero-bubble or an interleaved schedule. A stage runs its operations
one after the other. A send starts when its tensor exists and, depending on the program, blocks both ends, only the
receiver, or neither.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from sailor_cloud.simulator.engine import Transfers


class Operation(IntEnum):
    FORWARD = 0
    BACKWARD = 1
    RECEIVE_ACTIVATION = 2
    SEND_ACTIVATION = 3
    RECEIVE_GRADIENT = 4
    SEND_GRADIENT = 5
    WEIGHT_GRADIENTS = 6


Step = tuple[Operation, int]
# With the index of the stage's layer range.
ChunkStep = tuple[Operation, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """Seconds of one microbatch: forward and backward per stage, activation and gradient transfer per cut.

    `weights_s`: the part of each backward pass that a zero-bubble schedule defers; empty under 1F1B. If stages have
    several layer ranges, `chunks`, passes and cuts are those of each virtual stage, in the microbatch's order.
    `per_round` microbatches run through each range at a time, by default as many as there are stages.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    activation_s: tuple[float, ...]
    gradient_s: tuple[float, ...]
    microbatches: int
    weights_s: tuple[float, ...] = ()
    chunks: int = 1
    per_round: int | None = None

    @property
    def stages(self) -> int:
        return len(self.forward_s) // self.chunks

    @property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds that each stage computes in an iteration."""
        passes = [forward + backward for forward, backward in zip(self.forward_s, self.backward_s, strict=True)]
        return tuple(self.microbatches * sum(passes[stage :: self.stages]) for stage in range(self.stages))

    @property
    def halved(self) -> bool:
        """Whether backward passes are halved; a single stage has no bubble to fill."""
        return bool(self.weights_s) and len(self.forward_s) > 1

    def reached_s(self, virtual_stage: int) -> float:
        """Return the earliest time of the first microbatch at a stage."""
        return sum(self.forward_s[:virtual_stage]) + sum(self.activation_s[:virtual_stage])


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One operation of one stage, for a timeline; seconds count from the start of the iteration.

    `chunk`: the index of the stage's layer range; None if each stage has one.
    """

    stage: int
    what: str
    microbatch: int
    chunk: int | None
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReplay:
    """The end of each stage's last pass, its compute time, and its waits for tensors.

    `last_backward_start_s`: the start of the pass that completes the gradients of the weights, by virtual stage.
    """

    end_s: tuple[float, ...]
    last_backward_start_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    spans: tuple[Span, ...]


@lru_cache(maxsize=4096)
def stage_steps(stages: int, stage: int, microbatches: int, *, eager: bool = False) -> tuple[Step, ...]:
    """Return the operations of one stage in order.

    Forward of microbatch m is in slot 2m + stage, backward in slot 2m + 2 stages - 1 - stage. A tensor is sent in the
    slot after the one that computed it, before that slot's activation arrives and after its gradient has. An `eager`
    program sends it immediately.
    """
    slots = [(2 * m + stage, Operation.FORWARD, m) for m in range(microbatches)]
    slots += [(2 * m + 2 * stages - 1 - stage, Operation.BACKWARD, m) for m in range(microbatches)]
    slots.sort()
    steps: list[Step] = []
    pending: Step | None = None
    first, last = stage == 0, stage == stages - 1
    for i, (slot, what, m) in enumerate(slots):
        if pending is not None and slots[i - 1][0] != slot - 1:
            steps.append(pending)
            pending = None
        if what is Operation.FORWARD:
            if pending is not None:
                steps.append(pending)
            if not first:
                steps.append((Operation.RECEIVE_ACTIVATION, m))
        else:
            if not last:
                steps.append((Operation.RECEIVE_GRADIENT, m))
            if pending is not None:
                steps.append(pending)
        pending = None
        steps.append((what, m))
        if what is Operation.FORWARD and not last:
            pending = (Operation.SEND_ACTIVATION, m)
        elif what is Operation.BACKWARD and not first:
            pending = (Operation.SEND_GRADIENT, m)
        if eager and pending is not None:
            steps.append(pending)
            pending = None
    if pending is not None:
        steps.append(pending)
    return tuple(steps)


@lru_cache(maxsize=4096)
def zero_bubble_steps(stages: int, stage: int, microbatches: int) -> tuple[Step, ...]:
    """Return the operations of one of several stages under ZB-H1, which sends tensors immediately.

    Stage s begins with S - 1 - s forward passes, then alternates. Gradients of weights are deferred by s microbatches,
    so that no stage holds more microbatches than the first one does under 1F1B. Source: Zero Bubble Pipeline
    Parallelism, ICLR'24, as torch.distributed.pipelining's ScheduleInterleavedZeroBubble with a stage per rank.
    """
    ahead = min(stages - 1 - stage, microbatches)
    steps: list[Step] = []
    for number in range(microbatches + ahead):
        if number < microbatches:
            if stage > 0:
                steps.append((Operation.RECEIVE_ACTIVATION, number))
            steps.append((Operation.FORWARD, number))
            if stage < stages - 1:
                steps.append((Operation.SEND_ACTIVATION, number))
        back = number - ahead
        if back < 0:
            continue
        if stage < stages - 1:
            steps.append((Operation.RECEIVE_GRADIENT, back))
        steps.append((Operation.BACKWARD, back))
        # The first stage has no input gradient to send, and its passes stay whole.
        if stage > 0:
            steps.append((Operation.SEND_GRADIENT, back))
            if back >= stage:
                steps.append((Operation.WEIGHT_GRADIENTS, back - stage))
    if stage > 0:
        steps += [(Operation.WEIGHT_GRADIENTS, m) for m in range(max(0, microbatches - stage), microbatches)]
    return tuple(steps)


@lru_cache(maxsize=4096)
def interleaved_steps(stages: int, stage: int, microbatches: int, chunks: int, per_round: int) -> tuple[ChunkStep, ...]:
    """Return the operations of one of several stages with `chunks` layer ranges, which sends tensors immediately.

    `per_round` microbatches, a divisor of all and no fewer than the stages, run through each range at a time. A stage
    begins with the forward passes of a round through all ranges except the last. It adds two more for each stage after
    it, then alternates. Source: Narayanan et al. (SC'21), as torch.distributed.pipelining's ScheduleInterleaved1F1B.
    """
    round_passes, count, last = per_round * chunks, microbatches * chunks, stages * chunks - 1
    ahead = min((chunks - 1) * per_round + 2 * (stages - 1 - stage), count)
    steps: list[ChunkStep] = []
    for number in range(count + ahead):
        if number < count:
            chunk, place = divmod(number % round_passes, per_round)
            microbatch, virtual_stage = number // round_passes * per_round + place, chunk * stages + stage
            if virtual_stage > 0:
                steps.append((Operation.RECEIVE_ACTIVATION, microbatch, chunk))
            steps.append((Operation.FORWARD, microbatch, chunk))
            if virtual_stage < last:
                steps.append((Operation.SEND_ACTIVATION, microbatch, chunk))
        back = number - ahead
        if back < 0:
            continue
        chunk, place = divmod(back % round_passes, per_round)
        chunk = chunks - 1 - chunk
        microbatch, virtual_stage = back // round_passes * per_round + place, chunk * stages + stage
        if virtual_stage < last:
            steps.append((Operation.RECEIVE_GRADIENT, microbatch, chunk))
        steps.append((Operation.BACKWARD, microbatch, chunk))
        if virtual_stage > 0:
            steps.append((Operation.SEND_GRADIENT, microbatch, chunk))
    return tuple(steps)


@lru_cache(maxsize=4096)
def interleaved_held(
    stages: int, stage: int, microbatches: int, chunks: int, per_round: int
) -> tuple[tuple[int, ...], ...]:
    """Return the possible numbers of microbatches that a stage holds, for each of its layer ranges."""
    held, met = [0] * chunks, set()
    for what, _, chunk in interleaved_steps(stages, stage, microbatches, chunks, per_round):
        if what is Operation.FORWARD:
            held[chunk] += 1
            met.add(tuple(held))
        elif what is Operation.BACKWARD:
            held[chunk] -= 1
    return tuple(sorted(met))


def replay(times: PipelineTimes, transfers: Transfers, *, spans: bool = False) -> PipelineReplay:
    """Run one pipeline's iteration and return when each stage ends; `spans` also records every operation."""
    runner = _Runner(times, transfers, record=spans)
    runner.run()
    return PipelineReplay(
        end_s=tuple(runner.clock),
        last_backward_start_s=tuple(runner.last_backward_start),
        compute_s=times.compute_s,
        transfer_s=tuple(runner.transfer),
        spans=tuple(runner.spans),
    )


# Plain numbers: hashing and comparing enum members takes longer than a step itself.
_FORWARD, _BACKWARD = int(Operation.FORWARD), int(Operation.BACKWARD)
_SEND_ACTIVATION, _SEND_GRADIENT = int(Operation.SEND_ACTIVATION), int(Operation.SEND_GRADIENT)
_SENDS = (_SEND_ACTIVATION, _SEND_GRADIENT)
_WEIGHT_GRADIENTS = int(Operation.WEIGHT_GRADIENTS)
_RECEIVE_ACTIVATION, _RECEIVE_GRADIENT = int(Operation.RECEIVE_ACTIVATION), int(Operation.RECEIVE_GRADIENT)
# The distance to the partner of a transfer, and its operation.
_OTHER_END = {
    _SEND_ACTIVATION: (1, _RECEIVE_ACTIVATION),
    _RECEIVE_ACTIVATION: (-1, _SEND_ACTIVATION),
    _SEND_GRADIENT: (-1, _RECEIVE_GRADIENT),
    _RECEIVE_GRADIENT: (1, _SEND_GRADIENT),
}


@lru_cache(maxsize=4096)
def _program(
    stages: int, stage: int, microbatches: int, eager: bool, halved: bool, chunks: int, per_round: int
) -> tuple[tuple[int, int, int], ...]:
    """Return the operations of a stage, each with its microbatch and its virtual stage."""
    if chunks > 1:
        steps = interleaved_steps(stages, stage, microbatches, chunks, per_round)
        return tuple((int(what), m, chunk * stages + stage) for what, m, chunk in steps)
    if halved:
        plain = zero_bubble_steps(stages, stage, microbatches)
    else:
        plain = stage_steps(stages, stage, microbatches, eager=eager)
    return tuple((int(what), m, stage) for what, m in plain)


class _Runner:
    """The state of a replay: a clock and a program position for each stage, and the tensors in transit."""

    def __init__(self, times: PipelineTimes, transfers: Transfers, *, record: bool) -> None:
        self.times = times
        self.transfers = transfers
        self.record = record
        self.stages, virtual_stages = times.stages, len(times.forward_s)
        # Overlapped transfers can only hide behind compute if they start as soon as possible.
        eager = transfers is Transfers.OVERLAPPED
        plain = times.chunks == 1 and not times.halved
        assert eager or plain, "no engine whose transfers keep stages waiting has another schedule than 1F1B"
        self.programs = [
            _program(
                self.stages,
                stage,
                times.microbatches,
                eager,
                times.halved,
                times.chunks,
                times.per_round or self.stages,
            )
            for stage in range(self.stages)
        ]
        self.seconds = [_operation_seconds(times, virtual_stage) for virtual_stage in range(virtual_stages)]
        self.at = [0] * self.stages
        self.clock = [0.0] * self.stages
        self.transfer = [0.0] * self.stages
        self.last_backward_start = [0.0] * virtual_stages
        # Arrival times of tensors, by virtual stage in the order of microbatches.
        self.activations: list[list[float]] = [[] for _ in range(virtual_stages)]
        self.gradients: list[list[float]] = [[] for _ in range(virtual_stages)]
        # When a direction of a cut is free again, for overlapped transfers.
        self.free: dict[tuple[int, int], float] = {}
        self.spans: list[Span] = []

    def run(self) -> None:
        advance = self._advance_blocking if self.transfers is Transfers.BLOCKING else self._advance
        stages, waiting = self.stages, list(range(self.stages))
        # If stages have several ranges, tensors of the last stage return to the first one.
        around = self.times.chunks > 1
        while waiting:
            stage = waiting.pop()
            if advance(stage):
                near = (stage - 1, stage + 1)
                waiting.extend(other % stages for other in near if around or 0 <= other < stages)
        assert all(place == len(program) for place, program in zip(self.at, self.programs, strict=True))

    def _advance(self, stage: int) -> bool:
        """Run a stage until it lacks a tensor; return whether it advanced. Only receives may take time."""
        program, every, place = self.programs[stage], self.seconds, self.at[stage]
        started, clock, record = place, self.clock[stage], self.record
        waits, overlapped = self.transfers is Transfers.RECEIVER, self.transfers is Transfers.OVERLAPPED
        for what, microbatch, virtual_stage in itertools.islice(program, place, None):
            start, seconds = clock, every[virtual_stage]
            if what <= _BACKWARD or what == _WEIGHT_GRADIENTS:
                if what != _FORWARD:
                    self.last_backward_start[virtual_stage] = start
                clock += seconds[what]
            elif what in _SENDS:
                there = self._post(stage, virtual_stage, what, microbatch, clock) if overlapped else clock
                (
                    self.activations[virtual_stage + 1]
                    if what == _SEND_ACTIVATION
                    else self.gradients[virtual_stage - 1]
                ).append(there)
                place += 1
                continue
            else:
                arrived = (
                    self.activations[virtual_stage] if what == _RECEIVE_ACTIVATION else self.gradients[virtual_stage]
                )
                if len(arrived) <= microbatch:
                    break
                there = arrived[microbatch]
                if overlapped and there > clock:
                    # The transfer time of an awaited tensor counts as transfer, the rest of the wait as bubble.
                    self.transfer[stage] += min(there - clock, seconds[what])
                start = clock = max(clock, there)
                if waits:
                    clock += seconds[what]
                    self.transfer[stage] += seconds[what]
            if record and clock > start:
                self._note(virtual_stage, what, microbatch, start, clock)
            place += 1
        self.at[stage], self.clock[stage] = place, clock
        return place > started

    def _post(self, stage: int, virtual_stage: int, what: int, microbatch: int, now: float) -> float:
        """Send a tensor and return its arrival; a stage sends one at a time in each direction."""
        start = max(now, self.free.get((what, stage), 0.0))
        there = self.free[what, stage] = start + self.seconds[virtual_stage][what]
        if self.record:
            self._note(virtual_stage, what, microbatch, start, there)
        return there

    def _advance_blocking(self, stage: int) -> bool:
        """Run a stage until its partner in a transfer is not ready; return whether it advanced.

        Both ends of a transfer wait for each other and then for the tensor.
        """
        program, seconds, clock, at = self.programs[stage], self.seconds[stage], self.clock, self.at
        started, end = at[stage], len(program)
        while at[stage] < end:
            what, microbatch, _ = program[at[stage]]
            start = clock[stage]
            if what <= _BACKWARD:
                if what == _BACKWARD:
                    self.last_backward_start[stage] = start
                clock[stage] = start + seconds[what]
                if self.record:
                    self._note(stage, what, microbatch, start, clock[stage])
            else:
                step, counterpart = _OTHER_END[what]
                partner = stage + step
                theirs = self.programs[partner]
                if at[partner] == len(theirs) or theirs[at[partner]] != (counterpart, microbatch, partner):
                    break
                start = max(start, clock[partner])
                clock[stage] = clock[partner] = start + seconds[what]
                self.transfer[stage] += seconds[what]
                self.transfer[partner] += seconds[what]
                at[partner] += 1
                if self.record:
                    self._note(stage, what, microbatch, start, clock[stage])
                    self._note(partner, counterpart, microbatch, start, clock[stage])
            at[stage] += 1
        return at[stage] > started

    def _note(self, virtual_stage: int, what: int, microbatch: int, start_s: float, end_s: float) -> None:
        chunk, stage = divmod(virtual_stage, self.stages)
        self.spans.append(
            Span(
                stage=stage,
                what=Operation(what).name.lower(),
                microbatch=microbatch,
                chunk=chunk if self.times.chunks > 1 else None,
                start_s=start_s,
                end_s=end_s,
            )
        )


def _operation_seconds(times: PipelineTimes, virtual_stage: int) -> tuple[float, ...]:
    """Seconds of every operation of a virtual stage, in the order of Operation."""
    before, after = virtual_stage > 0, virtual_stage < len(times.forward_s) - 1
    received = times.activation_s[virtual_stage - 1] if before else 0.0
    sent = times.activation_s[virtual_stage] if after else 0.0
    received_back = times.gradient_s[virtual_stage] if after else 0.0
    sent_back = times.gradient_s[virtual_stage - 1] if before else 0.0
    later = times.weights_s[virtual_stage] if times.halved and before else 0.0
    return (
        times.forward_s[virtual_stage],
        times.backward_s[virtual_stage] - later,
        received,
        sent,
        received_back,
        sent_back,
        later,
    )
