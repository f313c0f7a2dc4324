"""Puts the replicas of even pipelines in zones, and finds the best places by the formulas of Sailor's artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sailor_formulas import USD_PER_HOUR, Place
from sailor_links import Links

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Devices = dict[tuple[str, str], int]
# One zone for each stage of a pipeline.
Zones = tuple[str, ...]
# Pipelines in the order of their ring, equal neighbours counted.
Runs = tuple[tuple[int, Zones], ...]

# Orders in which zones are filled that are tried at most.
_MOST_ORDERS = 6


@dataclass(frozen=True, slots=True)
class Kind:
    """Stages of one GPU and tp degree; `far`: some replica of the next stage stands in another area than its own."""

    gpu: str
    tp: int
    far: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """Seconds and USD of an iteration of pipelines in their places."""

    seconds: float
    usd: float
    runs: Runs


class Placer:
    """The places of one chain: `stages` with the layers [cut[s], cut[s + 1]) each."""

    def __init__(self, links: Links, devices: Devices, stages: list[Kind], size: int, cut: tuple[int, ...]) -> None:
        self.links, self.devices, self.stages, self.size, self.cut = links, devices, stages, size, cut
        self.zones = sorted({zone for _, zone in devices})
        artifact, count = links.artifact, len(stages)
        times = [artifact.layer_times(kind.gpu, size, kind.tp) for kind in stages]
        self.compute = np.array([table[a:b, :2].sum() for table, (a, b) in zip(times, pairwise(cut), strict=True)])
        self.update = max(float(table[a, 2]) for table, a in zip(times, cut[:-1], strict=True))
        self.onward = [1.0] * count
        self.onward[0] = 1.0 if count <= 3 else 2.0
        self._paces: dict[tuple[int, str | None, str, str | None], float] = {}
        self._hops: dict[tuple[int, str, str], float] = {}

    def rate(self, runs: Runs) -> Rated:
        replicas = sum(count for count, _ in runs)
        microbatches = -(-self.links.artifact.batch // (self.size * replicas))
        paces = [
            self.compute[stage] + max(self.pace_s(stage, zones) for zones in {zones for _, zones in runs})
            for stage in range(len(self.stages))
        ]
        seconds = float((microbatches - 1) * max(paces) + sum(paces) + self.update + self.longest_sum_s(runs))
        rent = sum(USD_PER_HOUR[kind.gpu] * kind.tp for kind in self.stages) * replicas / 3600.0 * seconds
        return Rated(seconds=seconds, usd=rent + self._egress_usd(runs, microbatches, replicas), runs=runs)

    def pace_s(self, stage: int, zones: Zones) -> float:
        """Return for how long a stage of pipelines in these zones sends."""
        last = len(self.stages) - 1
        here = zones[stage]
        after = zones[stage + 1] if stage < last else None
        before = zones[stage - 1] if stage else None
        key = (stage, before, here, after)
        if key not in self._paces:
            src = Place(self.stages[stage].gpu, here, self.stages[stage].tp)
            on = back = 0.0
            if after is not None:
                on = self._transfer_s(self.cut[stage + 1] - 1, src, self.stages[stage + 1], after)
            if before is not None:
                back = self._transfer_s(self.cut[stage], src, self.stages[stage - 1], before)
            self._paces[key] = on * self.onward[stage] + back * (2.0 if stage == last else 1.0)
        return self._paces[key]

    def _transfer_s(self, layer: int, src: Place, kind: Kind, zone: str) -> float:
        nbytes = np.array([self.links.artifact.sent_bytes(layer, self.size)])
        return float(self.links.transfer_s(nbytes, src, Place(kind.gpu, zone, kind.tp))[0])

    def longest_sum_s(self, runs: Runs) -> float:
        replicas = sum(count for count, _ in runs)
        return max(self._sum_s(stage, runs, replicas) for stage in range(len(self.stages)))

    def _sum_s(self, stage: int, runs: Runs, replicas: int) -> float:
        hops = {(zones[stage], zones[stage]) for count, zones in runs if count > 1}
        hops |= {(one[stage], other[stage]) for (_, one), (_, other) in pairwise(runs)}
        return max((self.hop_s(stage, src, dst, replicas) for src, dst in hops), default=0.0)

    def slowest_hop_s(self, src: Zones, dst: Zones, replicas: int) -> float:
        """Return the seconds of the longest sum if all hops were like that from one pipeline to the other."""
        return max(self.hop_s(stage, *ends, replicas) for stage, ends in enumerate(zip(src, dst, strict=True)))

    def hop_s(self, stage: int, src: str, dst: str, replicas: int) -> float:
        key = (stage, src, dst)
        if key not in self._hops:
            kind = self.stages[stage]
            nbytes = np.array([self.links.artifact.stage_bytes(self.cut[stage], self.cut[stage + 1], kind.tp)])
            self._hops[key] = float(self.links.hop_s(nbytes, replicas, kind.gpu, (src, dst))[0])
        return self._hops[key]

    def _egress_usd(self, runs: Runs, microbatches: int, replicas: int) -> float:
        artifact = self.links.artifact
        if len(self.zones) < 2:
            return 0.0
        usd = sum(count * self.crossing_usd(zones, microbatches * self.size) for count, zones in runs)
        for stage in range(len(self.stages)):
            ring = [zones[stage] for _, zones in runs]
            price = sum(artifact.egress_usd_per_byte(a, b) for a, b in pairwise([*ring, ring[0]]))
            usd += price * self._sum_bytes(stage, replicas)
        return usd

    def crossing_usd(self, zones: Zones, samples: int) -> float:
        """Return the USD of what one pipeline sends between zones in an iteration of so many samples of its own."""
        artifact = self.links.artifact
        return sum(
            artifact.egress_usd_per_byte(*ends)
            * samples
            * (artifact.sent_bytes(cut - 1, 1) + artifact.sent_bytes(cut, 1))
            for ends, cut in zip(pairwise(zones), self.cut[1:-1], strict=True)
        )

    def least_sum_usd(self, stage: int, replicas: int) -> float:
        """Return the least USD of the sum of a stage that stands in several zones: across and back."""
        prices = [self.links.artifact.egress_usd_per_byte(a, b) for a in self.zones for b in self.zones if a != b]
        return 2.0 * min(prices, default=0.0) * self._sum_bytes(stage, replicas)

    def _sum_bytes(self, stage: int, replicas: int) -> float:
        nbytes = self.links.artifact.stage_bytes(self.cut[stage], self.cut[stage + 1], 1)
        return nbytes * 2.0 * (replicas - 1) / replicas

    def used(self, zones: Zones) -> Counter[tuple[str, str]]:
        """Return the devices of one pipeline."""
        used = Counter[tuple[str, str]]()
        for kind, zone in zip(self.stages, zones, strict=True):
            used[kind.gpu, zone] += kind.tp
        return used

    def filled(self, replicas: int) -> Iterator[Runs]:
        """Yield pipelines in zones taken in some order, whole ones first, or each stage as far as a zone has room."""
        for order in islice(permutations(self.zones), _MOST_ORDERS):
            for whole in (True, False):
                runs = self._fill(replicas, order, whole)
                if runs is not None:
                    yield runs

    def _fill(self, replicas: int, order: Zones, whole: bool) -> Runs | None:
        left = Counter(self.devices)
        placed: list[Zones] = []
        for home in order if whole else ():
            while len(placed) < replicas:
                taken = self._take(left, (home,))
                if taken is None:
                    break
                placed.append(taken)
        while len(placed) < replicas:
            taken = self._take(left, order)
            if taken is None:
                return None
            placed.append(taken)
        return as_runs(placed)

    def _take(self, left: Counter[tuple[str, str]], order: Zones) -> Zones | None:
        """Take the devices of one pipeline; each stage follows the one before it if there is room."""
        chosen: list[str] = []
        for kind in self.stages:
            able = [zone for zone in (*chosen[-1:], *order) if left[kind.gpu, zone] >= kind.tp]
            if not able:
                for zone, each in zip(chosen, self.stages, strict=False):
                    left[each.gpu, zone] += each.tp
                return None
            left[kind.gpu, able[0]] -= kind.tp
            chosen.append(able[0])
        return tuple(chosen)

    def plan(self, runs: Runs) -> dict[str, Any]:
        """Return the plan in the artifact's form."""
        rows = [
            [Place(kind.gpu, zones[stage], kind.tp) for count, zones in runs for _ in range(count)]
            for stage, kind in enumerate(self.stages)
        ]
        return as_plan(self.size, self.cut, rows)


def as_plan(size: int, cut: tuple[int, ...], rows: list[list[Place]]) -> dict[str, Any]:
    """Return a plan in the artifact's form."""
    return {
        "mbs": size,
        "pipeline_list": [
            {
                "num_stages": len(rows),
                "layers_per_stage": [list(range(first, end)) for first, end in pairwise(cut)],
                "tmp_per_stage": [[[[[place.gpu, 4, place.zone]], place.tp] for place in row] for row in rows],
                "dp": [len(rows[0])] * len(rows),
            }
        ],
    }


def as_runs(placed: list[Zones]) -> Runs:
    runs: list[tuple[int, Zones]] = []
    for zones in placed:
        count = runs.pop()[0] if runs and runs[-1][1] == zones else 0
        runs.append((count + 1, zones))
    return tuple(runs)
