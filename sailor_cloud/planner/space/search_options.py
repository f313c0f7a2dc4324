"""The options of a search besides the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sailor_cloud.model.document import Decision, Pick
from sailor_cloud.planner.space.restrictions import Restriction


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What a search returns besides the plan, and its limits.

    `restrictions` make the space smaller. `alternatives`: also the best plans of smaller spaces; one of them is the
    answer if the search of the whole space found none as good. `frontier`: also the Pareto frontier of time and money.
    `top`: also this many plans of other kinds. `decide`: also the cheapest, the balanced and the fastest plan; the
    answer is `choose` of these, else the goal's. `deciding` gets them whenever they may have changed. After
    `time_limit_s` the incumbent is the answer, and is never called optimal. `prove`: search for longer, then raise the
    bound for some minutes at most. `progress` gets the completed share of the search, which never falls; `improved`
    gets, in words, the goal's figure of each better plan.
    """

    restrictions: tuple[Restriction, ...] = ()
    alternatives: bool = False
    frontier: bool = False
    top: int = 0
    decide: bool = False
    choose: Pick | None = None
    deciding: Callable[[Decision], None] | None = None
    time_limit_s: float | None = None
    prove: bool = False
    progress: Callable[[float], None] | None = None
    improved: Callable[[str], None] | None = None
