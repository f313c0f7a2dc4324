"""All plans on one layout, as arrays: combinations of cuts by splits of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.cut_sums import CutSums
from sailor_cloud.planner.draft import DraftPipeline, nodes_of, seats_of
from sailor_cloud.planner.layouts import Layout, Slot, card_flows
from sailor_cloud.planner.pipelines import PipelineTable, pipeline_table, sized_seconds, stage_recompute
from sailor_cloud.planner.space import Seat, Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Plans whose figures are kept for the next target, 16 bytes each.
MAX_REMEMBERED = 2_000_000


@dataclass(frozen=True, slots=True)
class Walk:
    """All plans on one layout, whatever the target; combinations of cuts run along axis 0, splits of the batch along 1.

    chosen: the row of each pipeline's cuts, shape [combinations, pipelines]; only combinations with a plan that fits.
    seconds, egress_usd: of an iteration, shape [combinations, splits]; infinite seconds where a plan doesn't fit.
    after_s: what of it comes after the schedule, shape [combinations]. core_s: what all devices compute of it, of the
    same shape as seconds; they share `cores`. plans: how many were looked at. sized: a
    pipeline whose microbatch size is not the fastest one, and that size. `parts` number pools as `space` does, which
    may be larger than that of the layout. built: pipelines by their number, the row of their cut and their samples.
    """

    space: Space
    layout: Layout
    parts: tuple[PipelineTable, ...]
    chosen: Ints
    seconds: Floats
    egress_usd: Floats
    after_s: Floats
    core_s: Floats
    cores: float
    plans: int
    sized: tuple[int, int] | None = None
    built: dict[tuple[int, int, int], DraftPipeline] = field(default_factory=dict)

    @property
    def splits(self) -> Ints:
        return batch_splits(self.space.batch, len(self.layout))

    def pipelines(self, row: int, column: int) -> tuple[DraftPipeline, ...]:
        """Return the pipelines of one plan."""
        split = self.splits[column]
        return tuple(self._pipeline(p, int(self.chosen[row, p]), int(split[p])) for p in range(len(self.layout)))

    def slower(self, rows: Ints) -> Iterator[Walk]:
        """Yield the plans of some combinations in which one pipeline's microbatch size holds all others up.

        Time for time these are all that the plans can be made slower to; `seconds` are infinite in all others.
        """
        for p, part in enumerate(self.parts):
            cuts, samples = self.chosen[rows, p], self.splits[:, p]
            own = part.core_s[cuts][:, samples]
            for size, table, core in sized_seconds(self.space, part):
                seconds = table[cuts][:, samples] + self.after_s[rows, None]
                fits = np.isfinite(seconds) & np.isfinite(own)
                work = self.core_s[rows] + np.where(fits, core[cuts][:, samples], 0.0) - np.where(fits, own, 0.0)
                seconds = np.maximum(seconds, work / self.cores)
                longer = np.isfinite(seconds) & (seconds > self.seconds[rows])
                if longer.any():
                    yield replace(
                        self,
                        chosen=self.chosen[rows],
                        seconds=np.where(longer, seconds, np.inf),
                        egress_usd=self.egress_usd[rows],
                        after_s=self.after_s[rows],
                        core_s=work,
                        sized=(p, size),
                        built={},
                    )

    def _pipeline(self, p: int, cut: int, samples: int) -> DraftPipeline:
        if (p, cut, samples) not in self.built:
            part = self.parts[p]
            size = int(part.microbatch[cut, samples])
            if self.sized is not None and self.sized[0] == p:
                size = self.sized[1]
            count = samples // size
            self.built[p, cut, samples] = DraftPipeline(
                slots=self.layout[p],
                cut=tuple(int(layer) for layer in part.cuts[cut]),
                microbatch_size=size,
                microbatches=count,
                recompute=stage_recompute(self.space, part.seats, part.cuts[cut], size, count, replicas=part.replicas),
            )
        return self.built[p, cut, samples]


@dataclass(slots=True)
class _Kept:
    """Walks by their layout, its pools numbered as `Space.numbers` do, and how many plans they have."""

    walks: dict[Layout, Walk] = field(default_factory=dict)
    figures: int = 0


# A pipeline's seats, the number of replicas, rings beside its cuts, and whether ranks share cores.
_Key = tuple[tuple[Seat, ...], int, tuple[int, ...], bool]


def is_crowded(space: Space, layout: Layout) -> bool:
    """Return whether a layout has more ranks than there are cores for them."""
    ranks = sum(slot.tp for slots in layout for slot in slots)
    return ranks > space.cores(nodes_of(layout).total())


def walks(space: Space, layouts: tuple[Layout, ...]) -> Iterator[Walk]:
    """Yield the plans of every layout; they are kept for the next target and for parts while there are not too many."""
    kept: _Kept = space.known.searches.setdefault(f"walks {space.zero_stage}, even {space.even_layers}", _Kept())
    known = kept.walks
    tables: dict[_Key, PipelineTable] = {}
    sums = CutSums(space)
    for layout in layouts:
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
    """Return the tables of a layout's pipelines; equal ones are made once."""
    replicas = len(layout) if space.zero_stage else min(len(layout), 2)
    crowded = is_crowded(space, layout)
    keys = [
        (seats_of(slots), replicas, flows, crowded) for slots, flows in zip(layout, card_flows(layout), strict=True)
    ]
    for key in keys:
        if key not in tables:
            tables[key] = pipeline_table(space, key[0], replicas=replicas, flows=key[2], crowded=crowded)
    return tuple(tables[key] for key in keys)


@cache
def batch_splits(batch: int, parts: int) -> Ints:
    """Return every way to give each of so many pipelines at least one sample, shape [splits, parts]."""
    inner = np.array(list(combinations(range(1, batch), parts - 1)), dtype=np.int64)
    edges = np.hstack([np.zeros((len(inner), 1), np.int64), inner, np.full((len(inner), 1), batch, np.int64)])
    return np.diff(edges, axis=1)


def _walk(space: Space, layout: Layout, parts: tuple[PipelineTable, ...], sums: CutSums) -> Walk:
    """Return the time and egress of all plans on one layout."""
    shape = tuple(len(part.cuts) for part in parts)
    chosen = np.stack([axis.ravel() for axis in np.indices(shape)], axis=1)
    splits = batch_splits(space.batch, len(parts))
    schedule = np.zeros((len(chosen), len(splits)))
    egress = np.zeros_like(schedule)
    update = np.zeros(len(chosen))
    core = np.zeros_like(schedule)
    for p, part in enumerate(parts):
        schedule = np.maximum(schedule, part.seconds[chosen[:, p]][:, splits[:, p]])
        egress += part.usd_per_sample[chosen[:, p]][:, None] * splits[:, p]
        update = np.maximum(update, part.update_s[chosen[:, p]])
        core += part.core_s[chosen[:, p]][:, splits[:, p]] + part.step_core_s[chosen[:, p], None]
    plans = schedule.size
    possible = np.isfinite(schedule).any(axis=1)
    chosen, schedule, egress = chosen[possible], schedule[possible], egress[possible]
    update, core = update[possible], core[possible]
    seconds, usd = sums.of_cuts(layout, tuple(part.cuts[chosen[:, p]] for p, part in enumerate(parts)))
    after = seconds + update
    cores = space.cores(nodes_of(layout).total())
    taken = np.maximum(schedule + after[:, None], core / cores if np.isfinite(cores) else 0.0)
    return Walk(space, layout, parts, chosen, taken, egress + usd[:, None], after, core, cores, plans)
