"""The interface of published planners to the driver: a source of plans in the order of their cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan as its strategy sees it: the seconds of an iteration by the strategy's cost model.

    `rank` replaces these as the sort key if the strategy models money and the job asks for it. `build` makes the plan
    on demand; it raises RequestError if our format can't express it.
    """

    estimate_s: float
    build: Callable[[], Plan]
    rank: float | None = None

    @property
    def order(self) -> float:
        return self.estimate_s if self.rank is None else self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A published planner. `mixed`, `zones`, `money`, `memory`: what its model covers.

    `propose` returns plans in any order; the same cluster always yields the same ones.
    """

    name: str
    paper: str
    summary: str
    propose: Callable[[Cluster], Iterable[Proposal]]
    mixed: bool = False
    zones: bool = False
    money: bool = False
    memory: bool = False
