"""How often and after which pauses a request is repeated that may succeed a little later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds grow by `factor` up to `longest_s`; after `attempts` tries it is enough."""

    first_s: float = 5.0
    factor: float = 2.0
    longest_s: float = 60.0
    attempts: int = 6

    def pause_s(self, failed: int) -> float | None:
        """Return how long to wait after so many failed tries, or None when there were enough."""
        if failed >= self.attempts:
            return None
        return min(self.first_s * self.factor ** (failed - 1), self.longest_s)
