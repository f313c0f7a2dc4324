"""Bounds plans whose replicas of a stage are of several kinds, by one pipeline of theirs at a time.

Such a plan's pipelines together use no more devices than there are, so at any prices some pipeline's devices are worth
no more than the mean, and the plan takes at least as long as that pipeline. The search over single pipelines says what
that is at least. Prices under which nothing is fast enough rule a number of replicas out; where no prices do, pipelines
of several sorts that together keep within the devices are each fast enough, and a mix of them may be. Numbers of stages
are told apart then, since all pipelines have equally many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sailor_cloud.planner.even.engine import GAP
from sailor_cloud.planner.even.priced import Differing
from sailor_cloud.planner.even.ruling import Open, Ruling

# Prices tried at one number of replicas, and beginnings of pipelines kept per stage at last.
TRIES, WIDE = 12, 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """What is left of a space of differing replicas; `bound` is a value that none of its plans undercuts."""

    bound: float
    open: tuple[Open, ...]
    searches: int


def rule_out(
    problem: Differing,
    *,
    known: float = math.inf,
    gap: float = GAP,
    most_searches: int = 100_000,
    tries: int = TRIES,
    wide: int = WIDE,
    most_open: int | None = None,
    only: Sequence[Open] | None = None,
) -> Ruled:
    """Return which numbers of replicas may hold a plan better than `known` by more than the gap, and a bound.

    most_searches in all, at as many prices as `tries` for one number of replicas; `wide`: beginnings of pipelines kept
    per stage at last. most_open: numbers of replicas after which it ends without a bound. only: numbers of replicas
    that another problem of the same plans has left open, where time is minimised; else all.
    """
    ruling = Ruling(problem, known, gap, most_searches, wide)
    rest: list[Open] = []
    bound = math.inf
    starts = ruling.starts() if only is None else ruling.again(only)
    if most_open is not None and not problem.timed:
        # As they are ordered in the end where no search has told them apart.
        starts.sort(key=lambda start: (start.size, start.replicas))
    for start in starts:
        if len(rest) == most_open:
            bound = -math.inf
            break
        # Starts come in the order of their least seconds: from here on none lowers the bound.
        found = start.opened() if problem.timed and start.least_s >= bound else ruling.rule(start, tries, bound)
        if found is not None and found.least < bound and tries > 1 and math.isfinite(known):
            found = ruling.apart(start, found, tries, bound)
        if found is not None:
            rest.append(found)
            bound = min(bound, found.least)
    rest.sort(key=lambda each: (each.least, each.size, each.replicas))
    return Ruled(bound=min(bound, ruling.winning), open=tuple(rest), searches=ruling.searches)
