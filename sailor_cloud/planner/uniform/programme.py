"""The dynamic program over chains of stages: the least fill of pipelines in one box, by their devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator.engines import StageSplit, stage_bounds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Most stages of a pipeline.
MOST_STAGES = 14
# Elements of an array that is still fast: 2 MiB stay in a processor's cache.
_CELLS = 2**19


class Least(StrEnum):
    """The figure that a program minimises: the fill, the bottleneck, or the most gradients per device of any stage."""

    FILL = "fill"
    BOTTLENECK = "bottleneck"
    SHARD = "shard"


class Kind(NamedTuple):
    """The devices of one stage: the index of an accelerator, and their number.

    `crossed`: for bounds, whether a cut before this stage is between regions.
    """

    accelerator: int
    tp: int
    crossed: bool = False


@dataclass(frozen=True, slots=True)
class Chain:
    """One pipeline without its nodes."""

    size: int
    replicas: int
    kinds: tuple[Kind, ...]
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Some zones, and whether every pipeline stays inside one; cuts are timed as inside a zone in any case.

    `tp`: of all stages, for engines with a single one.
    """

    zones: tuple[str, ...]
    inside: bool
    tp: int | None = None


@dataclass(slots=True)
class Terms:
    """The terms of stages, for one view and microbatch size; K kinds, L layers.

    `layer_s`: [K, L]. `shards`: gradients per device by stage, [K, L + 1, L + 1]. `busy_after`: how long the cut before
    each layer occupies the stage before it, `busy_before` the one after it, by both kinds, [K, K, L + 1]; `fill_after`
    and `fill_before`: what the two add to the fill.
    """

    space: Space
    size: int
    sharers: int
    kinds: list[Kind]
    pools: list[int]
    layer_s: Floats
    shards: Floats
    busy_after: Floats
    busy_before: Floats
    fill_after: Floats
    fill_before: Floats
    _compute: dict[int, Floats] = field(default_factory=dict)

    def compute_s(self, held: int) -> Floats:
        """Return the seconds of stages with `held` microbatches, [K, L + 1, L + 1]; infinite if a stage does not
        fit, or if the engine cuts no model so."""
        if held not in self._compute:
            seats = [Seat(pool, kind.tp, 0) for pool, kind in zip(self.pools, self.kinds, strict=True)]
            each = [self.space.stages_s(seat, self.size, in_flight=held, replicas=self.sharers) for seat in seats]
            self._compute[held] = np.where(self._cuts(held), np.stack(each), np.inf)
        return self._compute[held]

    def _cuts(self, held: int) -> NDArray[np.bool_]:
        """Return which stages the engine may make if `held` are left, itself included, [L + 1, L + 1]."""
        scenario, shape = self.space.scenario, (self.space.layers + 1,) * 2
        if not scenario.engine.one_cut:
            return np.ones(shape, dtype=np.bool_)
        allowed = np.zeros(shape, dtype=np.bool_)
        for cut in _every_cut(scenario.engine.split, scenario.decoder)[held - 1 :]:
            allowed[cut[-held - 1], cut[-held]] = True
        return allowed

    def ends(self, stages: int) -> tuple[float, float]:
        formulas = self.space.scenario.engine.formulas
        return (1.0, 1.0) if formulas is None else formulas.ends(stages)


@lru_cache(maxsize=16)
def _every_cut(split: StageSplit, decoder: Decoder) -> tuple[tuple[int, ...], ...]:
    """Return an engine's cuts of a model into 1, 2, ... stages."""
    return tuple(stage_bounds(split, decoder, stages) for stages in range(1, decoder.blocks + 1))


def _together(firsts: Ints, most: int) -> Iterator[slice]:
    """Yield ranges of up to `most` first layers that cover `firsts`; layer 0 is alone, since its cuts differ."""
    start, end = 0, int(firsts.max(initial=-1)) + 1
    while start < end:
        stop = 1 if start == 0 else min(start + most, end)
        if ((start <= firsts) & (firsts < stop)).any():
            yield slice(start, stop)
        start = stop


