"""The values that displays show of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from sailor_cloud.run.folder import LockHolder
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The check of the first steps against one process in float64."""

    steps: int
    max_abs_difference: float
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """One moment of a run. Iteration times are seconds; loss and entropy are nats per token."""

    activity: str
    step: int
    steps: int | None
    loss: float | None
    unigram_entropy: float | None
    tokens_per_s: float | None
    planned_iteration_s: float | None
    calibrated_iteration_s: float | None
    measured_iteration_s: float | None
    spent_usd: float
    budget_usd: float | None
    expires_at: datetime | None
    nodes: int
    verification: Verification | None

    def with_activity(self, activity: str) -> RunProgress:
        return replace(self, activity=activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNews:
    """The progress of one resource; `state` is for people, `done` once it exists or is deleted."""

    key: str
    state: str
    done: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.state}"


class Observer(Protocol):
    """Receives a run's events; a live display, plain lines, or a test's list."""

    def note(self, text: str) -> None:
        """An event that is worth a line."""

    def resource(self, news: ResourceNews) -> None:
        """Progress of one resource being created or removed."""

    def progress(self, progress: RunProgress) -> None:
        """The newest state, several times a second."""

    def step(self, progress: RunProgress) -> None:
        """A training step ended."""

    def close(self) -> None:
        """The end: release the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of a run that can't be trusted, its plan, journal, ledger or events; why, and what to do."""

    file: str
    why: str

    def __str__(self) -> str:
        return f"{self.file} damaged: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run at one moment. `controller` is None if no process works on it.

    `parts` are the seconds of rank 0's last iteration by activity; empty if unknown. `checking`: ranks start and are
    checked, and none has trained a step.
    """

    run_id: str
    job: str
    state: RunState
    controller: LockHolder | None
    step: int
    steps: int | None
    loss: float | None
    spent_usd: float
    budget_usd: float | None
    measured_at: datetime
    iteration_s: float | None = None
    planned_iteration_s: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    # For a command, at the measured pace.
    usd_per_step: float | None = None
    usd_per_million_tokens: float | None = None
    checking: bool = False
    damage: tuple[Damage, ...] = ()

    @property
    def abandoned(self) -> bool:
        """Whether resources may exist without a process that controls them."""
        return self.controller is None and bool(self.state.live)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Money of one run in USD. `lines` contain everything, `egress_usd` is the part for traffic.

    `projected_usd`: at the end of the training, at the measured pace; None if the pace is unknown.
    """

    run_id: str
    lines: tuple[LedgerLine, ...]
    egress_usd: float
    spent_usd: float
    usd_per_hour: float
    projected_usd: float | None
    planned_usd: float | None
    budget_usd: float | None
    damage: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One policy on one trace.

    `steps` are those saved at the end, `steps_again` those repeated after a loss. `downtime_s` is the time without
    training: start-up, waiting, restarts, teardown.
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

    `share` is the mean cost as a share of all-on-demand, `lost_s` the mean paid time without training. It is None for
    the optimum, for which only the cost is known.
    """

    deadline_s: float
    policy: str
    starts: int
    usd: float
    share: float
    missed: int
    lost_s: float | None
    preemptions: float | None
