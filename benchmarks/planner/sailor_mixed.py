"""Plans whose replicas of a stage differ in GPU, tp or zone, under the formulas of Sailor's artifact.

One pipeline of such a plan at a time bounds it (sailor_cloud.planner.even.differing): stages take as long as the
slowest replica, so no pipeline alone takes longer. Its neighbours are its own; in its rings the next replica may be of
any GPU and in any zone, so that the fastest links count there, with the bytes of its own tp. Plans of several areas are
told apart: those of one area alone; those whose pipelines each stand inside one area, so that every ring crosses areas;
and those in which some pipeline crosses areas, over the fastest link there is at one of its cuts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sailor_away import Away
from sailor_even import Placed, SailorEven, parts
from sailor_formulas import USD_PER_HOUR, Place
from sailor_links import region
from sailor_places import Kind, as_plan
from sailor_traffic import Traffic, Where
from sailor_zoned import SailorZoned

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.differing import rule_out
from sailor_cloud.planner.even.mixed import Mixed, mixed
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.even.prices import least_rent, price_vectors, whole_prices
from sailor_cloud.planner.replica_counts import replica_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Searches for pipelines whose cuts are tried with replicas that differ, where a bound leaves a gap.
_MIXED, _BOTH = 60, 1000
# By how much more than the most that is allowed a plan is taken to be known.
_SLOWER = 1.01


@dataclass(slots=True)
class SailorMixed:
    """A Differing problem; see sailor_cloud.planner.even.priced. Pools are the GPUs, all zones together."""

    even: SailorEven
    within_s: float = np.inf
    settles: bool = False
    _sync: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _costs: dict[int, StageCosts | None] = field(default_factory=dict)
    _aways: dict[tuple[int, ...], Away] = field(default_factory=dict)
    _per_byte: dict[int, float] = field(default_factory=dict)

    @property
    def where(self) -> Where:
        return self.even.where

    @property
    def batch(self) -> int:
        return self.even.batch

    @property
    def rising(self) -> bool:
        return self.even.rising

    @property
    def timed(self) -> bool:
        return self.even.timed

    @property
    def devices(self) -> Ints:
        there = self.even.case.devices.items()
        return np.array([sum(count for (gpu, _), count in there if gpu == each) for each in self.even.gpus])

    @property
    def rents(self) -> Ints | None:
        if self.even.case.budget is None and not self.even.case.cheapest:
            return None
        return whole_prices(np.array([USD_PER_HOUR[gpu] for gpu in self.even.gpus]))

    @property
    def prices(self) -> Ints:
        return price_vectors(len(self.devices))

    def bounded(self, replicas: int) -> int:
        return replicas

    def most(self, replicas: int) -> Ints:
        devices = self.devices // replicas
        return np.append(devices, 1) if self.even.far else devices

    def sizes(self) -> list[int]:
        return self.even.sizes()

    def counts(self, size: int) -> list[tuple[int, int]]:
        return replica_counts(self.batch // size)

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        """All pipelines count with the larger number."""
        return -(-self.batch // (size * replicas)), replicas

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if size not in self._costs:
            costs = self.even.costs(size, None)
            if costs is not None and self.where in (Where.SPLIT, Where.PARTLY):
                # What crosses has several stages, and all pipelines have as many.
                compute = costs.compute_s.copy()
                compute[..., 0, -1] = np.inf
                costs = replace(costs, compute_s=compute)
            linked = self.even.far or self.where is Where.INSIDE
            self._costs[size] = self._linked(costs) if costs is not None and linked else costs
        return self._costs[size]

    def sync_s(self, size: int, replicas: int) -> Floats:
        if (size, replicas) not in self._sync:
            links, artifact = self.even.links, self.even.artifact
            params = np.concatenate([[0.0], np.cumsum(artifact.layer_sizes(1, "params_floats") * 4.0)])
            spans = np.maximum(params[None, :] - params[:, None], 0.0)
            distinct, where = np.unique(spans, return_inverse=True)
            rows = []
            for kind in self.even.kinds(size):
                each = [np.zeros(len(distinct))]
                if replicas > 1:
                    each = [links.least_ring_s(distinct, kind.tp, replicas, hop) for hop in self._hops(kind)]
                least = np.min(each, axis=0)
                if replicas > 1 and self.where in (Where.INSIDE, Where.SPLIT):
                    each = [links.least_ring_s(distinct, kind.tp, replicas, hop) for hop in self._far_hops()]
                    least = np.maximum(least, np.min(each, axis=0))
                rows.append(least[where].reshape(spans.shape))
            self._sync[size, replicas] = np.stack(rows)
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.worth_priced(size, replicas, use.sum(axis=1)[:, None], np.ones(len(self.devices), dtype=np.int64))

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        """Every pipeline's devices are worth at least that much, so that zones have room for no more of them."""
        even, case = self.even, self.even.case
        rents = np.array([USD_PER_HOUR[gpu] for gpu in even.gpus])
        rate = np.maximum(least_rent(use[:, 0] * replicas, prices, rents, self.devices), 0.0) / 3600.0
        egress = self._traffic(prices).least_usd(size, replicas, use[:, :1])
        possible = np.isfinite(egress)
        if self.even.far:
            possible &= use[:, -1] == 1
        egress = np.where(possible, egress, 0.0)
        longest = np.where(possible, np.inf, -1.0)
        if case.budget is not None:
            longest = np.minimum(longest, (case.budget - egress) / np.maximum(rate, 1e-9))
            if self.where is Where.PARTLY:
                longest = np.minimum(longest, self._away(size, replicas, prices).longest_s(use[:, 0], case.budget))
        if case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / case.least_rate))

    def _there(self) -> Ints:
        """Return the devices by area and GPU."""
        even = self.even
        areas = sorted(set(even.areas.values()))
        there = np.zeros((len(areas), len(even.gpus)), dtype=np.int64)
        for (gpu, zone), count in even.case.devices.items():
            there[areas.index(even.areas[zone]), even.gpus.index(gpu)] += count
        return there

    def _traffic(self, prices: Ints) -> Traffic:
        """Return what traffic costs, with devices by their worth."""
        even, there = self.even, (self._there() @ prices)[:, None]
        return Traffic(artifact=even.artifact, where=self.where, areas=even.areas, there=there, alike=False)

    def _away(self, size: int, replicas: int, prices: Ints) -> Away:
        key = (size, replicas, *(int(price) for price in prices))
        if key not in self._aways:
            self._aways[key] = self._new_away(size, replicas, prices)
        return self._aways[key]

    def _new_away(self, size: int, replicas: int, prices: Ints) -> Away:
        traffic = self._traffic(prices)
        return Away(
            artifact=self.even.artifact,
            gpus=self.even.gpus,
            size=size,
            replicas=replicas,
            prices=prices,
            rents=np.array([USD_PER_HOUR[gpu] for gpu in self.even.gpus]),
            there=self._there(),
            ring_usd=traffic.ring_usd(replicas),
            pipeline_usd=traffic.pipeline_usd(size, replicas),
            within_s=self.within_s,
            sum_s_per_byte=self._sum_s_per_byte(replicas),
        )

    def _sum_s_per_byte(self, replicas: int) -> float:
        """Return the least seconds of a sum for each byte that a device holds, of any stage."""
        if replicas not in self._per_byte:
            params = np.cumsum([0.0, *self.even.artifact.layer_sizes(1, "params_floats") * 4.0])
            spans = np.unique(params[None, :] - params[:, None])
            spans = np.unique([spans[spans > 0] / tp for tp in (1, 2, 4)])
            places = [Place(gpu, zone, 1) for gpu, zone in sorted(self.even.case.devices)]
            each = [self.even.links.ring_s(spans, replicas, *hop) for hop in product(places, repeat=2)]
            self._per_byte[replicas] = float((np.min(each, axis=0) / spans).min())
        return self._per_byte[replicas]

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        return Judged(placed=None)

    def judge_mix(self, mix: Mix, below: float) -> Judged:
        """Return the mix in zones that are filled one after the other, by the artifact's score."""
        rows = self._filled(mix)
        if rows is None:
            return Judged()
        case, plan = self.even.case, as_plan(mix.size, mix.cut, rows)
        score = self.even.artifact.score(plan)
        late = case.least_rate is not None and score.iteration_s > 1.0 / case.least_rate
        if score.problems or late or (case.budget is not None and score.usd > case.budget):
            return Judged()
        value = score.usd if case.cheapest else score.iteration_s
        return Judged(value=value, placed=Placed(plan=plan, score=score))

    def _filled(self, mix: Mix) -> list[list[Place]] | None:
        """Return the places of every stage's replicas; pipelines stay in one zone where there is room."""
        kinds, left = self.even.kinds(mix.size), Counter(self.even.case.devices)
        pipelines: list[list[Place]] = []
        for count, sequence in mix.pipelines:
            for _ in range(count):
                taken = self._take([kinds[k] for k in sequence], left)
                if taken is None:
                    return None
                pipelines.append(taken)
        pipelines.sort(key=lambda places: [(place.zone, place.gpu) for place in places])
        return [list(row) for row in zip(*pipelines, strict=True)]

    def _take(self, stages: list[Kind], left: Counter[tuple[str, str]]) -> list[Place] | None:
        whole = Counter[str]()
        for kind in stages:
            whole[kind.gpu] += kind.tp
        home = [zone for zone in self.even.zones if all(left[gpu, zone] >= count for gpu, count in whole.items())]
        places: list[Place] = []
        for kind in stages:
            last = [places[-1].zone] if places else []
            zones = [*home[:1], *last, *self.even.zones]
            zone = next((zone for zone in zones if left[kind.gpu, zone] >= kind.tp), None)
            if zone is None:
                return None
            left[kind.gpu, zone] -= kind.tp
            places.append(Place(kind.gpu, zone, kind.tp))
        return places

    def _hops(self, kind: Kind) -> list[tuple[Place, Place]]:
        """Return hops of which a ring with a replica of the kind has one at least."""
        places = [Place(gpu, zone, 1) for gpu, zone in sorted(self.even.case.devices)]
        mine = [place for place in places if place.gpu == kind.gpu]
        return [hop for own in mine for other in places for hop in ((own, other), (other, own))]

    def _far_hops(self) -> list[tuple[Place, Place]]:
        """Return the hops from one area to another."""
        places, areas = [Place(gpu, zone, 1) for gpu, zone in sorted(self.even.case.devices)], self.even.areas
        return [(a, b) for a in places for b in places if areas[a.zone] != areas[b.zone]]

    def _linked(self, costs: StageCosts) -> StageCosts:
        """Return the costs with links for pipelines inside areas, or of which some cross areas at one cut."""
        kinds, layers = self.even.kinds(costs.size), self.even.artifact.layers
        sent = np.array([self.even.artifact.sent_bytes(layer, costs.size) for layer in range(layers)])
        distinct, where = np.unique(sent, return_inverse=True)
        after, before = np.zeros((2, len(kinds), len(kinds), layers + 1))
        # Where some pipeline crosses, the fastest links of any kinds count.
        any_kinds = [] if self.where is Where.INSIDE else list(product(kinds, repeat=2))
        known: dict[tuple[Kind | None, Kind | None, bool], Floats] = {}
        for i, src in enumerate(kinds):
            for j, dst in enumerate(kinds):
                for found, ends, of in ((after, (src, dst), where[:-1]), (before, (dst, src), where[1:])):
                    key = (None, None, src.far) if any_kinds else (*ends, False)
                    if key not in known:
                        known[key] = self._transfer_s(distinct, any_kinds or [ends], far=src.far)
                    found[i, j, 1:layers] = known[key][of]
        return replace(costs, after_s=after, before_s=before, after_way_s=after, before_way_s=before)

    def _transfer_s(self, nbytes: Floats, ends: list[tuple[Kind, Kind]], *, far: bool) -> Floats:
        """Return what a transfer takes at least.

        A stage takes as long as the replica whose transfers are slowest together. That which crosses may be of other
        kinds than the pipeline looked at, so that the fastest link of any kinds counts on both its sides.
        """
        inside, areas = self.where is Where.INSIDE, self.even.areas
        places = {
            (Place(src.gpu, a, src.tp), Place(dst.gpu, b, dst.tp))
            for src, dst in ends
            for a, b in product(self.even.zones, repeat=2)
            if self.even.case.devices.get((src.gpu, a), 0) >= src.tp
            and self.even.case.devices.get((dst.gpu, b), 0) >= dst.tp
            and (areas[a] != areas[b] if far else not inside or areas[a] == areas[b])
        }
        if not places:
            return np.full(nbytes.shape, np.inf)
        return np.asarray(np.min([self.even.links.transfer_s(nbytes, *each) for each in sorted(places)], axis=0))


