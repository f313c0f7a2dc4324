"""A bound on plans whose replicas of a stage differ in GPU, tp or zone, under the formulas of Sailor's artifact.

A stage is told by its mix: the GPUs of its replicas, and of each the least tp there. It takes as long as the slowest of
these, and at any prices its devices are worth at least what those of the cheapest are, as often as there are replicas.
All stages together are worth no more than all devices there are, at several prices at once. A replica's neighbours may
be of any kind and in any zone, and so may the next one in its ring, so that the fastest links count.

With many GPUs there are too many mixes; then each stage is told by its cheapest replica alone, at prices of one sort.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sailor_even import SailorEven
from sailor_formulas import USD_PER_HOUR, Place
from sailor_places import Kind
from sailor_traffic import Traffic, Where

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.engine import solve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Whole prices of a device are no higher than this.
_HIGHEST = 9
# GPUs whose mixes are told apart; of more there are too many.
_PAIR = 2
_LEAST_RATIO, _MOST_RATIO = 0.25, 4.0

Mix = tuple[Kind, ...]


@dataclass(slots=True)
class SailorMixed:
    """A problem whose pools are the worth of devices at whole prices by GPU; its plans are bounds and stand nowhere.

    The first prices are those by which money is counted.
    """

    even: SailorEven
    prices: tuple[dict[str, int], ...]
    settles: bool = False
    _costs: dict[int, StageCosts | None] = field(default_factory=dict)
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

    def most(self, replicas: int) -> Ints:
        devices = self.even.case.devices.items()
        worth = [sum(count * prices[gpu] for (gpu, _), count in devices) for prices in self.prices]
        return np.array(worth, dtype=np.int64) // replicas

    def mixes(self, size: int) -> list[Mix]:
        """Return the mixes of a stage: of each GPU at most one kind, that with the least tp."""
        kinds = self.even.kinds(size)
        by_gpu = [[None, *(kind for kind in kinds if kind.gpu == gpu)] for gpu in self.even.gpus]
        found = [tuple(kind for kind in chosen if kind is not None) for chosen in product(*by_gpu)]
        return [mix for mix in found if mix and (self.told or len(mix) == 1)]

    @property
    def told(self) -> bool:
        """Whether mixes are told apart."""
        return len(self.prices) > 1

    def sizes(self) -> list[int]:
        return self.even.sizes()

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if size not in self._costs:
            self._costs[size] = self._build(size)
        return self._costs[size]

    def sync_s(self, size: int, replicas: int) -> Floats:
        if (size, replicas) not in self._sync:
            links, artifact = self.even.links, self.even.artifact
            params = np.concatenate([[0.0], np.cumsum(artifact.layer_sizes(1, "params_floats") * 4.0)])
            spans = np.maximum(params[None, :] - params[:, None], 0.0)
            distinct, where = np.unique(spans, return_inverse=True)
            rows = []
            for mix in self.mixes(size):
                tp, hops = min(kind.tp for kind in mix), self._hops(mix) if replicas > 1 else []
                each = [links.ring_s(distinct / tp, replicas, *hop) for hop in hops] or [np.zeros(len(distinct))]
                rows.append(np.min(each, axis=0)[where].reshape(spans.shape))
            self._sync[size, replicas] = np.stack(rows)
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        """Every pipeline's devices are worth at least that much, so that zones have room for no more of them."""
        case = self.even.case
        usd_per_worth = min(USD_PER_HOUR[gpu] / self.prices[0][gpu] for gpu in self.even.gpus) / 3600.0
        rate = use[:, 0] * usd_per_worth * replicas
        there = np.array(
            [
                [sum(case.devices.get((gpu, zone), 0) * self.prices[0][gpu] for gpu in self.even.gpus)]
                for zone in self.even.zones
            ]
        )
        areas = {zone: zone for zone in self.even.zones}
        traffic = Traffic(artifact=self.even.artifact, where=Where.ANY, areas=areas, there=there, alike=False)
        egress = traffic.least_usd(size, replicas, use[:, :1])
        longest = np.full(len(use), np.inf)
        if case.budget is not None:
            longest = (case.budget - egress) / np.maximum(rate, 1e-9)
        if case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / case.least_rate))

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        mixes = self.mixes(size)
        use = np.array([np.sum([self._use(mixes[k]) for k in chain.kinds], axis=0)])
        worth = self.worth(size, replicas, use)
        if seconds > worth.longest_s[0]:
            return Judged(bound=np.inf)
        return Judged(value=float(worth.slope[0] * seconds + worth.offset[0]), placed=chain)

    def _build(self, size: int) -> StageCosts | None:
        costs = self.even.costs(size, None)
        if costs is None:
            return None
        kinds, mixes, layers = self.even.kinds(size), self.mixes(size), costs.layers
        sent = np.array([self.even.artifact.sent_bytes(layer, size) for layer in range(layers)])
        after, before = (np.zeros((len(mixes), len(mixes), layers + 1)) for _ in range(2))
        for i, j in product(range(len(mixes)), repeat=2):
            after[i, j, 1:layers] = self._least_s(sent, kinds, (mixes[i], mixes[j]))[:-1]
            before[i, j, 1:layers] = self._least_s(sent, kinds, (mixes[j], mixes[i]))[1:]
        members = [[kinds.index(kind) for kind in mix] for mix in mixes]
        return replace(
            costs,
            use=np.array([self._use(mix) for mix in mixes]),
            compute_s=np.stack([costs.compute_s[:, each].max(axis=1) for each in members], axis=1),
            update_s=np.stack([costs.update_s[each].max(axis=0) for each in members]),
            exact=None,
            after_s=after,
            before_s=before,
            after_way_s=after,
            before_way_s=before,
        )

    def _use(self, mix: Mix) -> list[int]:
        return [min(kind.tp * prices[kind.gpu] for kind in mix) for prices in self.prices]

    def _least_s(self, sent: Floats, kinds: list[Kind], ends: tuple[Mix, Mix]) -> Floats:
        """Return what one replica's transfers to a neighbour take at least, shape of `sent`.

        Of a mix, it is the same replica whatever the neighbours: one that sends slowly to any.
        """
        src, dst = ends
        able = [kind for kind in kinds if not self.told or any(kind.gpu == k.gpu and kind.tp >= k.tp for k in dst)]
        slowest = max(src, key=lambda kind: float(self._between_s(sent, kind, kinds).sum()))
        return self._between_s(sent, slowest, able)

    def _between_s(self, sent: Floats, src: Kind, dst: list[Kind]) -> Floats:
        links = self.even.links
        ways = [(a, b) for a in self._places(src) for kind in dst for b in self._places(kind)]
        return np.asarray(np.min([links.transfer_s(sent, *way) for way in ways], axis=0))

    def _hops(self, mix: Mix) -> list[tuple[Place, Place]]:
        """Return hops of which a ring over replicas of a mix has one at least: where GPUs differ, one between two."""
        gpus = {kind.gpu for kind in mix} if self.told else set(self.even.gpus)
        places = [Place(gpu, zone, 1) for gpu, zone in sorted(self.even.case.devices) if gpu in gpus]
        return [
            (src, dst) for src, dst in product(places, places) if not self.told or len(gpus) == 1 or src.gpu != dst.gpu
        ]

    def _places(self, kind: Kind) -> list[Place]:
        return [Place(kind.gpu, zone, kind.tp) for gpu, zone in sorted(self.even.case.devices) if gpu == kind.gpu]


