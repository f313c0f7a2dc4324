"""A bound on plans whose replicas of a stage differ in GPU, tp or zone, under the formulas of Sailor's artifact.

Take of each stage's replicas the one whose devices are worth least at some prices. These make a pipeline of one kind
per stage that is no slower than the plan: a stage takes as long as its slowest replica. Its devices, as often as there
are replicas, are worth no more than those of the plan, and so no more than all there are. A replica's neighbours may be
of any kind and in any zone, and so may the next one in its ring, so that the fastest links count.
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


@dataclass(slots=True)
class SailorMixed:
    """A problem of one pool, the worth of devices at whole prices by GPU; its plans are bounds and stand nowhere."""

    even: SailorEven
    prices: dict[str, int]
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
        worth = sum(count * self.prices[gpu] for (gpu, _), count in self.even.case.devices.items())
        return np.array([worth // replicas], dtype=np.int64)

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
            places = [Place(gpu, zone, 1) for gpu, zone in sorted(self.even.case.devices)]
            ends = list(product(places, places)) if replicas > 1 else []
            rows = []
            for kind in self.even.kinds(size):
                each = [links.ring_s(distinct / kind.tp, replicas, *hop) for hop in ends] or [np.zeros(len(distinct))]
                rows.append(np.min(each, axis=0)[where].reshape(spans.shape))
            self._sync[size, replicas] = np.stack(rows)
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        """Every pipeline's devices are worth at least that much, so that zones have room for no more of them."""
        case = self.even.case
        usd_per_worth = min(USD_PER_HOUR[gpu] / self.prices[gpu] for gpu in self.even.gpus) / 3600.0
        rate = use[:, 0] * usd_per_worth * replicas
        there = np.array(
            [
                [sum(case.devices.get((gpu, zone), 0) * self.prices[gpu] for gpu in self.even.gpus)]
                for zone in self.even.zones
            ]
        )
        areas = {zone: zone for zone in self.even.zones}
        traffic = Traffic(artifact=self.even.artifact, where=Where.ANY, areas=areas, there=there, alike=False)
        egress = traffic.least_usd(size, replicas, use)
        longest = np.full(len(use), np.inf)
        if case.budget is not None:
            longest = (case.budget - egress) / np.maximum(rate, 1e-9)
        if case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / case.least_rate))

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        kinds = self.even.kinds(size)
        use = np.array([[sum(kinds[k].tp * self.prices[kinds[k].gpu] for k in chain.kinds)]])
        worth = self.worth(size, replicas, use)
        if seconds > worth.longest_s[0]:
            return Judged(bound=np.inf)
        return Judged(value=float(worth.slope[0] * seconds + worth.offset[0]), placed=chain)

    def _build(self, size: int) -> StageCosts | None:
        costs = self.even.costs(size, None)
        if costs is None:
            return None
        kinds, links = self.even.kinds(size), self.even.links
        layers = costs.layers
        sent = np.array([self.even.artifact.sent_bytes(layer, size) for layer in range(layers)])
        places = {kind: self._places(kind) for kind in kinds}
        least = np.array(
            [
                np.min(
                    [links.transfer_s(sent, src, dst) for src in places[kind] for to in kinds for dst in places[to]],
                    axis=0,
                )
                for kind in kinds
            ]
        )
        after, before = np.zeros_like(costs.after_s), np.zeros_like(costs.before_s)
        after[:, :, 1:layers] = least[:, None, :-1]
        before[:, :, 1:layers] = least[None, :, 1:]
        use = np.array([[kind.tp * self.prices[kind.gpu]] for kind in kinds])
        cuts = {"after_s": after, "before_s": before, "after_way_s": after, "before_way_s": before}
        return replace(costs, use=use, exact=None, **cuts)

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


def prices_of(even: SailorEven) -> list[dict[str, int]]:
    """Return whole prices to bound with: as devices are rented where money counts, else by what they may be worth."""
    gpus = even.gpus
    if len(gpus) == 1:
        return [{gpus[0]: 1}]
    if even.case.cheapest or even.case.budget is not None:
        return [_whole([USD_PER_HOUR[gpu] for gpu in gpus], gpus)]
    # Any prices bound; which do so best is not known beforehand.
    speeds = [_speed(even, gpu) for gpu in gpus]
    fastest = max(speeds)
    powers = (1.0, 0.75, 0.5)
    found = [_whole([(speed / fastest) ** power for speed in speeds], gpus) for power in powers]
    return [each for at, each in enumerate(found) if each not in found[:at]]


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
