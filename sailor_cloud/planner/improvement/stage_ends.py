"""The replay of one pipeline without its record: when each stage is through with its passes.

Equal to `simulator.replay` but for rounding. Once every stage alternates between forward and backward passes, a round
that moves all clocks by the same time is followed by equal ones, which are counted instead of run.
"""

from __future__ import annotations

from functools import lru_cache

from sailor_cloud.simulator.engines import Transfers
from sailor_cloud.simulator.replay import PipelineTimes, replay

# Rounds of a schedule that differ by less than this share of a round are equal.
_EQUAL = 1e-12
# Pipelines whose ends are kept; a search asks for the same ones again and again.
_KEPT = 1 << 15

# Per stage the end of its passes, and the begin of its last backward pass.
Ends = tuple[tuple[float, ...], tuple[float, ...]]


@lru_cache(maxsize=_KEPT)
def stage_ends(times: PipelineTimes, transfers: Transfers) -> Ends:
    """Return the end and the last backward pass's begin of each stage, in seconds of the iteration."""
    if transfers is not Transfers.OVERLAPPED:
        done = replay(times, transfers)
        return done.end_s, done.last_backward_start_s
    return _overlapped(times)


def _overlapped(times: PipelineTimes) -> Ends:
    """Run the schedule slot by slot.

    Stage s of S has the forward pass of microbatch m in slot 2m + s, the backward pass in slot 2m + 2S - 1 - s. A cut
    carries one tensor at a time in each direction, and a pass needs the tensor that was posted in the slot before.
    """
    forward, backward, count = times.forward_s, times.backward_s, times.microbatches
    stages = len(forward)
    if stages == 1:
        end = count * (forward[0] + backward[0])
        return (end,), (end - backward[0],)
    activation, gradient = (*times.activation_s, 0.0), (0.0, *times.gradient_s)
    clock, begun = [0.0] * stages, [0.0] * stages
    # When the latest activation is at a stage, and the latest gradient.
    here, back = [0.0] * (stages + 1), [0.0] * (stages + 1)
    last, slot, before = 2 * count - 2, 0, None
    while slot < 2 * (count + stages - 1):
        for stage in range(max(slot & 1, slot - last), min(stages, slot + 1), 2):
            now = clock[stage]
            if here[stage] > now and stage:
                now = here[stage]
            clock[stage] = now = now + forward[stage]
            there = here[stage + 1]
            here[stage + 1] = (now if now > there else there) + activation[stage]
        for stage in range(max((slot + 1) & 1, 2 * stages - 1 - slot), min(stages, 2 * stages - slot + last), 2):
            now = clock[stage]
            if back[stage + 1] > now and stage < stages - 1:
                now = back[stage + 1]
            begun[stage] = now
            clock[stage] = now = now + backward[stage]
            there = back[stage]
            back[stage] = (now if now > there else there) + gradient[stage]
        slot += 1
        if slot & 1 == 0 and 2 * stages - 1 < slot < last - 1:
            state = (*clock, *here[1:stages], *back[1:stages])
            if before is not None:
                moved = state[0] - before[0]
                if all(abs(after - old - moved) <= _EQUAL * after for after, old in zip(state, before, strict=True)):
                    rounds = (last - slot) // 2
                    more = rounds * moved
                    clock = [each + more for each in clock]
                    here = [each + more for each in here]
                    back = [each + more for each in back]
                    slot += 2 * rounds
                    before = None
                    continue
            before = state
    return tuple(clock), tuple(begun)
