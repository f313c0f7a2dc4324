"""The Pareto frontier of time and money: which plans others dominate, and by how much.

Money is the cost of the run, or of the nodes per hour. On fewer nodes, the same work takes longer and often costs as
much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.draft import Draft, nodes_of
from sailor_cloud.planner.space.goals import TIE, Figure
from sailor_cloud.planner.space.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_LEAST_USD = 1e-9


# The cost of a draft.
Money = Callable[[Draft], float]


def of_run(draft: Draft) -> float:
    """Return the USD of the run, or of an iteration without a number of steps.

    Uses the expected replay if it is known.
    """
    total = draft.foreseen[Figure.TOTAL_USD]
    return total if total < float("inf") else draft.foreseen[Figure.USD_PER_ITERATION]


@dataclass(slots=True)
class OfNodes:
    """The USD per hour of a draft's nodes, without traffic; computed once for each draft."""

    space: Space
    _known: dict[int, tuple[Draft, float]] = field(default_factory=dict)

    def __call__(self, draft: Draft) -> float:
        known = self._known.get(id(draft))
        if known is None:
            counts = nodes_of(tuple(part.slots for part in draft.pipelines))
            rate = sum(self.space.rates[pool].expected * count for pool, count in sorted(counts.items()))
            # Keeping the draft prevents another one from getting its id.
            known = self._known[id(draft)] = draft, rate
        return known[1]


def run_seconds(draft: Draft) -> float:
    """Return the seconds of the run, or of an iteration without a number of steps.

    Uses the expected replay if it is known.
    """
    seconds = draft.foreseen[Figure.DURATION_S]
    return seconds if seconds < float("inf") else draft.foreseen[Figure.ITERATION_S]


def trade(draft: Draft, money: Money = of_run) -> tuple[float, float]:
    """Return the seconds and the money."""
    return run_seconds(draft), money(draft)


def figures(drafts: Iterable[Draft], money: Money = of_run) -> tuple[Floats, Floats]:
    """Return the `trade` of each draft as two arrays; zero costs become tiny ones, so that ratios exist."""
    seconds, usd = np.array([trade(draft, money) for draft in drafts], dtype=np.float64).reshape(-1, 2).T
    return seconds, np.maximum(usd, _LEAST_USD)


def unbeaten(seconds: Floats, usd: Floats, *, least: float = TIE) -> list[int]:
    """Return the indices on the Pareto frontier, fastest first.

    Each costs less than the one before it by more than the share `least`.
    """
    order = np.lexsort((usd, seconds))
    before = np.minimum.accumulate(np.concatenate([[np.inf], usd[order]]))[:-1]
    found: list[int] = []
    for index in order[usd[order] < before * (1.0 - TIE)].tolist():
        if not found or usd[index] < usd[found[-1]] * (1.0 - least):
            found.append(index)
    return found


def near(seconds: Floats, usd: Floats, among: list[int], slack: float) -> NDArray[np.bool_]:
    """Return a mask of the plans that no plan of the frontier `among` beats by `slack` in both time and money."""
    faster = np.searchsorted(seconds[among] * slack, seconds, side="left")
    return np.asarray(usd < np.concatenate([[np.inf], usd[among]])[faster] * slack)


def behind(seconds: Floats, usd: Floats, among: list[int], these: Sequence[int] | Ints | None = None) -> Floats:
    """Return the factor by which each plan is both slower and more expensive than one at the indices `among`.

    The factor is below 1 if the plan is faster or cheaper than all of them. `these`: only plans at these indices.
    """
    chosen = np.arange(len(seconds)) if these is None else np.asarray(these, dtype=np.int64)
    if not among:
        return np.zeros(len(chosen))
    usd = np.maximum(usd, _LEAST_USD)
    slower, costlier = seconds[chosen, None] / seconds[among], usd[chosen, None] / usd[among]
    return np.asarray(np.minimum(slower, costlier).max(axis=1))
