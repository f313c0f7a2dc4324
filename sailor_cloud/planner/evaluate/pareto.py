"""Trades of money against time: which plans others beat in both, and by how much.

Money is what the run costs, or what the nodes cost per hour: the same work on fewer nodes takes longer, mostly for as
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


# What a draft costs.
Money = Callable[[Draft], float]


def of_run(draft: Draft) -> float:
    """Return the USD of the run, or of an iteration where the job has no number of steps.

    By what the replay is expected to find where that is known.
    """
    total = draft.foreseen[Figure.TOTAL_USD]
    return total if total < float("inf") else draft.foreseen[Figure.USD_PER_ITERATION]


@dataclass(slots=True)
class OfNodes:
    """The USD per hour of a draft's nodes, without traffic; looked up once for each draft."""

    space: Space
    _known: dict[int, tuple[Draft, float]] = field(default_factory=dict)

    def __call__(self, draft: Draft) -> float:
        known = self._known.get(id(draft))
        if known is None:
            counts = nodes_of(tuple(part.slots for part in draft.pipelines))
            rate = sum(self.space.rates[pool].expected * count for pool, count in sorted(counts.items()))
            # The draft is kept, so that no other one gets its id.
            known = self._known[id(draft)] = draft, rate
        return known[1]


def trade(draft: Draft, money: Money = of_run) -> tuple[float, float]:
    """Return the seconds of an iteration, by what the replay is expected to find where known, and the money."""
    return draft.foreseen[Figure.ITERATION_S], money(draft)


def figures(drafts: Iterable[Draft], money: Money = of_run) -> tuple[Floats, Floats]:
    """Return the `trade` of each draft as two arrays; what costs nothing counts as next to nothing, for ratios."""
    seconds, usd = np.array([trade(draft, money) for draft in drafts], dtype=np.float64).reshape(-1, 2).T
    return seconds, np.maximum(usd, _LEAST_USD)


def unbeaten(seconds: Floats, usd: Floats, *, least: float = TIE) -> list[int]:
    """Return the indices of those that no other one equals or beats in both, fastest first.

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
    """Return which are not slower and more expensive by `slack` than one of `among`, unbeaten ones, fastest first."""
    faster = np.searchsorted(seconds[among] * slack, seconds, side="left")
    return np.asarray(usd < np.concatenate([[np.inf], usd[among]])[faster] * slack)


def behind(seconds: Floats, usd: Floats, among: list[int], these: Sequence[int] | Ints | None = None) -> Floats:
    """Return by what factor each is slower and more expensive at once than one of those at the indices `among`.

    Below 1 where it is faster or cheaper than any of them. `these`: only those at these indices.
    """
    chosen = np.arange(len(seconds)) if these is None else np.asarray(these, dtype=np.int64)
    if not among:
        return np.zeros(len(chosen))
    usd = np.maximum(usd, _LEAST_USD)
    slower, costlier = seconds[chosen, None] / seconds[among], usd[chosen, None] / usd[among]
    return np.asarray(np.minimum(slower, costlier).max(axis=1))
