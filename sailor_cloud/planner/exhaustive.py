"""Finds the best plan of a small problem by going through all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.bill import Bill
from sailor_cloud.planner.draft import Draft, nodes_of
from sailor_cloud.planner.effort import NORMAL, Effort
from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.layouts import Layout, enumerate_layouts
from sailor_cloud.planner.pipelines import all_cuts
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.walks import Walk, is_crowded, walks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A problem is small when it has at most so many layouts, and no layout more combinations of cuts and batch splits.
MAX_LAYOUTS = 2000
MAX_COMBINATIONS = 200_000
# Plans of even batches that are gone through at most, one by one.
MAX_EVEN = 20_000
# Microbatch sizes of a cut that are looked at where ranks share cores, about.
_SIZES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """The best drafts among all plans, best first, and how many plans there were.

    `others`: of each layout the fastest and the cheapest, whatever the limits.
    """

    drafts: tuple[Draft, ...]
    plans: int
    others: tuple[Draft, ...]


def small_layouts(space: Space) -> tuple[Layout, ...] | None:
    """Return all layouts, or None if the problem is too big to go through them."""
    layouts: list[Layout] = []
    walk = enumerate_layouts(
        space.candidates,
        space.tp_degrees,
        max_stages=space.layers,
        max_pipelines=space.batch,
        max_nodes=space.scenario.job.constraints.max_nodes,
    )
    for layout in walk:
        sizes = _SIZES if is_crowded(space, layout) else 1
        cuts = prod(comb(space.layers - 1, len(slots) - 1) * (sizes if len(slots) > 1 else 1) for slots in layout)
        splits = comb(space.batch - 1, len(layout) - 1)
        if len(layouts) == MAX_LAYOUTS or cuts * splits > MAX_COMBINATIONS:
            return None
        layouts.append(layout)
    return tuple(layouts)


def exhaust(
    space: Space, target: Target, layouts: tuple[Layout, ...], *, keep: int, effort: Effort = NORMAL
) -> Exhausted:
    """Return the `keep` best drafts among all plans on the layouts; other targets on the same ones take less time.

    Of each pipeline the fastest microbatch size counts, and where traffic between zones would cost too much per hour,
    slower ones, too.
    """
    best: list[Draft] = []
    others: list[Draft] = []
    plans = 0
    for number, walk in enumerate(walks(space, layouts)):
        effort.tell(number / len(layouts))
        drafts, ends = _best_of_walk(space, target, walk, keep, _worst(best, target, keep))
        best = sorted([*best, *drafts], key=Draft.order)[:keep]
        plans += walk.plans
        others += ends
        rows = _too_fast(space, target, walk, _worst(best, target, keep))
        for slower in walk.slower(rows) if len(rows) else ():
            drafts, _ = _best_of_walk(space, target, slower, keep, _worst(best, target, keep))
            best = sorted([*best, *drafts], key=Draft.order)[:keep]
            plans += slower.seconds.size
    return Exhausted(drafts=tuple(best), plans=plans, others=tuple(others))


def of_even_batches(space: Space, target: Target, layouts: tuple[Layout, ...]) -> list[Draft] | None:
    """Return all drafts on the layouts whose pipelines share cut and microbatch size; None where they are too many."""
    alike = [layout for layout in layouts if len({len(slots) for slots in layout}) == 1]
    sizes = [size for size in range(1, space.batch + 1) if space.batch % size == 0]
    if sum(comb(space.layers - 1, len(layout[0]) - 1) for layout in alike) * len(sizes) > MAX_EVEN:
        return None
    assessor = Assessor(space, target)
    shapes = (
        [Shape(slots=slots, cut=cut, microbatch_size=size) for slots in layout]
        for layout in alike
        for cut in map(tuple, all_cuts(space.layers, len(layout[0])).tolist())
        for size in sizes
        if space.allows(cut)
    )
    return [draft for draft in map(assessor.draft, shapes) if draft is not None]


def _worst(best: list[Draft], target: Target, keep: int) -> float:
    """Return the value that a draft must not exceed to be kept."""
    return best[-1].figures[target.goal] if len(best) == keep else np.inf


def _too_fast(space: Space, target: Target, walk: Walk, worst: float) -> Ints:
    """Return the combinations with a plan that would be better if it were slower: its traffic costs less per hour."""
    if not walk.seconds.size or not walk.egress_usd.any():
        return np.zeros(0, dtype=np.int64)
    bill = Bill.of(space, nodes_of(walk.layout))
    if not _keeps_rate(target, np.array(bill.usd_per_hour)):
        return np.zeros(0, dtype=np.int64)
    figures = bill.figures(walk.seconds, walk.egress_usd)
    lower = np.isfinite(walk.seconds)
    if target.goal is not Figure.USD_PER_HOUR:
        lower &= figures[target.goal] <= worst * (1.0 + TIE)
        lower &= ~_keeps_rate(target, figures[Figure.USD_PER_HOUR])
    return np.flatnonzero(lower.any(axis=1))


def _keeps_rate(target: Target, usd_per_hour: Floats) -> Bools:
    """Return which plans keep the limits on USD per hour."""
    limits = tuple(limit for limit in target.limits if limit.figure is Figure.USD_PER_HOUR)
    figures = {Figure.ITERATION_S: usd_per_hour, Figure.USD_PER_HOUR: usd_per_hour}
    return np.asarray(replace(target, limits=limits).feasible(figures))


def _best_of_walk(space: Space, target: Target, walk: Walk, keep: int, worst: float) -> tuple[list[Draft], list[Draft]]:
    """Return the best drafts on one layout that are no worse than a value, and its fastest and its cheapest."""
    if not walk.seconds.size:
        return [], []
    figures = Bill.of(space, nodes_of(walk.layout)).figures(walk.seconds, walk.egress_usd)
    value = np.where(np.isfinite(walk.seconds), target.value(figures), np.inf)
    value[value > worst * (1.0 + TIE)] = np.inf

    def built(flat: int) -> Draft:
        row, column = divmod(flat, value.shape[1])
        at = {figure: float(np.broadcast_to(values, value.shape)[row, column]) for figure, values in figures.items()}
        return Draft(pipelines=walk.pipelines(row, column), goal=target.goal, figures=at)

    ties = (figures[Figure.USD_PER_ITERATION], figures[Figure.ITERATION_S])
    found = [built(flat) for flat in _first(value, ties, keep)]
    ends = sorted({flat for tie in ties for flat in _first(tie, ties, 1)})
    return sorted(found, key=Draft.order)[:keep], [built(flat) for flat in ends]


def _first(value: Floats, ties: tuple[Floats, ...], keep: int) -> list[int]:
    """Return the flat indices of the `keep` least finite values; equal ones in the order of `ties`, then of index."""
    flat = value.ravel()
    finite = np.flatnonzero(np.isfinite(flat))
    if finite.size > keep:
        last = np.partition(flat[finite], keep - 1)[keep - 1]
        finite = finite[flat[finite] <= last * (1.0 + TIE)]
    order = np.lexsort((*(_significant(tie.ravel()[finite]) for tie in reversed(ties)), _significant(flat[finite])))
    return [int(index) for index in finite[order][:keep]]


def _significant(values: Floats) -> Floats:
    """Return positive values to nine significant digits."""
    scale = 10.0 ** (8 - np.floor(np.log10(np.where(values == 0, 1.0, values))))
    return np.asarray(np.round(values * scale) / scale)