@dataclass(slots=True)
class Box:
    """Pipelines with one microbatch size and number of replicas, a bottleneck and an all-reduce in these intervals.

    `caps`: the most devices of a pipeline, by accelerator, in `unit`s. With `weights`, one per accelerator, there is
    one cap, the weight of all its devices, and arrays are by weight. By devices, [caps + 1]: `least_fill` and
    `least_total_s` (the iteration) of any pipeline; `least_s`, the least bottleneck, and `fill`, the least fill in the
    box. `chain`: as good as any pipeline in the box, except for its bottleneck and all-reduce within the intervals.
    """

    view: View
    size: int
    replicas: int
    caps: tuple[int, ...]
    unit: int
    weights: tuple[int, ...] = ()
    least_fill: Floats = field(default_factory=lambda: np.zeros(0))
    least_total_s: Floats = field(default_factory=lambda: np.zeros(0))
    bottleneck: tuple[float, float] = (0.0, math.inf)
    all_reduce: tuple[float, float] = (0.0, math.inf)
    least_s: Floats | None = None
    fill: Floats | None = None
    chain: Chain | None = None

    @property
    def use(self) -> Ints:
        """The devices of a pipeline, [accelerators, *caps + 1]."""
        return np.indices([cap + 1 for cap in self.caps]) * self.unit

    def taken(self, kind: Kind) -> tuple[int, ...]:
        """Return what a stage takes of each cap."""
        if self.weights:
            return (self.weights[kind.accelerator] * kind.tp,)
        return tuple(kind.tp // self.unit if a == kind.accelerator else 0 for a in range(len(self.caps)))


@dataclass(slots=True)
class Programme:
    """The dynamic program of one box: stages are busy for at most `busy_s` and reduce for at most `reduce_s`."""

    box: Box
    terms: Terms
    # By kind, the seconds of the all-reduce of each stage, [layers + 1, layers + 1].
    all_reduces: Sequence[Floats]
    busy_s: float = math.inf
    reduce_s: float = math.inf
    most_stages: int = MOST_STAGES
    # The fill from a stage on, by the stages to the end: [kind before, kind, first layer, *devices]; and of complete
    # pipelines, [kind, *devices].
    _suffixes: list[NDArray[np.float32]] = field(default_factory=list)
    wholes: list[NDArray[np.float32]] = field(default_factory=list)

    def run(self, least: Least = Least.FILL) -> Floats:
        """Return the least fill by devices, or another figure."""
        terms, layers = self.terms, self.terms.space.layers
        join = np.add if least is Least.FILL else np.maximum
        more_before = terms.busy_before if least is Least.BOTTLENECK else terms.fill_before
        more_after = terms.busy_after if least is Least.BOTTLENECK else terms.fill_after
        sharded = least is Least.SHARD
        if sharded:
            more_before, more_after = np.zeros_like(more_before), np.zeros_like(more_after)
        kinds, shape = len(terms.kinds), tuple(cap + 1 for cap in self.box.caps)
        allowed = np.stack(self.all_reduces) <= self.reduce_s
        found = np.full(shape, np.inf)
        # Preceding kinds with equal cut times share their rows.
        alike = [np.unique(terms.busy_before[:, kind], axis=0, return_inverse=True) for kind in range(kinds)]
        after = np.triu(np.ones((layers, layers), dtype=np.bool_), 1)
        devices = layers if self.box.weights else sum(self.box.caps)
        for held in range(1, min(layers, devices, self.most_stages) + 1):
            compute = np.where(allowed, terms.compute_s(held), np.inf)
            compute[compute > self.busy_s] = np.inf
            suffix: Any = np.full((kinds, kinds, layers + 1, *shape), np.inf, dtype=np.float32)
            whole: Any = np.full((kinds, *shape), np.inf, dtype=np.float32)
            first_sends, last_sends = terms.ends(held)
            for kind in range(kinds):
                self.terms.space.known.deadline.check()
                into, out = self._shift(terms.kinds[kind])
                if into is None:
                    continue
                _, which = alike[kind]
                which = np.asarray(which).reshape(-1)
                _, ones = np.unique(which, return_index=True)
                before_b, before_f = terms.busy_before[ones, kind], more_before[ones, kind]
                if held == 1:
                    for first in range(1, layers):
                        own = compute[kind, first, layers]
                        busy = own + last_sends * before_b[:, first]
                        what = terms.shards[kind, first, layers] if sharded else own
                        fill = np.where(busy <= self.busy_s, what + last_sends * before_f[:, first], np.inf)
                        at = (slice(None), kind, first, *self.box.taken(terms.kinds[kind]))
                        suffix[at] = fill[which]
                    own = compute[kind, 0, layers]
                    alone = terms.shards[kind, 0, layers] if sharded and np.isfinite(own) else own
                    whole[(kind, *self.box.taken(terms.kinds[kind]))] = alone
                    continue
                # Without the stages that do not fit.
                own = np.where(after, compute[kind, :layers, :layers], np.inf)
                what = np.where(np.isfinite(own), terms.shards[kind, :layers, :layers], np.inf) if sharded else own
                rest: Any = self._suffixes[-1][kind]
                new: Any = np.full((len(ones), layers + 1, *shape), np.inf, dtype=np.float32)
                firsts = np.flatnonzero(np.isfinite(own).any(axis=1))
                firsts = firsts[firsts <= layers - held]
                rows = max(1, _CELLS // (len(ones) * rest[(slice(None), slice(layers), *out)].size))
                for some in _together(firsts, rows):
                    # By first layer, kind before, kind after and end; only ends at which some stage fits.
                    (ends,) = np.nonzero(np.isfinite(own[some]).any(axis=0))
                    end = slice(int(ends[0]), int(ends[-1]) + 1)
                    sends = first_sends if some.start == 0 else 1.0
                    busy = own[some, None, None, end] + sends * terms.busy_after[kind, :, end]
                    fill = what[some, None, None, end] + sends * more_after[kind, :, end]
                    if some.start > 0:
                        busy = busy + before_b[:, some, None, None].swapaxes(0, 1)
                        fill = fill + before_f[:, some, None, None].swapaxes(0, 1)
                    fill = np.where(busy <= self.busy_s, fill, np.inf).astype(np.float32)
                    tail = rest[(slice(None), end, *out)]
                    reached = join(fill.reshape(*fill.shape, *[1] * len(shape)), tail)
                    reached = reached.reshape(*fill.shape[:2], -1, *tail.shape[2:]).min(axis=2)
                    if some.start == 0:
                        here = whole[(kind, *into)]
                        np.minimum(here, reached[0, 0], out=here)
                    else:
                        new[(slice(None), some, *into)] = reached.swapaxes(0, 1)
                suffix[:, kind] = new[which]
            self._suffixes.append(suffix)
            self.wholes.append(whole)
            found = np.minimum(found, whole.min(axis=0))
            if not np.isfinite(suffix).any():
                break
        return found.astype(np.float64)

    def _shift(self, kind: Kind) -> tuple[tuple[slice, ...] | None, tuple[slice, ...]]:
        """Return the slices of pipelines with one more stage and of those without it; None if there is no room."""
        into, out = [], []
        for more, cap in zip(self.box.taken(kind), self.box.caps, strict=True):
            if more > cap:
                return None, ()
            into.append(slice(more, None))
            out.append(slice(0, cap + 1 - more))
        return tuple(into), tuple(out)

    def chain(self, use: tuple[int, ...]) -> Chain:
        """Return a chain on `use` devices with the least fill."""
        terms, layers = self.terms, self.terms.space.layers
        ends = [
            (float(whole[(kind, *use)]), held, kind)
            for held, whole in enumerate(self.wholes)
            for kind in range(len(terms.kinds))
        ]
        _, held, kind = min(ends)
        first_sends, _ = terms.ends(held + 1)
        kinds, cut, before = [kind], [0], -1
        while held > 0:
            use = tuple(a - b for a, b in zip(use, self.box.taken(terms.kinds[kind]), strict=True))
            first, best = cut[-1], (math.inf, 0, 0)
            for end in range(first + 1, layers):
                own = float(terms.compute_s(held + 1)[kind, first, end])
                reduced = float(self.all_reduces[kind][first, end])
                if own > self.busy_s or reduced > self.reduce_s:
                    continue
                for following in range(len(terms.kinds)):
                    sends = first_sends if before < 0 else 1.0
                    busy = own + sends * terms.busy_after[kind, following, end]
                    fill = own + sends * terms.fill_after[kind, following, end]
                    if before >= 0:
                        busy += terms.busy_before[before, kind, first]
                        fill += terms.fill_before[before, kind, first]
                    rest = float(self._suffixes[held - 1][(kind, following, end, *use)])
                    if busy <= self.busy_s and fill + rest < best[0]:
                        best = (fill + rest, end, following)
            assert best[1], "the programme found it"
            before, kind, held = kind, best[2], held - 1
            cut.append(best[1])
            kinds.append(kind)
        return Chain(self.box.size, self.box.replicas, tuple(terms.kinds[each] for each in kinds), (*cut, layers))
