"""Lower bounds of all plans on one layout, as arrays: every combination of cuts with every split of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.enumeration.pipeline_bounds import PipelineTable, least_s, pipeline_table
from sailor_cloud.planner.evaluate.all_reduces_of_cuts import CutSums
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.space.draft import DraftPipeline, nodes_of, seats_of
from sailor_cloud.planner.space.layouts import Layout, Slot, card_flows
from sailor_cloud.planner.space.replica_counts import divisors
from sailor_cloud.planner.space.space import Seat, Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The number of plans whose figures are kept for the next target, 16 bytes each.
MAX_REMEMBERED = 2_000_000


@dataclass(frozen=True, slots=True)
class Walk:
    """All plans on one layout, for any target; axis 0 is combinations of cuts, axis 1 splits of the batch.

    chosen: the row of each pipeline's cuts, shape [combinations, pipelines]; only combinations with a plan that fits.
    seconds: a lower bound under the replay for any microbatch sizes; infinite if none fits. egress_usd: exact, per
    iteration. after_s: the least time of it after the schedule, shape [combinations]. `parts` number pools as `space`
    does, which may be larger than that of the layout. built: pipelines by number, row of the cut and samples.
    """

    space: Space
    layout: Layout
    parts: tuple[PipelineTable, ...]
    chosen: Ints
    seconds: Floats
    egress_usd: Floats
    after_s: Floats
    bill: Bill
    built: dict[tuple[int, int, int], list[tuple[float, DraftPipeline]]] = field(default_factory=dict)

    @property
    def splits(self) -> Ints:
        return batch_splits(self.space.batch, len(self.layout))

    def plans(self, row: int, column: int, *, below_s: float) -> Iterator[tuple[DraftPipeline, ...]]:
        """Yield the plans with some cuts and shares of the batch, at all microbatch sizes that may be fast enough."""
        split, after = self.splits[column], float(self.after_s[row])
        options = [self._pipelines(p, int(self.chosen[row, p]), int(split[p])) for p in range(len(self.layout))]
        able = [[part for seconds, part in those if seconds + after < below_s] for those in options]
        yield from product(*able)

    def _pipelines(self, p: int, row: int, samples: int) -> list[tuple[float, DraftPipeline]]:
        """Return a pipeline at all microbatch sizes that fit, each with a lower bound of its schedule's seconds."""
        if (p, row, samples) not in self.built:
            part, cut = self.parts[p], tuple(int(layer) for layer in self.parts[p].cuts[row])
            found = []
            for size in divisors(samples):
                made = self._pipeline(part, self.layout[p], cut, size, samples // size)
                found += [] if made is None else [made]
            self.built[p, row, samples] = sorted(found, key=lambda each: each[0])
        return self.built[p, row, samples]

    def _pipeline(
        self, part: PipelineTable, slots: tuple[Slot, ...], cut: tuple[int, ...], size: int, count: int
    ) -> tuple[float, DraftPipeline] | None:
        space, found = self.space, []
        for s, (seat, span) in enumerate(zip(part.seats, pairwise(cut), strict=True)):
            stage = space.stages(seat, size, part.replicas).of(span, min(len(slots) - s, count))
            if stage is None:
                return None
            found.append(stage)
        recompute, compute = zip(*found, strict=True)
        between = np.array(
            [
                space.boundary(src, dst, size, flows=shared)[layer]
                for (src, dst), layer, shared in zip(pairwise(part.seats), cut[1:-1], part.flows, strict=True)
            ]
        )
        made = DraftPipeline(slots=slots, cut=cut, microbatch_size=size, microbatches=count, recompute=recompute)
        return least_s(np.array(compute), between, count), made


@dataclass(slots=True)
class _Kept:
    """Walks by layout, with pools numbered by `Space.numbers`, and their number of plans."""

    walks: dict[Layout, Walk] = field(default_factory=dict)
    figures: int = 0


# A pipeline's seats, the number of replicas, and how many cuts share the network card at each of its cuts.
_Key = tuple[tuple[Seat, ...], int, tuple[int, ...]]


def is_crowded(space: Space, layout: Layout) -> bool:
    """Return whether a layout has more ranks than cores for them."""
    ranks = sum(slot.tp for slots in layout for slot in slots)
    return ranks > space.cores(nodes_of(layout).total())


def walks(space: Space, layouts: tuple[Layout, ...]) -> Iterator[Walk]:
    """Yield the plans of every layout. A limited number is kept for the next target and for parts of the space."""
    kept: _Kept = space.known.searches.setdefault(f"walks {space.zero_stage}, even {space.even_layers}", _Kept())
    known = kept.walks
    tables: dict[_Key, PipelineTable] = {}
    sums = CutSums(space)
    for layout in layouts:
        space.known.deadline.check()
        key = tuple(tuple(Slot(space.numbers[slot.pool], slot.instance, slot.tp) for slot in slots) for slots in layout)
        if key in known:
            yield known[key] if known[key].layout == layout else replace(known[key], layout=layout, built={})
            continue
        walk = _walk(space, layout, _parts(space, layout, tables), sums)
        if kept.figures + walk.seconds.size <= MAX_REMEMBERED:
            known[key] = walk
            kept.figures += walk.seconds.size
        yield walk


def _parts(space: Space, layout: Layout, tables: dict[_Key, PipelineTable]) -> tuple[PipelineTable, ...]:
    """Return the tables of a layout's pipelines; equal ones share a table."""
    replicas = len(layout) if space.zero_stage else min(len(layout), 2)
    keys = [(seats_of(slots), replicas, flows) for slots, flows in zip(layout, card_flows(layout), strict=True)]
    for key in keys:
        if key not in tables:
            tables[key] = pipeline_table(space, key[0], replicas=replicas, flows=key[2])
    return tuple(tables[key] for key in keys)


@cache
def batch_splits(batch: int, parts: int) -> Ints:
    """Return every way to give `parts` pipelines at least one sample each, shape [splits, parts]."""
    inner = np.array(list(combinations(range(1, batch), parts - 1)), dtype=np.int64)
    edges = np.hstack([np.zeros((len(inner), 1), np.int64), inner, np.full((len(inner), 1), batch, np.int64)])
    return np.diff(edges, axis=1)


def _walk(space: Space, layout: Layout, parts: tuple[PipelineTable, ...], sums: CutSums) -> Walk:
    """Return lower bounds of the time of all plans on one layout, and their egress."""
    shape = tuple(len(part.cuts) for part in parts)
    chosen = np.stack([axis.ravel() for axis in np.indices(shape)], axis=1)
    splits = batch_splits(space.batch, len(parts))
    schedule = np.zeros((len(chosen), len(splits)))
    egress, core, early = np.zeros_like(schedule), np.zeros_like(schedule), np.zeros_like(schedule)
    after = np.full(len(chosen), np.inf)
    for p, part in enumerate(parts):
        rows, samples = chosen[:, p], splits[:, p]
        schedule = np.maximum(schedule, part.seconds[rows][:, samples])
        early = np.maximum(early, part.early_s[rows][:, samples])
        egress += part.usd_per_sample[rows][:, None] * samples
        after = np.minimum(after, part.update_s[rows])
        core += part.core_s[rows][:, samples] + part.step_core_s[rows, None]
    possible = np.isfinite(schedule).any(axis=1)
    chosen = chosen[possible]
    schedule, egress, core, early, after = (each[possible] for each in (schedule, egress, core, early, after))
    summed, usd = sums.of_cuts(layout, tuple(part.cuts[chosen[:, p]] for p, part in enumerate(parts)))
    # All-reduces start at the earliest after the last backward pass of a stage. The gather after the step is left out.
    kept = 1.0 - space.table(parts[0].seats[0].pool, parts[0].seats[0].tp, 1).sharding.gathered_share
    taken = np.maximum(schedule, early + kept * summed[:, None]) + after[:, None]
    cores = space.cores(nodes_of(layout).total())
    taken = np.maximum(taken, core / cores if np.isfinite(cores) else 0.0)
    bill = Bill.of(space, nodes_of(layout))
    return Walk(space, layout, parts, chosen, taken, egress + usd[:, None], after, bill)
