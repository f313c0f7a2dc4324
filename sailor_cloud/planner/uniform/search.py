"""The best plan with equal pipelines: one cut, one microbatch size, each stage on one kind of devices.

Engines that support nothing else use only this search. An iteration takes (M - 1) * bottleneck + fill + all-reduce,
with terms from the engine. A dynamic program runs for each microbatch size and number of pipelines. Its states are the
stages to the end, the first layer, the devices used, and the kinds of the stage and of the one before. It finds the
least fill under a limit on the time that stages are busy, and one on their all-reduce. Boxes are intervals of these two
limits and are branched best first. A box takes at least (M - 1) * its least bottleneck + fill + its least all-reduce.
The resulting chains are placed on nodes, and only the exact evaluator judges them.

With several zones, the search is repeated for sets of zones: once with every pipeline inside one zone, and once with
pipelines in any zones, as if cuts never left a zone. Placement and evaluation correct that assumption.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import combinations, count, pairwise, permutations, product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.layer_cuts import MAX_STAGES
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.replica_counts import divisors, replica_counts
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.planner.uniform.programme import MOST_STAGES, Box, Chain, Floats, Kind, Least, Programme, Terms, View
from sailor_cloud.simulator import gradient_sync_s
from sailor_cloud.simulator.engines import StagePlace, UniformPipelines, stage_bounds

# The search of a set of zones ends if no box beats the incumbent by more than this share.
GAP = 2e-4
# Most boxes for one set of zones; if money is minimised; if terms are guesses; and for plans that are only shown next
# to another one. With 60 instead of 400 for several zones, the plan of 5 zones x 80 A100 was 0.7 % slower by the
# formulas of Sailor's artifact.
_MOST_BOXES, _MOST_PRICED, _MOST_GUESSED, _MOST_LIGHT = 400, 150, 60, 20
# The most different numbers of devices of a pipeline, by accelerator, in a program; beyond, stages take devices in
# groups.
MOST_VECTORS = 500
# Up to this many kinds of places, all orders are tried. Differences below the second value come from rounding.
_ORDERED, _SAME = 5, 1e-9
# The number of best chains of a box that are placed and evaluated; and of chains kept for the last refinement. With 6
# instead of 20 of these, the same plan was 0.03 % slower.
_PLACED, _REFINED = 2, 20
# The margin for rings in which fewer bytes take longer.
_SURE = 0.95
# The first limit on the bottleneck, relative to the least one, and the share of an iteration by which a box's
# all-reduces may differ before its bottleneck is split.
_FIRST, _NARROW = 1.03, 0.01
# Most samples of a microbatch.
_LARGEST = 1024


@dataclass(slots=True)
class UniformSearch:
    """One search; `found` holds the drafts that keep all limits, by sort key, `best` the least value among them."""

    space: Space
    target: Target
    effort: Effort
    most_stages: int = MOST_STAGES
    found: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    best: float = math.inf
    boxes: int = 0
    assessor: Assessor = field(init=False)
    names: list[str] = field(init=False)
    pools: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    _terms: dict[tuple[object, ...], Terms] = field(default_factory=dict)
    _of_any: dict[tuple[object, ...], dict[Least, Floats]] = field(default_factory=dict)
    _reduce: dict[tuple[View, Kind, int], Floats] = field(default_factory=dict)
    _judged: dict[tuple[View, Chain], float] = field(default_factory=dict)
    _rows: dict[tuple[View, Chain], list[tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.assessor = Assessor(self.space, self.target)
        self.names = sorted({pool.offer.accelerator for pool in self.space.pools})
        # For each accelerator and zone, the largest nodes of those that have all devices, with their number.
        for number in sorted(self.assessor.node_sizes().values(), key=self._usd):
            pool = self.space.pools[number]
            key = (self.names.index(pool.offer.accelerator), pool.offer.zone)
            self.pools.setdefault(key, (number, pool.max_nodes))

    def _usd(self, pool: int) -> float:
        return self.space.rates[pool].expected / self.space.pools[pool].devices

    def run(self) -> list[Draft]:
        """Return the plans that keep all limits, best first."""
        views = self.views()
        for number, view in enumerate(views):
            self.effort.tell(number / len(views))
            self._search(view)
        for view, chain in sorted(self._judged, key=lambda each: (self._judged[each], str(each)))[:_REFINED]:
            self._refine(view, min(chain, self._usual(chain), key=partial(self.judge, view)))
        return [self.found[order] for order in sorted(self.found)]

    def _usual(self, chain: Chain) -> Chain:
        """Return a chain with the cut that the engine makes of a number of stages; formulas have exact cuts already.

        The search rates cuts by 1F1B, and moves of single layers seldom lead from one of its cuts to an even one.
        """
        scenario, stages = self.space.scenario, len(chain.kinds)
        if scenario.engine.formulas is not None or stages > scenario.decoder.blocks:
            return chain
        return replace(chain, cut=stage_bounds(scenario.engine.split, scenario.decoder, stages))

    def views(self) -> list[View]:
        """Return the sets of zones to search, the most promising first."""
        zones = tuple(sorted({zone for _, zone in self.pools}))
        region_of = self.space.scenario.catalog.region_of
        regions: dict[str, list[str]] = {}
        for zone in zones:
            regions.setdefault(region_of(zone), []).append(zone)
        sets = [tuple(members) for members in regions.values() if len(members) > 1]
        sets += [zones] if len(regions) > 1 else []
        found = [View(zones=each, inside=True) for each in sets]
        found += [View(zones=(zone,), inside=True) for zone in zones]
        if self.space.scenario.engine.formulas is not None:
            found += [View(zones=each, inside=False) for each in sets]
        if self.space.scenario.engine.one_tp:
            degrees = sorted({tp for each in self.space.tp_degrees for tp in each})
            return [replace(view, tp=tp) for view in found for tp in degrees]
        return found

    def _room(self, zone: str) -> list[int]:
        """Return the number of devices in a zone, by accelerator."""
        found = []
        for accelerator in range(len(self.names)):
            pool, nodes = self.pools.get((accelerator, zone), (0, 0))
            found.append(nodes * self.space.pools[pool].devices)
        return found

    def _usable(self, box: Box) -> NDArray[np.bool_]:
        """Return which numbers of devices per pipeline the zones of a box have room for."""
        use = box.use
        room = np.array([self._room(zone) for zone in box.view.zones])
        if box.view.inside:
            fit = np.full((len(room), *use.shape[1:]), box.replicas)
            for zone, accelerator in product(range(len(room)), range(len(use))):
                devices = use[accelerator]
                here = room[zone, accelerator] // np.maximum(devices, 1)
                fit[zone] = np.where(devices > 0, np.minimum(fit[zone], here), fit[zone])
            usable = fit.sum(axis=0) >= box.replicas
        else:
            whole = room.sum(axis=0).reshape(-1, *[1] * (use.ndim - 1))
            usable = np.all(use * box.replicas <= whole, axis=0)
        return np.asarray(usable & (use.sum(axis=0) > 0))

    def terms(self, view: View, size: int, unit: int, replicas: int) -> Terms | None:
        """Return the terms of a view, with the slowest cut of its zones. None if it has no kind of stages."""
        # Without ZeRO it only matters whether there are several.
        sharers = replicas if self.space.zero_stage else 2
        kinds = self._kinds(view, size, unit)
        if not kinds:
            return None
        key = (view.zones, view.tp, size, unit, sharers)
        if key not in self._terms:
            shape = (len(kinds), len(kinds), self.space.layers + 1)
            after, before = np.zeros(shape), np.zeros(shape)
            for a, b in product(range(len(kinds)), repeat=2):
                for there, back in self._cuts(view, size, kinds[a], kinds[b]):
                    after[a, b] = np.maximum(after[a, b], there)
                    before[a, b] = np.maximum(before[a, b], back)
            pools = [self._pool(view, kind) for kind in kinds]
            tables = [self.space.table(pool, kind.tp, size) for pool, kind in zip(pools, kinds, strict=True)]
            by_formulas = self.space.scenario.engine.formulas is not None
            self._terms[key] = Terms(
                space=self.space,
                size=size,
                sharers=sharers,
                kinds=kinds,
                pools=pools,
                shards=np.stack(
                    [
                        (table.gradient_prefix_bytes - table.gradient_prefix_bytes[:, None]) / table.tp
                        for table in tables
                    ]
                ),
                layer_s=np.stack([np.diff(table.forward_prefix_s + table.backward_prefix_s) for table in tables]),
                busy_after=after,
                busy_before=before,
                # A cut that occupies both of its ends delays a microbatch once.
                fill_after=after,
                fill_before=before if by_formulas else np.zeros(shape),
            )
        return self._terms[key]

    def _kinds(self, view: View, size: int, unit: int) -> list[Kind]:
        found = []
        for accelerator in range(len(self.names)):
            pools = [self.pools[accelerator, zone][0] for zone in view.zones if (accelerator, zone) in self.pools]
            degrees = [set(self.space.tp_degrees[pool]) for pool in pools]
            for tp in sorted(set.intersection(*degrees)) if pools else ():
                if view.tp not in (None, tp):
                    continue
                whole = all(self.space.pools[pool].devices % tp == 0 for pool in pools) and tp % unit == 0
                if whole and self.space.table(pools[0], tp, size).limit_bytes > 0:
                    found.append(Kind(accelerator, tp))
        return found

    def _pool(self, view: View, kind: Kind) -> int:
        return next(
            self.pools[kind.accelerator, zone][0] for zone in view.zones if (kind.accelerator, zone) in self.pools
        )

    def _cuts(self, view: View, size: int, src: Kind, dst: Kind) -> Iterator[tuple[Floats, Floats]]:
        """Yield the seconds of an activation and its gradient over each cut, for the zones that it may connect."""
        formulas = self.space.scenario.engine.formulas
        together = [
            zone for zone in view.zones if {(src.accelerator, zone), (dst.accelerator, zone)} <= set(self.pools)
        ]
        for a, b in [(zone, zone) for zone in together] or product(view.zones, repeat=2):
            if (src.accelerator, a) not in self.pools or (dst.accelerator, b) not in self.pools:
                continue
            if formulas is not None:
                places = (self._place(src, a), self._place(dst, b))
                yield formulas.cuts_s(self.space.scenario, size, *places)
            else:
                seats = (
                    Seat(self.pools[src.accelerator, a][0], src.tp, 0),
                    Seat(self.pools[dst.accelerator, b][0], dst.tp, 1),
                )
                seconds = self.space.boundary(*seats, size)
                yield seconds, seconds

    def _place(self, kind: Kind, zone: str) -> StagePlace:
        return StagePlace(self.names[kind.accelerator], zone, kind.tp)

    def _all_reduces(self, box: Box, terms: Terms) -> list[Floats]:
        return [self.all_reduces_s(box.view, kind, box.replicas) for kind in terms.kinds]

    def all_reduces_s(self, view: View, kind: Kind, replicas: int) -> Floats:
        """Return the seconds of the all-reduce of each stage of a kind, [layers + 1, layers + 1]."""
        key = (view, kind, replicas)
        if key not in self._reduce:
            scenario = self.space.scenario
            zones = [zone for zone in view.zones if (kind.accelerator, zone) in self.pools]
            if scenario.engine.formulas is not None:
                places = [self._place(kind, zone) for zone in zones]
                hops = [*zip(places, places, strict=True), *pairwise(places)]
                self._reduce[key] = scenario.engine.formulas.all_reduces_s(scenario, replicas, kind.tp, hops)
            else:
                self._reduce[key] = self._rings_s(self._pool(view, kind), kind.tp, replicas)
        return self._reduce[key]

    def _rings_s(self, pool: int, tp: int, replicas: int) -> Floats:
        """Return the seconds of each stage's all-reduce between nodes of one zone."""
        seconds, sync = np.zeros((self.space.layers + 1,) * 2), self.assessor.sync
        if replicas > 1:
            flows: dict[tuple[int, int], int] = defaultdict(lambda: 1)
            hops = sync.hops([Slot(pool, number, tp) for number in range(replicas)], flows)
            slowest = max(sync.links(hops), key=lambda link: link.transfer_s(1e6))
            first, end = np.triu_indices(self.space.layers + 1, 1)
            nbytes = sync.nbytes(Slot(pool, 0, tp), first, end)
            seconds[first, end] = gradient_sync_s(
                nbytes,
                replicas,
                slowest,
                engine=self.space.scenario.engine,
                bucket_bytes=self.space.bucket_bytes,
            )
        return seconds

    def _search(self, view: View) -> None:
        heap: list[tuple[float, int, Box]] = []
        numbers = count()
        for box, bound in self._roots(view):
            heappush(heap, (bound, next(numbers), box))
        guessed = self.space.scenario.engine.formulas is None
        most = _MOST_GUESSED if guessed else _MOST_BOXES if self.timed else _MOST_PRICED
        for _ in range(most if self.effort.bounded else _MOST_LIGHT):
            if not heap or heap[0][0] >= self.best * (1.0 - GAP):
                return
            bound, _, box = heappop(heap)
            for child, least in self._split(box) if box.fill is not None else self._solve(box):
                if max(bound, least) < self.best * (1.0 - GAP):
                    heappush(heap, (max(bound, least), next(numbers), child))

    def _roots(self, view: View) -> Iterator[tuple[Box, float]]:
        """Yield the boxes of all microbatch sizes and numbers of pipelines, with lower bounds for their plans."""
        totals = np.sum([self._room(zone) for zone in view.zones], axis=0)
        for size in (each for each in divisors(self.space.batch) if each <= _LARGEST):
            if self.terms(view, size, 1, 1) is None:
                continue
            by_unit: dict[int, list[Box]] = {}
            for replicas, _ in replica_counts(self.space.batch // size, int(totals.sum())):
                same = self.space.scenario.engine.one_tp or self.space.zero_stage >= 2
                if same and self.space.batch // size % replicas:
                    continue
                most, unit = [int(total) // replicas for total in totals], 1
                while math.prod(cap // unit + 1 for cap in most) > MOST_VECTORS:
                    unit *= 2
                if self.terms(view, size, unit, replicas) is not None:
                    box = Box(view, size, replicas, tuple(cap // unit for cap in most), unit)
                    by_unit.setdefault(unit, []).append(box)
            for boxes in by_unit.values():
                known = self._least_of_any(boxes)
                for box in boxes:
                    here = (slice(self._stages(box)), *(slice(cap + 1) for cap in box.caps))
                    fill, bottleneck, shard = (known[each][here] for each in Least)
                    distinct, where = np.unique(shard, return_inverse=True)
                    reduced = _SURE * np.array([self._shard_s(view, box.replicas, float(each)) for each in distinct])
                    seconds = times(self._microbatches(box) - 1, bottleneck) + fill
                    box.least_total_s = (seconds + reduced[where].reshape(shard.shape)).min(axis=0)
                    values = self._values(box, box.least_total_s)
                    if values.min() < math.inf:
                        box.least_fill, box.least_s = fill.min(axis=0), bottleneck.min(axis=0)
                        box.bottleneck = (float(box.least_s[np.isfinite(values)].min()), math.inf)
                        box.all_reduce = (float(reduced.min()), math.inf)
                        yield box, float(values.min())

    def _least_of_any(self, boxes: Sequence[Box]) -> dict[Least, Floats]:
        """Return the least figures of pipelines by their devices, up to the most of any box, without limits.

        By stages and devices, [stages, *caps + 1]. They depend on the number of pipelines only with ZeRO, since more of
        them free memory.
        """
        caps = tuple(max(each) for each in zip(*(box.caps for box in boxes), strict=True))
        most = replace(boxes[0], caps=caps, replicas=max(box.replicas for box in boxes))
        key = (most.view.zones, most.view.tp, most.size, most.unit, caps)
        if key not in self._of_any:
            terms = self.terms(most.view, most.size, most.unit, most.replicas)
            assert terms is not None, "a box has kinds"
            self.boxes += len(Least)
            found = {}
            for least in Least:
                programme = Programme(most, terms, self._all_reduces(most, terms), most_stages=self.most_stages)
                programme.run(least)
                found[least] = np.stack([whole.min(axis=0) for whole in programme.wholes]).astype(np.float64)
            stages = min(len(each) for each in found.values())
            self._of_any[key] = {least: each[:stages] for least, each in found.items()}
        return self._of_any[key]

    def _shard_s(self, view: View, replicas: int, nbytes: float) -> float:
        """Return the seconds of an all-reduce of `nbytes` bytes per device between the closest nodes of a view."""
        formulas = self.space.scenario.engine.formulas
        if formulas is None or replicas < 2:
            return 0.0
        if math.isinf(nbytes):
            return math.inf
        places = [
            StagePlace(self.names[accelerator], zone, 1) for accelerator, zone in self.pools if zone in view.zones
        ]
        return min(formulas.ring_s(nbytes, replicas, place, place) for place in places)

    def _microbatches(self, box: Box) -> int:
        return -(-self.space.batch // (box.size * box.replicas))

    def _stages(self, box: Box) -> int:
        """Return the most stages that the engine runs with a box's microbatches."""
        extra = self.space.scenario.engine.extra_stages
        return self.most_stages if extra is None else min(self.most_stages, self._microbatches(box) + extra)

    def _values(self, box: Box, seconds: Floats) -> Floats:
        """Return the least goal of a pipeline by its devices, infinite if a limit is certainly exceeded."""
        known = self._usable(box) & np.isfinite(seconds)
        value = np.full(seconds.shape, np.inf)
        if known.any():
            usd_per_hour = np.zeros(seconds.shape)
            for accelerator, devices in enumerate(box.use):
                pools = [
                    self.pools[accelerator, zone][0] for zone in box.view.zones if (accelerator, zone) in self.pools
                ]
                usd_per_hour = usd_per_hour + devices * box.replicas * min(map(self._usd, pools), default=0.0)
            cheapest = next(self.pools[key][0] for key in sorted(self.pools) if key[1] in box.view.zones)
            bill = replace(
                Bill.of(self.space, Counter({cheapest: 1})), nodes=1.0, usd_per_hour=usd_per_hour[known], lost=0.0
            )
            value[known] = self.target.value(bill.figures(seconds[known], np.zeros(int(known.sum()))))
        return value

    def _least_s(self, box: Box) -> Floats:
        assert box.fill is not None, "the box is solved"
        assert box.least_s is not None, "its bottlenecks come first"
        busy = np.maximum(box.bottleneck[0], box.least_s)
        seconds = times(self._microbatches(box) - 1, busy) + box.fill + box.all_reduce[0]
        return np.maximum(seconds, box.least_total_s)

    def _solve(self, box: Box) -> Iterator[tuple[Box, float]]:
        """Find the least bottlenecks and fills of a box, evaluate its best chains, and yield the box with its bound."""
        terms = self.terms(box.view, box.size, box.unit, box.replicas)
        assert terms is not None, "a box has kinds"
        if box.least_s is None:
            self.boxes += 1
            programme = Programme(box, terms, self._all_reduces(box, terms), *self._slack(box), self._stages(box))
            box.least_s = programme.run(Least.BOTTLENECK)
            values = self._values(box, self._least_s(replace(box, fill=box.least_fill)))
            if not values.min() < self.best * (1.0 - GAP):
                return
            box.bottleneck = (max(box.bottleneck[0], float(box.least_s[np.isfinite(values)].min())), box.bottleneck[1])
        self.boxes += 1
        busy, reduced = self._slack(box)
        if math.isinf(busy):
            # Without an incumbent, short and slow pipelines would come first.
            busy = box.bottleneck[0] * _FIRST
            above = replace(box, bottleneck=(busy, math.inf), fill=box.least_fill)
            yield replace(above, fill=None), float(self._values(above, self._least_s(above)).min())
            box.bottleneck = (box.bottleneck[0], busy)
        programme = Programme(box, terms, self._all_reduces(box, terms), busy, reduced, self._stages(box))
        box.fill = programme.run()
        values = self._values(box, self._least_s(box))
        for flat in np.argsort(values, axis=None, kind="stable")[:_PLACED]:
            use = tuple(int(each) for each in np.unravel_index(int(flat), values.shape))
            if not values[use] < self.best:
                break
            chain = programme.chain(use)
            box.chain = box.chain or chain
            self.judge(box.view, chain)
        yield box, float(values.min())

    def _slack(self, box: Box) -> tuple[float, float]:
        """Return how long stages of a box may be busy, and reduce, in a plan that beats the incumbent."""
        if not self.timed or math.isinf(self.best):
            return box.bottleneck[1], box.all_reduce[1]
        rest = self._microbatches(box) - 1
        return (
            min(box.bottleneck[1], (self.best - box.all_reduce[0]) / max(rest, 1)),
            min(box.all_reduce[1], self.best - rest * box.bottleneck[0]),
        )

    def _split(self, box: Box) -> Iterator[tuple[Box, float]]:
        """Yield the halves of a solved box with their bounds, split by the limit that its chain is further from."""
        if box.chain is None:
            return
        busy, reduced = self._measures(box, box.chain)
        rest = self._microbatches(box) - 1
        wide = rest * (busy - box.bottleneck[0]), reduced - box.all_reduce[0]
        if max(wide) <= GAP / 4.0 * (rest * busy + reduced):
            # The chain is as good as the box may be.
            return
        if self._reduces_first(wide):
            middle = (box.all_reduce[0] + reduced) / 2.0
            lower = replace(box, all_reduce=(box.all_reduce[0], middle))
            upper = replace(box, all_reduce=(middle, box.all_reduce[1]))
        else:
            middle = (box.bottleneck[0] + busy) / 2.0
            lower = replace(box, bottleneck=(box.bottleneck[0], middle))
            upper = replace(box, bottleneck=(middle, box.bottleneck[1]))
        yield upper, float(self._values(upper, self._least_s(upper)).min())
        least = float(self._values(lower, self._least_s(lower)).min())
        if lower.all_reduce[1] < box.all_reduce[1]:
            lower.least_s = None
        lower.fill = lower.chain = None
        yield lower, least

    def _reduces_first(self, wide: tuple[float, float]) -> bool:
        """Return whether to split a box by its all-reduces; `wide`: by how many seconds bottlenecks and they differ."""
        return wide[1] > min(_NARROW * self.best, max(wide)) if self.timed else wide[1] > wide[0]

    @property
    def timed(self) -> bool:
        return self.target.goal is Figure.ITERATION_S

    def _measures(self, box: Box, chain: Chain) -> tuple[float, float]:
        """Return the longest time that a stage of a chain is busy with a microbatch, and reduces."""
        terms = self.terms(box.view, box.size, box.unit, box.replicas)
        assert terms is not None, "a box has kinds"
        numbers, stages = [terms.kinds.index(kind) for kind in chain.kinds], len(chain.kinds)
        all_reduces = self._all_reduces(box, terms)
        busy = reduced = 0.0
        first_sends, last_sends = terms.ends(stages)
        for s, (first, end) in enumerate(pairwise(chain.cut)):
            here = float(terms.compute_s(stages - s)[numbers[s], first, end])
            if s > 0:
                here += terms.busy_before[numbers[s - 1], numbers[s], first] * (last_sends if s + 1 == stages else 1.0)
            if s + 1 < stages:
                here += terms.busy_after[numbers[s], numbers[s + 1], end] * (first_sends if s == 0 else 1.0)
            busy = max(busy, here)
            reduced = max(reduced, float(all_reduces[numbers[s]][first, end]))
        return busy, reduced

    def judge(self, view: View, chain: Chain) -> float:
        """Return the value of the best plan of a chain, infinite if none keeps all limits."""
        if self.space.scenario.engine.one_cut:
            # The programme may join stages that belong to different numbers of stages.
            chain = self._usual(chain)
        if (view, chain) not in self._judged:
            value = math.inf
            for placed in self._placements(view, chain):
                rows = self._ordered(chain, placed)
                here = self._evaluated(chain, rows)
                if here < value:
                    value, self._rows[view, chain] = here, rows
            self._judged[view, chain] = value
        return self._judged[view, chain]

    def _evaluated(self, chain: Chain, rows: Sequence[tuple[str, ...]], *, by_stage: bool = False) -> float:
        """Return the value of a chain in some zones, and keep its draft; infinite if that exceeds a limit."""
        placed = self._slots(chain.kinds, rows, by_stage=by_stage)
        shapes = [Shape(slots=slots, cut=chain.cut, microbatch_size=chain.size) for slots in placed]
        draft = self.assessor.draft(shapes)
        if draft is None:
            return math.inf
        draft = Evaluator(self.assessor).expected(draft)
        if self.assessor.excess(draft, draft.foreseen) > 1.0:
            return math.inf
        self.found.setdefault(draft.order(), draft)
        value = draft.foreseen[self.target.goal]
        self.best = min(self.best, value)
        return value

    def _placements(self, view: View, chain: Chain) -> Iterator[list[tuple[str, ...]]]:
        """Yield the zones of the stages of all pipelines, in some ways to place them."""
        stages, replicas = len(chain.kinds), chain.replicas
        free = {zone: self._room(zone) for zone in view.zones}

        def needed(kinds: Sequence[Kind]) -> list[int]:
            return [sum(kind.tp for kind in kinds if kind.accelerator == a) for a in range(len(self.names))]

        def taken(room: dict[str, list[int]], parts: Sequence[tuple[str, Sequence[Kind]]]) -> bool:
            for zone, kinds in parts:
                if any(use > there for use, there in zip(needed(kinds), room[zone], strict=True)):
                    return False
            for zone, kinds in parts:
                room[zone] = [there - use for use, there in zip(needed(kinds), room[zone], strict=True)]
            return True

        whole: list[tuple[str, ...]] = []
        for zone in sorted(view.zones, key=lambda zone: (-self._fit(needed(chain.kinds), free[zone]), zone)):
            while len(whole) < replicas and taken(free, [(zone, chain.kinds)]):
                whole.append((zone,) * stages)
        if len(whole) == replicas:
            yield sorted(whole)
        if view.inside:
            return
        by_rings = self._by_rings(view, chain)
        if by_rings is not None:
            yield by_rings
        if len(whole) == replicas:
            return
        for cut in range(1, stages):
            room, rows = {zone: list(there) for zone, there in free.items()}, list(whole)
            for a, b in product(sorted(room), repeat=2):
                while a != b and len(rows) < replicas and taken(room, [(a, chain.kinds[:cut]), (b, chain.kinds[cut:])]):
                    rows.append((a,) * cut + (b,) * (stages - cut))
            if len(rows) == replicas:
                yield sorted(rows)
        room, rows = {zone: list(there) for zone, there in free.items()}, list(whole)
        while len(rows) < replicas:
            row: list[str] = []
            for kind in chain.kinds:
                first = [zone for zone in (row[-1:] + sorted(room)) if room[zone][kind.accelerator] >= kind.tp]
                if not first:
                    return
                taken(room, [(first[0], [kind])])
                row.append(first[0])
            rows.append(tuple(row))
        yield sorted(rows)

    def _by_rings(self, view: View, chain: Chain) -> list[tuple[str, ...]] | None:
        """Return zones in which the slowest hop of each stage's all-reduce is fast, the longest all-reduce first.

        Cuts may leave a zone. None without room, without an all-reduce, or without formulas of the engine.
        """
        formulas, replicas = self.space.scenario.engine.formulas, chain.replicas
        if formulas is None or replicas < 2:
            return None
        free = {zone: self._room(zone) for zone in view.zones}
        spans = list(pairwise(chain.cut))
        first = StagePlace(self.names[chain.kinds[0].accelerator], view.zones[0], 1)
        columns: dict[int, list[str]] = {}
        for stage in sorted(range(len(spans)), key=lambda s: (-self._shard(view, chain, s), s)):
            kind, nbytes = chain.kinds[stage], self._shard(view, chain, stage)
            place = {zone: first._replace(accelerator=self.names[kind.accelerator], zone=zone) for zone in view.zones}
            hops = {
                (a, b): formulas.ring_s(nbytes, replicas, place[a], place[b])
                for a, b in product([zone for zone in view.zones if free[zone][kind.accelerator] >= kind.tp], repeat=2)
            }
            room = {zone: free[zone][kind.accelerator] // kind.tp for zone in view.zones}
            column = next(
                (found for limit in sorted(set(hops.values())) if (found := _walk(hops, room, replicas, limit))), None
            )
            if column is None:
                return None
            columns[stage] = column
            for zone in column:
                free[zone][kind.accelerator] -= kind.tp
        return list(zip(*(columns[stage] for stage in range(len(spans))), strict=True))

    def _shard(self, view: View, chain: Chain, stage: int) -> float:
        """Return the gradient bytes per device of a stage."""
        terms = self.terms(view, chain.size, 1, chain.replicas)
        assert terms is not None, "a chain has kinds"
        return float(terms.shards[terms.kinds.index(chain.kinds[stage]), chain.cut[stage], chain.cut[stage + 1]])

    def _ordered(self, chain: Chain, rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return pipelines with equally placed ones together, in the order that is fastest by the formulas."""
        formulas, alike = self.space.scenario.engine.formulas, Counter(rows)
        if formulas is None or not 1 < len(alike) <= _ORDERED:
            return rows
        orders = [[row for row in order for _ in range(alike[row])] for order in permutations(sorted(alike))]
        return min((rows, *orders), key=lambda order: self._rows_s(chain, order))

    def _rows_s(self, chain: Chain, rows: Sequence[tuple[str, ...]]) -> float:
        formulas = self.space.scenario.engine.formulas
        assert formulas is not None, "only formulas have an order"
        pipelines = UniformPipelines(
            rows=[tuple(map(self._place, chain.kinds, row)) for row in rows],
            cut=chain.cut,
            microbatch_size=chain.size,
            microbatches=-(-self.space.batch // (chain.size * chain.replicas)),
        )
        return formulas.iteration(pipelines, self.space.scenario).seconds

    @staticmethod
    def _fit(use: Sequence[int], room: Sequence[int]) -> int:
        return min((there // each for each, there in zip(use, room, strict=True) if each), default=0)

    def _slots(
        self, kinds: Sequence[Kind], rows: Sequence[tuple[str, ...]], *, by_stage: bool
    ) -> list[tuple[Slot, ...]]:
        """Return the slots of pipelines in their zones; wide stages come first, so that nodes have no gaps.

        Nodes are filled with the stages of a pipeline, or `by_stage` with the replicas of a stage.
        """
        places = [
            (self.pools[kind.accelerator, zone][0], -kind.tp, stage if by_stage else 0, number, stage)
            for number, row in enumerate(rows)
            for stage, (kind, zone) in enumerate(zip(kinds, row, strict=True))
        ]
        found: dict[tuple[int, int], Slot] = {}
        used: Counter[int] = Counter()
        for pool, tp, _, number, stage in sorted(places):
            found[number, stage] = Slot(pool, used[pool] // self.space.pools[pool].devices, -tp)
            used[pool] -= tp
        return [tuple(found[number, stage] for stage in range(len(kinds))) for number in range(len(rows))]

    def _refine(self, view: View, chain: Chain) -> None:
        """Move single layers between neighbours while that improves the plan; then place it stage by stage, too."""
        value = self.judge(view, chain)
        better = not self.space.scenario.engine.one_cut
        while better:
            better = False
            for at in range(1, len(chain.cut) - 1):
                for step in (-1, 1):
                    cut = (*chain.cut[:at], chain.cut[at] + step, *chain.cut[at + 1 :])
                    if not cut[at - 1] < cut[at] < cut[at + 1]:
                        continue
                    other = replace(chain, cut=cut)
                    if self.judge(view, other) < value:
                        chain, value, better = other, self.judge(view, other), True
        rows = self._rows.get((view, chain))
        if rows is None:
            return
        if self.space.scenario.engine.formulas is None:
            self._evaluated(chain, rows, by_stage=True)
        elif len(view.zones) > 1:
            self._moved(view, chain, rows)

    def _moved(self, view: View, chain: Chain, rows: list[tuple[str, ...]]) -> None:
        """Move pairs of stages to other zones while that shortens the iteration."""
        columns = [list(column) for column in zip(*rows, strict=True)]
        seconds, better = self._rows_s(chain, rows), True
        while better:
            better = False
            for stages in combinations(range(len(columns)), 2) if len(columns) > 1 else [(0,)]:
                free = {zone: self._room(zone) for zone in view.zones}
                for stage, kind in enumerate(chain.kinds):
                    for zone in columns[stage] if stage not in stages else ():
                        free[zone][kind.accelerator] -= kind.tp
                for moved in self._columns(view, chain, stages, free):
                    other = [moved.get(stage, column) for stage, column in enumerate(columns)]
                    found = self._rows_s(chain, list(zip(*other, strict=True)))
                    if found < seconds * (1.0 - _SAME):
                        columns, seconds, better = other, found, True
        self._evaluated(chain, list(zip(*columns, strict=True)))

    def _columns(
        self, view: View, chain: Chain, stages: Sequence[int], free: dict[str, list[int]]
    ) -> Iterator[dict[int, list[str]]]:
        """Yield zones for all replicas of some stages: all in one zone, one zone filled before another, or halves."""
        if not stages:
            yield {}
            return
        kind, replicas = chain.kinds[stages[0]], chain.replicas
        room = {zone: there[kind.accelerator] // kind.tp for zone, there in free.items()}
        options: dict[tuple[str, ...], None] = {}
        for a, b in product(view.zones, repeat=2):
            for most in (min(room[a], replicas), replicas // 2, replicas - room[b]):
                if 0 <= most <= room[a] and replicas - most <= (room[b] if a != b else room[a] - most):
                    options[(a,) * most + (b,) * (replicas - most)] = None
        for option in options:
            left = {zone: list(there) for zone, there in free.items()}
            for zone in option:
                left[zone][kind.accelerator] -= kind.tp
            for rest in self._columns(view, chain, stages[1:], left):
                yield {stages[0]: list(option), **rest}


def times(count_: int, seconds: Floats) -> Floats:
    """Return `count_` times some seconds; infinite ones stay infinite."""
    return np.where(np.isfinite(seconds), count_ * np.where(np.isfinite(seconds), seconds, 0.0), np.inf)


def _walk(hops: dict[tuple[str, str], float], room: dict[str, int], count_: int, limit: float) -> list[str] | None:
    """Return zones of `count_` replicas, contiguous by zone, such that no hop takes longer than a limit."""
    zones = sorted({zone for zone, _ in hops})
    for length in range(1, len(zones) + 1):
        for order in permutations(zones, length):
            if any(hops[pair] > limit for pair in pairwise(order)):
                continue
            # If hops inside a zone take too long, it gets one replica.
            most = [room[zone] if hops[zone, zone] <= limit else min(room[zone], 1) for zone in order]
            if sum(most) < count_:
                continue
            left, walk = count_ - len(order), []
            if left < 0:
                continue
            for zone, there in zip(order, most, strict=True):
                more = min(there - 1, left)
                walk += [zone] * (1 + more)
                left -= more
            return walk
    return None


def uniform_drafts(space: Space, target: Target, effort: Effort) -> list[Draft]:
    """Return plans with equal pipelines, best first."""
    # More stages than a few take several times as long, and such plans are seldom better.
    found = UniformSearch(space, target, effort).run()
    return found or UniformSearch(space, target, effort, most_stages=min(MAX_STAGES, space.layers)).run()
