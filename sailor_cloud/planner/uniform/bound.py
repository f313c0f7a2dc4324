"""A lower bound of all plans with equal pipelines, for engines with formulas of their own.

It covers plans in which the replicas of a stage have one accelerator and one tensor-parallel degree. The search for
plans skips instance types, zones, numbers of stages and of pipelines; the bound skips none of them. Every microbatch
size and number of pipelines is a box. A cut has the fastest zones of its two kinds. An all-reduce has the fastest hops
that connect zones with room for all replicas. A pipeline has at most its share of all devices, whatever their zones.
With several regions, boxes that stay open are split by region: all pipelines in one region, pipelines inside regions
with all-reduces between them, or a cut between regions.

A first bound of a box replaces the devices by their weight, for some weights of the accelerators. A box that stays open
is branched as in the search, by devices if there are few enough combinations, else by weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count, product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import RequestError
from sailor_cloud.planner.bound.bounds import device_rates, least_fixed_s
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.effort import NORMAL, OutOfTimeError
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.replica_counts import divisors
from sailor_cloud.planner.space.space import Space
from sailor_cloud.planner.uniform.programme import Box, Chain, Floats, Kind, Least, Programme, Terms, View
from sailor_cloud.planner.uniform.search import GAP, MOST_VECTORS, UniformSearch, times
from sailor_cloud.simulator.engines import Formulas, StagePlace
from sailor_cloud.units import SECONDS_PER_HOUR

# More than the rounding of sums of single precision over all stages.
_ROUNDING = 1e-5
# Weights of accelerators relative to their speed; any are valid. The first alone serves a bound without branching.
_FACTORS = (1.0, 2.0 / 3.0, 4.0 / 3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement(View):
    """Plans by their regions: any, or every pipeline inside one, or `crossing`, some cut between two."""

    crossing: bool = False


@dataclass(slots=True)
class _FewTerms(Terms):
    """Terms of pipelines with few microbatches, which hold no more than these.

    `updates`: the seconds of the optimizer step of stages, [K, L + 1, L + 1]. `ruled_out`: stages that the view can't
    have, of the same shape.
    """

    microbatches: int = 1
    updates: Floats = field(default_factory=lambda: np.zeros(0))
    ruled_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def compute_s(self, held: int) -> Floats:
        held = min(held, self.microbatches)
        known = held in self._compute
        found = Terms.compute_s(self, held)
        if not known:
            found[self.ruled_out] = np.inf
        return found


@dataclass(slots=True)
class UniformBound(UniformSearch):
    """The bound of one space and target; `closed` is the least bound of boxes that can't be split further."""

    closed: float = math.inf
    branched: bool = True
    regions: dict[str, str] = field(default_factory=dict)
    _rings: dict[tuple[View, Kind, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        UniformSearch.__post_init__(self)
        self.most_stages = self.space.layers
        zones = sorted({pool.offer.zone for pool in self.space.pools})
        self.regions = {zone: self.space.scenario.catalog.region_of(zone) for zone in zones}

    def views(self) -> list[View]:
        """Return the view of all plans, then its branches if there are several regions.

        Either a cut is between regions, or all pipelines are in one, or each stage's all-reduce has a hop between two.
        """
        zones, names = tuple(self.regions), sorted(set(self.regions.values()))
        whole = _Placement(zones=zones, inside=False)
        if len(names) == 1:
            return [whole]
        alone = [tuple(zone for zone in zones if self.regions[zone] == name) for name in names]
        inside = [_Placement(zones=each, inside=True) for each in (*alone, zones)]
        return [whole, *inside, replace(whole, crossing=True)]

    def _apart(self, a: str, b: str) -> bool:
        return self.regions[a] != self.regions[b]

    def bound(self, known: float) -> float:
        """Return a lower bound of the goal, raised until it is close to `known` or time is up; 0 without any.

        `known`: the value of a known plan. Without `branched`, only the first bounds of all boxes count.
        """
        self.best, numbers, now = known, count(), 0.0
        heap: list[tuple[float, int, Box]] = []
        whole, *branches = self.views()
        try:
            roots = list(self._roots(whole))
            if branches:
                now = min((value for _, value in roots), default=math.inf)
                opened = {(box.size, box.replicas) for box, _ in roots}
                roots = [root for view in branches for root in self._roots(view, opened)]
            heap = [(value, next(numbers), box) for box, value in roots]
            heapify(heap)
            now = math.inf
            while self.branched and heap and heap[0][0] < min(self.closed, self._enough):
                now, _, box = heappop(heap)
                solved = box.fill is not None
                children = list(self._split(box) if solved else self._solve(box))
                if solved and not children:
                    self.closed = min(self.closed, now)
                for child, value in children:
                    heappush(heap, (max(now, value), next(numbers), child))
                now = math.inf
        except (OutOfTimeError, KeyboardInterrupt):
            # The boxes so far have bounds, unless some are missing.
            pass
        least = min(now, self.closed, self._enough, heap[0][0] if heap else math.inf)
        return least * (1.0 - _ROUNDING)

    @property
    def _enough(self) -> float:
        """The bound from which on a box is of no interest."""
        return self.best * (1.0 - GAP)

    @property
    def _formulas(self) -> Formulas:
        formulas = self.space.scenario.engine.formulas
        assert formulas is not None, "only formulas have this bound"
        return formulas

    def judge(self, view: View, chain: Chain) -> float:
        """Return infinity: a bound needs no plans."""
        return math.inf

    def _reduces_first(self, wide: tuple[float, float]) -> bool:
        # A single microbatch never waits for the bottleneck.
        return wide[1] > wide[0]

    def terms(self, view: View, size: int, unit: int, replicas: int) -> Terms | None:
        """Return the least terms of stages in any zone of a view. None if no accelerator has this microbatch size."""
        return self._terms_of(view, size, -(-self.space.batch // (size * replicas)))

    def _terms_of(self, view: View, size: int, microbatches: int) -> _FewTerms | None:
        key = (view, size, min(microbatches, self.space.layers))
        if key not in self._terms:
            whole = self._every_term(view, size) if (view, size) not in self._terms else self._terms[view, size]
            if whole is None:
                return None
            assert isinstance(whole, _FewTerms), "all terms of a bound are"
            self._terms[view, size] = whole
            self._terms[key] = replace(whole, microbatches=key[2], _compute={})
        found = self._terms[key]
        assert isinstance(found, _FewTerms), "all terms of a bound are"
        return found

    def _every_term(self, view: View, size: int) -> _FewTerms | None:
        assert isinstance(view, _Placement), "all views of a bound are"
        space, formulas = self.space, self._formulas
        places: dict[Kind, set[StagePlace]] = {}
        pools: dict[Kind, int] = {}
        for number, pool in enumerate(space.pools):
            for tp in space.tp_degrees[number] if pool.offer.zone in view.zones else ():
                for crossed in (False, True) if view.crossing else (False,):
                    kind = Kind(self.names.index(pool.offer.accelerator), tp, crossed)
                    if space.table(number, tp, size).limit_bytes > 0:
                        places.setdefault(kind, set()).add(self._place(kind, pool.offer.zone))
                        pools.setdefault(kind, number)
        kinds = sorted(places)
        if not kinds:
            return None
        shape = (len(kinds), len(kinds), space.layers + 1)
        after, before = np.full(shape, np.inf), np.full(shape, np.inf)
        for a, b in product(range(len(kinds)), repeat=2):
            for src, dst in product(sorted(places[kinds[a]]), sorted(places[kinds[b]])):
                if not self._connects(view, kinds[a], kinds[b], src, dst):
                    continue
                try:
                    there, back = formulas.cuts_s(space.scenario, size, src, dst)
                except RequestError:
                    # The formulas have no bandwidth between the two.
                    continue
                after[a, b], before[a, b] = np.minimum(after[a, b], there), np.minimum(before[a, b], back)
        tables = [space.table(pools[kind], kind.tp, size) for kind in kinds]
        ruled_out = np.zeros((len(kinds), space.layers + 1, space.layers + 1), dtype=bool)
        if view.crossing:
            later = np.array([kind.crossed for kind in kinds])
            ruled_out[later, 0] = True
            ruled_out[~later, :, -1] = True
        return _FewTerms(
            space=space,
            size=size,
            sharers=2,
            kinds=kinds,
            pools=[pools[kind] for kind in kinds],
            shards=np.stack([self._shards(pools[kind], kind.tp) for kind in kinds]),
            layer_s=np.stack([np.diff(table.forward_prefix_s + table.backward_prefix_s) for table in tables]),
            busy_after=after,
            busy_before=before,
            fill_after=after,
            fill_before=before,
            updates=np.stack([self._updates_s(size, sorted(places[kind])[0]) for kind in kinds]),
            ruled_out=ruled_out,
        )

    def _connects(self, view: _Placement, before: Kind, after: Kind, src: StagePlace, dst: StagePlace) -> bool:
        """Return whether a cut may be between two places; only the first one between regions changes `crossed`."""
        if before.crossed or not (view.inside or view.crossing):
            return after.crossed == before.crossed
        return after.crossed == self._apart(src.zone, dst.zone)

    def _updates_s(self, size: int, place: StagePlace) -> Floats:
        """Return the seconds of the optimizer step of each stage, [layers + 1, layers + 1]."""
        found = np.append(self._formulas.updates_s(self.space.scenario, size, place), 0.0)
        return np.broadcast_to(found[:, None], (len(found), len(found)))

    def _all_reduces(self, box: Box, terms: Terms) -> list[Floats]:
        """Return the least seconds of all-reduce and step of each stage; the longest of both add up to no less."""
        assert isinstance(terms, _FewTerms), "all terms of a bound are"
        return [
            self.all_reduces_s(box.view, kind, box.replicas) + step_s
            for kind, step_s in zip(terms.kinds, terms.updates, strict=True)
        ]

    def _shards(self, pool: int, tp: int) -> Floats:
        """Return the bytes of an all-reduce of every stage, [layers + 1, layers + 1]."""
        prefix = self.space.table(pool, 1, 1).gradient_prefix_bytes / self._formulas.shards(tp)
        return np.maximum(prefix - prefix[:, None], 0.0)

    def all_reduces_s(self, view: View, kind: Kind, replicas: int) -> Floats:
        """Return the least seconds of the all-reduce of each stage of a kind, [layers + 1, layers + 1]."""
        key = (view, kind._replace(crossed=False), replicas)
        if key not in self._rings:
            name = self.names[kind.accelerator]
            pool = next(number for number, pool in enumerate(self.space.pools) if pool.offer.accelerator == name)
            nbytes = self._shards(pool, kind.tp)
            distinct, where = np.unique(nbytes, return_inverse=True)
            self._rings[key] = self._connected_s(view, kind, replicas, distinct)[where].reshape(nbytes.shape)
        return self._rings[key]

    def _connected_s(self, view: View, kind: Kind, replicas: int, nbytes: Floats) -> Floats:
        """Return the least seconds of all-reduces of some sizes, infinite if there is no room for the replicas.

        Hops that take no longer than the slowest one connect zones with room for all replicas. One of them is between
        regions if whole pipelines are in several.
        """
        room = {zone: devices // kind.tp for zone, devices in self._by_zone(view, kind.accelerator).items()}
        spread = view.inside and len({self.regions[zone] for zone in view.zones}) > 1
        if sum(room.values()) < replicas or replicas < 2:
            return np.full(len(nbytes), 0.0 if sum(room.values()) >= replicas and not spread else np.inf)
        hops = {
            (a, b): self._formulas.rings_s(nbytes, replicas, self._place(kind, a), self._place(kind, b))
            for a, b in product(sorted(room), repeat=2)
        }
        least = np.full(len(nbytes), np.inf)
        for number in range(len(nbytes)):
            groups, crossed = [{zone} for zone in room], not spread
            for seconds, a, b in sorted((float(each[number]), *ends) for ends, each in hops.items()):
                joined = {zone for group in groups if group & {a, b} for zone in group}
                groups = [joined, *(group for group in groups if not group & joined)]
                crossed = crossed or self._apart(a, b)
                if crossed and sum(room[zone] for zone in joined) >= replicas:
                    least[number] = seconds
                    break
        return least

    def _by_zone(self, view: View, accelerator: int) -> dict[str, int]:
        """Return the number of devices of an accelerator by zone, over all instance types and markets."""
        offers = ((pool.row, pool.offer) for pool in self.space.pools if pool.offer.zone in view.zones)
        rows = {row for row, offer in offers if offer.accelerator == self.names[accelerator]}
        found: dict[str, int] = {}
        for row in (self.space.candidates.rows[number] for number in sorted(rows)):
            found[row.zone] = found.get(row.zone, 0) + row.devices
        return found

    def _weightings(self) -> list[tuple[int, ...]]:
        """Return weights of the accelerators, roughly proportional to the samples per second of a device."""
        pace: dict[int, float] = {}
        for size, (number, pool) in product(divisors(self.space.batch), enumerate(self.space.pools)):
            for tp in self.space.tp_degrees[number]:
                accelerator = self.names.index(pool.offer.accelerator)
                table = self.space.table(number, tp, size)
                if accelerator not in pace and table.limit_bytes > 0:
                    pace[accelerator] = size / tp / float(table.compute_s(0, self.space.layers))
        each = [pace.get(accelerator, 0.0) for accelerator in range(len(self.names))]
        least = min((value for value in each if value), default=1.0)
        factors = _FACTORS if self.branched else _FACTORS[:1]
        return list(
            dict.fromkeys(
                tuple(1 if value <= least else max(1, round(factor * value / least)) for value in each)
                for factor in factors
            )
        )

    def _roots(self, view: View, opened: Collection[tuple[int, int]] | None = None) -> Iterator[tuple[Box, float]]:
        """Yield the boxes that may hold a better plan; `opened`: their microbatch sizes and numbers of pipelines."""
        devices = [sum(self._by_zone(view, accelerator).values()) for accelerator in range(len(self.names))]
        weightings = self._weightings()
        for size in divisors(self.space.batch):
            terms, shares = self._terms_of(view, size, 1), self.space.batch // size
            if terms is None:
                continue
            known: dict[int, tuple[Box, float]] = {}
            for weights in weightings:
                widest = self.space.layers * max(weights[kind.accelerator] * kind.tp for kind in terms.kinds)
                weight = sum(each * number for each, number in zip(weights, devices, strict=True))
                by_held: dict[int, list[Box]] = {}
                for replicas in range(1, min(shares, sum(devices)) + 1):
                    closed = replicas in known and known[replicas][1] >= self._enough
                    if closed or (opened is not None and (size, replicas) not in opened):
                        continue
                    box = Box(view, size, replicas, (min(widest, weight // replicas),), 1, weights)
                    # Programmes are shared by numbers of microbatches from one power of two to the next.
                    held = min(1 << (self._microbatches(box).bit_length() - 1), self.space.layers)
                    by_held.setdefault(held, []).append(box)
                for held, boxes in by_held.items():
                    least = self._least(boxes, held)
                    for box in boxes:
                        value = self._first(box, least)
                        if box.replicas not in known or value > known[box.replicas][1]:
                            known[box.replicas] = box, value
            yield from (
                (self._by_devices(box, devices), value) for box, value in known.values() if value < self._enough
            )

    def _least(self, boxes: list[Box], held: int) -> Mapping[Least, Floats]:
        """Return the least figures of pipelines by their weight, if stages hold `held` microbatches at most."""
        widest = max(boxes, key=lambda box: box.caps)
        terms = self._terms_of(widest.view, widest.size, held)
        assert terms is not None, "a box has kinds"
        free = [np.zeros((self.space.layers + 1,) * 2)] * len(terms.kinds)
        found = {}
        for least in Least:
            programme = Programme(widest, terms, free, most_stages=self.most_stages)
            programme.run(least)
            found[least] = np.stack([whole.min(axis=0) for whole in programme.wholes]).astype(np.float64)
        stages = min(len(each) for each in found.values())
        return {least: each[:stages] for least, each in found.items()}

    def _first(self, box: Box, least: Mapping[Least, Floats]) -> float:
        """Set the least figures of a box by weight, and return its bound."""
        fill, bottleneck, shard = (least[each][:, : box.caps[0] + 1] for each in Least)
        box.least_total_s = times(self._microbatches(box) - 1, bottleneck) + fill
        values = self._values(box, box.least_total_s.min(axis=0))
        if values.min() < self._enough:
            terms = self._terms_of(box.view, box.size, 1)
            assert terms is not None, "a box has kinds"
            spans = np.triu_indices(self.space.layers + 1, 1)
            seconds = np.concatenate([each[spans] for each in self._all_reduces(box, terms)])
            nbytes = np.concatenate([each[spans] for each in terms.shards])
            order = np.argsort(nbytes, kind="stable")
            # More bytes may take less time; some stage has at least as many as the least of pipelines.
            above = np.append(np.minimum.accumulate(seconds[order][::-1])[::-1], np.inf)
            reduced = above[np.searchsorted(nbytes[order], shard * (1.0 - _ROUNDING))]
            box.least_total_s = box.least_total_s + reduced
            values = self._values(box, box.least_total_s.min(axis=0))
            box.all_reduce = (float(reduced.min()), math.inf)
        box.least_total_s = box.least_total_s.min(axis=0)
        box.least_fill, box.least_s = fill.min(axis=0), bottleneck.min(axis=0)
        kept = box.least_s[np.isfinite(values)]
        box.bottleneck = (float(kept.min()) if kept.size else math.inf, math.inf)
        return float(values.min())

    def _by_devices(self, box: Box, devices: list[int]) -> Box:
        """Return a box by devices if it has few enough combinations, with the least figures of the one by weight."""
        caps = tuple(number // box.replicas for number in devices)
        shape = tuple(cap + 1 for cap in caps)
        if len(caps) == 1 or math.prod(shape) > MOST_VECTORS:
            return box
        total_s = box.least_total_s[np.isfinite(self._values(box, box.least_total_s))].min()
        found = Box(box.view, box.size, box.replicas, caps, 1)
        found.bottleneck, found.all_reduce = box.bottleneck, box.all_reduce
        found.least_fill, found.least_total_s = np.zeros(shape), np.full(shape, total_s)
        return found

    def _values(self, box: Box, seconds: Floats) -> Floats:
        """Return the least goal of a pipeline by its devices or weight, infinite if a limit is certainly exceeded."""
        space, rates = self.space, device_rates(self.space)
        if box.weights:
            each = [rates[name] / weight for name, weight in zip(self.names, box.weights, strict=True)]
            usd_per_hour = box.use[0] * (box.replicas * min(each))
        else:
            usd_per_hour = sum(
                use * (box.replicas * rates[name]) for name, use in zip(self.names, box.use, strict=True)
            )
        steps, fixed_s = space.scenario.job.training.steps or 0, least_fixed_s(space)
        there = np.isfinite(seconds)
        paid = np.where(there, seconds, 0.0)
        figures = {
            Figure.ITERATION_S: paid,
            Figure.DURATION_S: steps * paid + fixed_s,
            Figure.USD_PER_ITERATION: paid * usd_per_hour / SECONDS_PER_HOUR,
            Figure.USD_PER_HOUR: usd_per_hour,
            Figure.NODES: np.ones_like(paid),
        }
        fixed_usd = fixed_s * min(rate.expected for rate in space.rates) / SECONDS_PER_HOUR
        figures[Figure.TOTAL_USD] = steps * figures[Figure.USD_PER_ITERATION] + fixed_usd
        for limit in self.target.limits:
            there = there & (figures[limit.figure] <= limit.at_most * (1.0 + TIE))
        return np.where(there, figures[self.target.goal], np.inf)


def uniform_bound(space: Space, target: Target, known: float, *, branched: bool) -> float | None:
    """Return a lower bound of all plans with equal pipelines; None if time is up before there is one.

    `known`: the value of a known plan. With `branched` the bound is raised until the deadline.
    """
    found = UniformBound(space, target, NORMAL, branched=branched).bound(known)
    return found if found > 0.0 else None


def is_uniform(space: Space, draft: Draft) -> bool:
    """Return whether the replicas of each stage have one accelerator and one tensor-parallel degree."""
    kinds = [
        tuple((space.pools[slot.pool].offer.accelerator, slot.tp) for slot in part.slots) for part in draft.pipelines
    ]
    return len(set(kinds)) == 1
