"""What came of a run that was replayed in simulated time."""

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
