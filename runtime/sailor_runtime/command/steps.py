"""The steps that a command has reported, to date a checkpoint whose name has no step."""

from __future__ import annotations

# Launchers forward the lines of their processes at this interval, so a line may follow the save that came after it.
LATE_S = 0.1
_MOST_KEPT = 10_000


class ReportedSteps:
    """Steps with the times of their reports. A thread may ask while another one adds."""

    def __init__(self) -> None:
        self._known: list[tuple[float, int]] = []

    @property
    def newest(self) -> int | None:
        return self._known[-1][1] if self._known else None

    def add(self, step: int, at: float) -> None:
        if len(self._known) >= 2 * _MOST_KEPT:
            self._known = self._known[-_MOST_KEPT:]
        self._known.append((at, step))

    def at(self, moment: float) -> int:
        """Return the newest step reported by a moment, in seconds since the epoch; 0 if there was none."""
        return next((step for at, step in reversed(self._known) if at <= moment + LATE_S), 0)