def bound(even: SailorEven, *, gap: float, most_nodes: int, known: float) -> float:
    """Return a value that no plan undercuts whose replicas differ; infinite where there is none.

    known: the value of a plan, beyond which nothing is looked for.
    """
    return max(
        solve([SailorMixed(even, prices)], gap=gap, most_nodes=most_nodes, known=known).bound
        for prices in prices_of(even)
    )


def prices_of(even: SailorEven) -> list[tuple[dict[str, int], ...]]:
    """Return whole prices to bound with: as devices are rented where money counts, else by what they may be worth."""
    gpus = even.gpus
    if len(gpus) == 1:
        return [({gpus[0]: 1},)]
    if even.case.cheapest or even.case.budget is not None:
        return [(_whole([USD_PER_HOUR[gpu] for gpu in gpus], gpus),)]
    # Any prices bound; which do so best is not known beforehand.
    speeds = [_speed(even, gpu) for gpu in gpus]
    if len(gpus) == _PAIR:
        # The proportions of tp degrees on both sides of that of the speeds.
        ratio = float(np.clip(speeds[0] / speeds[1], _LEAST_RATIO, _MOST_RATIO))
        low = min(2.0 ** np.floor(np.log2(ratio)), _MOST_RATIO / 2.0)
        return [tuple(_whole([each, 1.0], gpus) for each in (low, 2.0 * low))]
    powers = (1.0, 0.75, 0.5)
    return [(_whole([speed**power for speed in speeds], gpus),) for power in powers]


def _speed(even: SailorEven, gpu: str) -> float:
    """Return layers per second and device of the best tp and size."""
    best = 0.0
    for size in even.sizes():
        for tp in (1, 2, 4):
            if even.artifact.known(gpu, size, tp):
                seconds = float(even.artifact.layer_times(gpu, size, tp)[:, :2].sum())
                best = max(best, size / seconds / tp)
    return best


def _whole(values: list[float], gpus: tuple[str, ...]) -> dict[str, int]:
    """Return whole numbers in about the same proportion, the greatest of them small."""
    top = max(values)

    def error(most: int) -> tuple[float, int]:
        return max(abs(max(1, round(value / top * most)) * top / (value * most) - 1.0) for value in values), most

    most = min(range(1, _HIGHEST + 1), key=error)
    return {gpu: max(1, round(value / top * most)) for gpu, value in zip(gpus, values, strict=True)}
