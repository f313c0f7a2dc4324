"""What can be said of a run from its folder alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sailor_cloud.run.folder import LockHolder
from sailor_cloud.run.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """A run at one moment. `controller` is None when no process works on it.

    `parts` are the seconds of rank 0's last iteration by what they went into; empty where that is not known.
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
    # Of a command, at the pace measured.
    usd_per_step: float | None = None
    usd_per_million_tokens: float | None = None

    @property
    def abandoned(self) -> bool:
        """Whether resources may be left that no process looks after."""
        return self.controller is None and bool(self.state.live)
