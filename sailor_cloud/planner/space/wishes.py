"""What a search is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sailor_cloud.model.document import Decision, Pick
from sailor_cloud.planner.space.restrictions import Restriction


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a search is asked for beyond the plan.

    `restrictions` make the space smaller. `beside`: also the best plans of smaller spaces, one of which is the
    answer where the search of all found none as good. `frontier`: also the plans from the fastest to the cheapest
    that no other one beats in both. `top`: also so many plans of other kinds. `decide`: also the cheapest, the balanced
    and the fastest plan, of which `choose` is the answer, else the goal's; `deciding` gets them whenever they may
    have changed. After `time_limit_s` the best plan found until then is the answer, and never called optimal.
    `prove`: the bound is raised once the plan is found, for some minutes at most.
    `progress` gets the share of the search that is done, ever larger ones.
    """

    restrictions: tuple[Restriction, ...] = ()
    beside: bool = False
    frontier: bool = False
    top: int = 0
    decide: bool = False
    choose: Pick | None = None
    deciding: Callable[[Decision], None] | None = None
    time_limit_s: float | None = None
    prove: bool = False
    progress: Callable[[float], None] | None = None
