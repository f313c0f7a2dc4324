"""Finds the best plan of a small problem by going through all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bill import Bill
from sailor_cloud.planner.draft import Draft, DraftPipeline, nodes_of, seats_of
from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.layouts import Layout, Slot, card_flows, enumerate_layouts
from sailor_cloud.planner.pipelines import PipelineTable, pipeline_table, stage_recompute
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.planner.sync import SyncTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A problem is small when it has at most so many layouts, and no layout more combinations of cuts and batch splits.
MAX_LAYOUTS = 2000
MAX_COMBINATIONS = 200_000
# Plans whose figures are kept for the next target, 16 bytes each.
MAX_REMEMBERED = 2_000_000


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
        cuts = prod(comb(space.layers - 1, len(slots) - 1) for slots in layout)
        splits = comb(space.batch - 1, len(layout) - 1)
        if len(layouts) == MAX_LAYOUTS or cuts * splits > MAX_COMBINATIONS:
            return None
        layouts.append(layout)
    return tuple(layouts)


def exhaust(space: Space, target: Target, layouts: tuple[Layout, ...], *, keep: int) -> Exhausted:
    """Return the `keep` best drafts among all plans on the layouts; other targets on the same ones take less time.

    Of each pipeline the fastest microbatch size counts. Left out are plans that are slower than they could be only so
    that traffic between zones costs less per hour.
    """
    best: list[Draft] = []
    others: list[Draft] = []
    plans = 0
    for walked in _walked(space, layouts):
        worst = best[-1].figures[target.goal] if len(best) == keep else np.inf
        drafts, ends = _best_of_layout(space, target, walked, keep, worst)
        plans += walked.plans
        others += ends
        best = sorted([*best, *drafts], key=Draft.order)[:keep]
    return Exhausted(drafts=tuple(best), plans=plans, others=tuple(others))


@dataclass(frozen=True, slots=True)
class _Walked:
    """All plans on one layout, whatever the target; combinations of cuts run along axis 0, splits of the batch along 1.

    chosen: the row of each pipeline's cuts, shape [combinations, pipelines]; only combinations with a plan that fits.
    seconds, egress_usd: of an iteration, shape [combinations, splits]. plans: how many were looked at. built: pipelines
    by their number, the row of their cut and their samples.
    """

    layout: Layout
    parts: tuple[PipelineTable, ...]
    chosen: Ints
    seconds: Floats
    egress_usd: Floats
    plans: int
    built: dict[tuple[int, int, int], DraftPipeline] = field(default_factory=dict)

    def pipeline(self, space: Space, p: int, cut: int, samples: int) -> DraftPipeline:
        """Return one pipeline of a plan."""
        if (p, cut, samples) not in self.built:
            replicas = _replicas(space, self.layout)
            found = _draft_pipeline(space, self.layout[p], self.parts[p], cut, samples, replicas)
            self.built[p, cut, samples] = found
        return self.built[p, cut, samples]


def _walked(space: Space, layouts: tuple[Layout, ...]) -> Iterator[_Walked]:
    """Yield the plans of every layout; they are kept for the next target while there are not too many."""
    known = space.remembered.get("exhaustive")
    if known is not None and known[0] == layouts:
        yield from known[1]
        return
    tables: dict[tuple[tuple[Seat, ...], int, tuple[int, ...]], PipelineTable] = {}
    sync = SyncTable(space)
    kept: list[_Walked] = []
    figures = 0
    for layout in layouts:
        replicas = _replicas(space, layout)
        keys = [(seats_of(slots), replicas, flows) for slots, flows in zip(layout, card_flows(layout), strict=True)]
        for key in keys:
            if key not in tables:
                tables[key] = pipeline_table(space, key[0], replicas=replicas, flows=key[2])
        walked = _walk(space, layout, tuple(tables[key] for key in keys), sync)
        figures += walked.seconds.size
        if figures <= MAX_REMEMBERED:
            kept.append(walked)
        yield walked
    if figures <= MAX_REMEMBERED:
        space.remembered["exhaustive"] = (layouts, tuple(kept))


def _replicas(space: Space, layout: Layout) -> int:
    """Return the number of pipelines as far as stages depend on it: ZeRO by the number, buckets by whether any."""
    return len(layout) if space.zero_stage else min(len(layout), 2)


@cache
def batch_splits(batch: int, parts: int) -> Ints:
    """Return every way to give each of so many pipelines at least one sample, shape [splits, parts]."""
    inner = np.array(list(combinations(range(1, batch), parts - 1)), dtype=np.int64)
    edges = np.hstack([np.zeros((len(inner), 1), np.int64), inner, np.full((len(inner), 1), batch, np.int64)])
    return np.diff(edges, axis=1)


def _walk(space: Space, layout: Layout, parts: tuple[PipelineTable, ...], sync: SyncTable) -> _Walked:
    """Return the time and egress of all plans on one layout."""
    shape = tuple(len(part.cuts) for part in parts)
    chosen = np.stack([axis.ravel() for axis in np.indices(shape)], axis=1)
    splits = batch_splits(space.batch, len(parts))
    schedule = np.zeros((len(chosen), len(splits)))
    egress = np.zeros_like(schedule)
    update = np.zeros(len(chosen))
    for p, part in enumerate(parts):
        schedule = np.maximum(schedule, part.seconds[chosen[:, p]][:, splits[:, p]])
        egress += part.usd_per_sample[chosen[:, p]][:, None] * splits[:, p]
        update = np.maximum(update, part.update_s[chosen[:, p]])
    plans = schedule.size
    possible = np.isfinite(schedule).any(axis=1)
    chosen, schedule, egress, update = chosen[possible], schedule[possible], egress[possible], update[possible]
    seconds, usd = sync.of_cuts(layout, tuple(part.cuts[chosen[:, p]] for p, part in enumerate(parts)))
    return _Walked(layout, parts, chosen, schedule + (seconds + update)[:, None], egress + usd[:, None], plans)


def _best_of_layout(
    space: Space, target: Target, walked: _Walked, keep: int, worst: float
) -> tuple[list[Draft], list[Draft]]:
    """Return the best drafts on one layout that are no worse than a value, and its fastest and its cheapest."""
    if not walked.seconds.size:
        return [], []
    layout, chosen = walked.layout, walked.chosen
    figures = Bill.of(space, nodes_of(layout)).figures(walked.seconds, walked.egress_usd)
    value = target.value(figures)
    value[value > worst * (1.0 + TIE)] = np.inf
    splits = batch_splits(space.batch, len(layout))

    def built(flat: int) -> Draft:
        row, column = divmod(flat, value.shape[1])
        pipelines = tuple(
            walked.pipeline(space, p, int(chosen[row, p]), int(splits[column, p])) for p in range(len(layout))
        )
        at = {figure: float(np.broadcast_to(values, value.shape)[row, column]) for figure, values in figures.items()}
        return Draft(pipelines=pipelines, goal=target.goal, figures=at)

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
    scale = 10.0 ** (8 - np.floor(np.log10(values)))
    return np.asarray(np.round(values * scale) / scale)


def _draft_pipeline(
    space: Space, slots: tuple[Slot, ...], part: PipelineTable, cut: int, samples: int, replicas: int
) -> DraftPipeline:
    size = int(part.microbatch[cut, samples])
    return DraftPipeline(
        slots=slots,
        cut=tuple(int(layer) for layer in part.cuts[cut]),
        microbatch_size=size,
        microbatches=samples // size,
        recompute=stage_recompute(space, part.seats, part.cuts[cut], size, samples // size, replicas=replicas),
    )