def differing(even: SailorEven, *, gap: float, known: float, cuts: list[tuple[int, tuple[int, ...]]]) -> Mixed:
    """Return better plans than a known one whose replicas differ, and a value that none undercuts."""
    case = even.case
    money = case.cheapest or case.budget is not None
    if case.least_rate is not None and not np.isfinite(known):
        # Where no plan is fast enough whatever it costs, there is none.
        fast = SailorEven(even.links, replace(case, least_rate=None, budget=None))
        fastest = rule_out(SailorMixed(fast), known=_SLOWER / case.least_rate, gap=gap)
        if fastest.bound > 1.0 / case.least_rate:
            return Mixed(found=(), bound=np.inf, searches=fastest.searches)
    if len(even.zones) < 2 or (len({region(zone) for zone in even.zones}) < 2 and not money):
        # Between zones of one region links are about as fast as inside one; what that leaves is told apart by zone.
        finer = SailorZoned(even) if len(even.zones) > 1 and not money else None
        return mixed(SailorMixed(even), known=known, cuts=cuts, gap=gap, finer=finer)
    within_s = 1.0 / case.least_rate if case.least_rate is not None else known
    apart = parts(even.links, case, (Where.INSIDE, Where.SPLIT, Where.PARTLY))
    searched = [rule_out(SailorMixed(part, within_s=within_s), known=known, gap=gap) for part in apart]
    bound, searches = min(ruled.bound for ruled in searched), sum(ruled.searches for ruled in searched)
    if bound >= known * (1.0 - gap) * (1.0 - 1e-9):
        return Mixed(found=(), bound=bound, searches=searches)
    # With several GPUs links of any kinds say less than those of a pipeline's own, anywhere.
    most = _MIXED if money or len(even.gpus) == 1 else _BOTH
    tried = mixed(SailorMixed(even), known=known, cuts=cuts, gap=gap, most_searches=most)
    best = min([known, *(placed.value for placed in tried.found)])
    bound = min(max(bound, tried.bound), best * (1.0 - gap))
    return Mixed(found=tried.found, bound=bound, searches=searches + tried.searches)
