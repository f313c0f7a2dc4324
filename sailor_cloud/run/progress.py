"""How far a run is: the values that displays show while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol


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

    def at(self, activity: str) -> RunProgress:
        return replace(self, activity=activity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNews:
    """How far one resource is on its way; `state` is for people, `done` once it is there, or gone."""

    key: str
    state: str
    done: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.state}"


class Observer(Protocol):
    """Is told what a run does; a live display, plain lines, or a test's list."""

    def note(self, text: str) -> None:
        """One thing that happened and is worth a line."""

    def resource(self, news: ResourceNews) -> None:
        """Progress on one resource being created or removed."""

    def progress(self, progress: RunProgress) -> None:
        """The newest state, several times a second."""

    def step(self, progress: RunProgress) -> None:
        """A training step ended."""

    def close(self) -> None:
        """Nothing more will come; give the terminal back."""
