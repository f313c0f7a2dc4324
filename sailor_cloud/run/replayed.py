"""What came of runs that were replayed in simulated time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One policy against one trace.

    `steps` are those that are saved at the end, `steps_again` those that were done once more after a loss.
    `downtime_s` is the time without training: start-up, waiting, restarts, teardown.
    """

    policy: str
    ending: str
    message: str
    steps: int
    steps_again: int
    seconds: float
    downtime_s: float
    usd: float
    generations: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotReplayed:
    """One policy under one deadline, over all starts.

    `share` is the mean cost as a share of all-on-demand, `lost_s` the mean time that was paid for without training;
    None for the optimum, of which only the cost is known.
    """

    deadline_s: float
    policy: str
    starts: int
    usd: float
    share: float
    missed: int
    lost_s: float | None
    preemptions: float | None
