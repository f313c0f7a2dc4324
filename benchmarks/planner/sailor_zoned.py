"""Plans whose replicas of a stage differ, as in sailor_mixed, with a pool for each GPU of each zone.

A pipeline's own links are those of its zones, and prices may tell zones apart. In a stage's ring, a replica that stands
behind another one waits for the hop that leads to it, whatever that one is of. All pipelines but one stand behind
another, so that one of these is worth no more than their mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

import numpy as np
from numpy.typing import NDArray
from sailor_even import SailorEven
from sailor_formulas import Place
from sailor_places import Kind

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.even.prices import price_vectors
from sailor_cloud.planner.replica_counts import replica_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices of a GPU in the zone where it is dearest and in the others.
_DEARER, _PRICE = 11, 10


@dataclass(slots=True)
class SailorZoned:
    """A Differing problem where time alone is minimised; see sailor_cloud.planner.even.priced."""

    even: SailorEven
    places: tuple[tuple[str, str], ...] = field(init=False)
    prices: Ints = field(init=False)
    _costs: dict[int, StageCosts | None] = field(default_factory=dict)
    _sync: dict[tuple[int, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.even.case
        assert case.budget is None, "only time counts here"
        assert case.least_rate is None, "only time counts here"
        self.places = tuple(sorted(self.even.case.devices))
        self.prices = self._prices()

    @property
    def batch(self) -> int:
        return self.even.batch

    @property
    def settles(self) -> bool:
        return False

    @property
    def rising(self) -> bool:
        return True

    @property
    def timed(self) -> bool:
        return True

    @property
    def rents(self) -> Ints | None:
        return None

    @property
    def devices(self) -> Ints:
        return np.array([self.even.case.devices[place] for place in self.places])

    def bounded(self, replicas: int) -> int:
        return max(1, replicas - 1)

    def most(self, replicas: int) -> Ints:
        return self.devices // self.bounded(replicas)

    def sizes(self) -> list[int]:
        return self.even.sizes()

    def counts(self, size: int) -> list[tuple[int, int]]:
        return list(replica_counts(self.batch // size))

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        """All pipelines count with the larger number."""
        return -(-self.batch // (size * replicas)), replicas

    def kinds(self, size: int) -> list[tuple[Kind, Place]]:
        """Return what a stage may be of: a kind as in sailor_even, and where it stands."""
        return [
            (kind, Place(gpu, zone, kind.tp))
            for kind in self.even.kinds(size)
            for gpu, zone in self.places
            if gpu == kind.gpu
        ]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if size not in self._costs:
            costs = self.even.costs(size, None)
            self._costs[size] = None if costs is None else self._placed(costs)
        return self._costs[size]

    def sync_s(self, size: int, replicas: int) -> Floats:
        if (size, replicas) not in self._sync:
            links, artifact = self.even.links, self.even.artifact
            params = np.concatenate([[0.0], np.cumsum(artifact.layer_sizes(1, "params_floats") * 4.0)])
            distinct, where = np.unique(np.maximum(params[None, :] - params[:, None], 0.0), return_inverse=True)
            ends = [Place(gpu, zone, 1) for gpu, zone in self.places]
            rows = []
            for _, place in self.kinds(size):
                hops = [(before, replace(place, tp=1)) for before in ends]
                least = np.min([links.least_ring_s(distinct, place.tp, replicas, hop) for hop in hops], axis=0)
                rows.append(least[where].reshape(len(params), len(params)))
            self._sync[size, replicas] = np.stack(rows)
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.worth_priced(size, replicas, use, self.prices[0])

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        """Only time counts."""
        count = len(use)
        return Worth(slope=np.ones(count), offset=np.zeros(count), longest_s=np.full(count, np.inf))

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        return Judged()

    def judge_mix(self, mix: Mix, below: float) -> Judged:
        return Judged()

    def _prices(self) -> Ints:
        """Return prices of GPUs in every proportion, each the same in all zones or dearer in one."""
        zones = {gpu: [zone for each, zone in self.places if each == gpu] for gpu in self.even.gpus}
        found = set()
        for vector in price_vectors(len(zones)):
            price = dict(zip(zones, vector.tolist(), strict=True))
            for dear in product(*([None, *there] if len(there) > 1 else [None] for there in zones.values())):
                dearest = set(zip(zones, dear, strict=True))
                whole = [price[gpu] * (_DEARER if (gpu, zone) in dearest else _PRICE) for gpu, zone in self.places]
                found.add(tuple(each // gcd(*whole) for each in whole))
        return np.array(sorted(found), dtype=np.int64)

    def _placed(self, costs: StageCosts) -> StageCosts:
        """Return the costs with kinds by zone."""
        kinds, every = self.kinds(costs.size), self.even.kinds(costs.size)
        of = [every.index(kind) for kind, _ in kinds]
        artifact, layers = self.even.artifact, self.even.artifact.layers
        sent = np.array([artifact.sent_bytes(layer, costs.size) for layer in range(layers)])
        distinct, where = np.unique(sent, return_inverse=True)
        after, before = np.zeros((2, len(kinds), len(kinds), layers + 1))
        for (i, (_, src)), (j, (_, dst)) in product(enumerate(kinds), repeat=2):
            after[i, j, 1:layers] = self.even.links.transfer_s(distinct, src, dst)[where[:-1]]
            before[i, j, 1:layers] = self.even.links.transfer_s(distinct, dst, src)[where[1:]]
        use = [[place.tp * ((place.gpu, place.zone) == each) for each in self.places] for _, place in kinds]
        return replace(
            costs,
            use=np.array(use),
            compute_s=costs.compute_s[:, of],
            update_s=costs.update_s[of],
            after_s=after,
            before_s=before,
            after_way_s=after,
            before_way_s=before,
            exact=None,
        )
