"""The result of a search engine."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.planner.space.draft import Draft

# An answer this close to its bound counts as optimal.
OPTIMAL_GAP = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Drafts, best first, and a lower bound of any plan's goal.

    `others` are more drafts in no order, including good ones of other kinds; they need not keep the limits.
    `exhausted`: all plans were enumerated.
    """

    drafts: tuple[Draft, ...]
    bound: float | None
    others: tuple[Draft, ...] = ()
    exhausted: bool = False

    def gap(self, value: float) -> float | None:
        """Return the share by which a plan of this value may be above the best one; None without a bound."""
        return None if self.bound is None else share_above(value, self.bound)


def share_above(value: float, bound: float) -> float:
    """Return the share of a value that lies above a bound; 0 if it does not."""
    return (value - bound) / value if value > bound else 0.0
