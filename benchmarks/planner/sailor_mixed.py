"""Plans whose replicas of a stage differ in GPU, tp or zone, under the formulas of Sailor's artifact.

One pipeline of such a plan at a time bounds it (sailor_cloud.planner.even.differing): stages take as long as the
slowest replica, so no pipeline alone takes longer. Its neighbours are its own; in its rings the next replica may be of
any GPU and in any zone, so that the fastest links count there, with the bytes of its own tp.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sailor_even import Placed, SailorEven
from sailor_formulas import USD_PER_HOUR, Place
from sailor_places import Kind, as_plan
from sailor_traffic import Traffic, Where

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.differing import whole_prices
from sailor_cloud.planner.even.mixed import Mixed, mixed
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.replica_counts import replica_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class SailorMixed:
    """A Differing problem; see sailor_cloud.planner.even.priced. Pools are the GPUs, all zones together."""

    even: SailorEven
    settles: bool = False
    _sync: dict[tuple[int, int], Floats] = field(default_factory=dict)

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

    def most(self, replicas: int) -> Ints:
        return self.devices // replicas

    def sizes(self) -> list[int]:
        return self.even.sizes()

    def counts(self, size: int) -> list[tuple[int, int]]:
        return replica_counts(self.batch // size)

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        """All pipelines count with the larger number."""
        return -(-self.batch // (size * replicas)), replicas

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        return self.even.costs(size, None)

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
                    each = [links.ring_s(distinct / kind.tp, replicas, *hop) for hop in self._hops(kind)]
                rows.append(np.min(each, axis=0)[where].reshape(spans.shape))
            self._sync[size, replicas] = np.stack(rows)
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.worth_priced(size, replicas, use.sum(axis=1)[:, None], np.ones(len(self.devices), dtype=np.int64))

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        """Every pipeline's devices are worth at least that much, so that zones have room for no more of them."""
        even, case = self.even, self.even.case
        usd_per_worth = min(USD_PER_HOUR[gpu] / price for gpu, price in zip(even.gpus, prices, strict=True)) / 3600.0
        rate = use[:, 0] * usd_per_worth * replicas
        priced = list(zip(even.gpus, prices, strict=True))
        there = [[sum(case.devices.get((gpu, zone), 0) * price for gpu, price in priced)] for zone in even.zones]
        areas = {zone: zone for zone in even.zones}
        traffic = Traffic(artifact=even.artifact, where=Where.ANY, areas=areas, there=np.array(there), alike=False)
        egress = traffic.least_usd(size, replicas, use[:, :1])
        longest = np.full(len(use), np.inf)
        if case.budget is not None:
            longest = (case.budget - egress) / np.maximum(rate, 1e-9)
        if case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / case.least_rate))

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


def differing(even: SailorEven, *, gap: float, known: float, cuts: list[tuple[int, tuple[int, ...]]]) -> Mixed:
    """Return better plans than a known one whose replicas differ, and a value that none undercuts."""
    return mixed(SailorMixed(even), known=known, cuts=cuts, gap=gap)
