"""The space of even batches under the formulas of Sailor's artifact, for the product's exact search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sailor_cases import Case
from sailor_formulas import BYTES_PER_PARAMETER, FRAMEWORK_BYTES, USD_PER_HOUR, Artifact, Place, Score

from sailor_cloud.planner.even.costs import Chain, StageCosts, Worth

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_STAGES = 14
_DEGREES = (1, 2, 4)
# Pipelines of at most so many stages are also tried with their stages' zones in different orders.
_TURNED_STAGES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A plan in the artifact's form with its score."""

    plan: dict[str, Any]
    score: Score


@dataclass(frozen=True, slots=True)
class Kind:
    """Stages of one GPU and tp degree. `area` is the region in which all replicas stand, or None: in several."""

    gpu: str
    tp: int
    area: str | None


@dataclass(slots=True)
class SailorEven:
    """Links and sums are the best that any zones of a kind's area allow.

    Pools: the devices of a GPU in all zones, and, where there are several regions, in each of them.
    """

    artifact: Artifact
    case: Case
    gpus: tuple[str, ...] = field(init=False)
    zones: tuple[str, ...] = field(init=False)
    areas: tuple[str | None, ...] = field(init=False)
    _costs: dict[tuple[int, tuple[tuple[str, ...], ...]], StageCosts | None] = field(default_factory=dict)
    _sync: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _rings: dict[tuple[Kind, int], Floats] = field(default_factory=dict)
    _transfers: dict[tuple[object, ...], Floats] = field(default_factory=dict)
    _paths: dict[tuple[str, int], tuple[dict[tuple[str, str], Floats], dict[tuple[str, ...], Floats]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self.gpus = tuple(sorted({gpu for gpu, _ in self.case.devices}))
        self.zones = tuple(sorted({zone for _, zone in self.case.devices}))
        regions = sorted({_region(zone) for zone in self.zones})
        self.areas = (*regions, None) if len(regions) > 1 else (None,)

    @property
    def batch(self) -> int:
        return self.artifact.batch

    @property
    def pools(self) -> list[tuple[str, str | None]]:
        return [(gpu, area) for gpu in self.gpus for area in self.areas]

    @property
    def devices(self) -> Ints:
        return np.array([sum(self._room(gpu, 1, area).values()) for gpu, area in self.pools], dtype=np.int64)

    @property
    def rising(self) -> bool:
        return not self.case.cheapest and self.case.budget is None

    @property
    def timed(self) -> bool:
        return not self.case.cheapest

    def sizes(self) -> list[int]:
        found = {int(size) for gpu in self.gpus for size in self.artifact.times.get(gpu, {})}
        return [size for size in sorted(found) if self.batch % size == 0]

    def kinds(self, size: int) -> list[Kind]:
        return [
            Kind(gpu, tp, area)
            for gpu in self.gpus
            for tp in _DEGREES
            if self.artifact.known(gpu, size, tp)
            for area in self.areas
        ]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        # Links depend on the replicas only by the zones that a stage can't do without.
        needed = tuple(tuple(_needed(self._room(kind.gpu, kind.tp, kind.area), replicas)) for kind in self.kinds(size))
        if (size, needed) not in self._costs:
            self._costs[size, needed] = self._build(size, needed)
        return self._costs[size, needed]

    def sync_s(self, size: int, replicas: int) -> Floats:
        if (size, replicas) not in self._sync:
            self._sync[size, replicas] = np.stack([self._ring_table(kind, replicas) for kind in self.kinds(size)])
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        whole = use[:, [index for index, (_, area) in enumerate(self.pools) if area is None]]
        rate = whole @ np.array([USD_PER_HOUR[gpu] for gpu in self.gpus]) / 3600.0 * replicas
        egress = self._least_egress_usd(size, replicas, whole)
        longest = np.full(len(use), np.inf)
        if self.case.budget is not None:
            longest = np.where(rate > 0, (self.case.budget - egress) / np.maximum(rate, 1e-9), np.inf)
        if self.case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / self.case.least_rate))

    def _least_egress_usd(self, size: int, replicas: int, use: Ints) -> Floats:
        """Return the least USD of traffic between zones in an iteration of pipelines that use so many devices each.

        Where two zones hold whole pipelines, the sums of all stages cross between them and back. Otherwise all
        pipelines that one zone has no room for send activations and gradients across.
        """
        if len(self.zones) < 2:
            return np.zeros(len(use))
        price = min(self.artifact.egress_usd_per_byte(a, b) for a, b in permutations(self.zones, 2))
        there = np.array([[self.case.devices.get((gpu, zone), 0) for gpu in self.gpus] for zone in self.zones])
        per_zone = np.where(use[:, None] > 0, there // np.maximum(use[:, None], 1), replicas).min(axis=2)
        crossing = np.maximum(replicas - per_zone.max(axis=1), 0)
        sent = min(self.artifact.sent_bytes(layer, 1) for layer in range(self.artifact.layers))
        samples = size * -(-self.batch // (size * replicas))
        ring = 2.0 * (replicas - 1) / replicas * self.artifact.stage_bytes(0, self.artifact.layers, 1)
        return np.where(crossing > 0, np.minimum(2.0 * price * ring, crossing * 2.0 * price * sent * samples), 0.0)

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float) -> tuple[float, Placed] | None:
        """Return the best of all placements looked at, by the artifact's score."""
        kinds = self.kinds(size)
        best: tuple[float, Placed] | None = None
        for rows in placements(self.case.devices, [kinds[k] for k in chain.kinds], replicas):
            plan = as_plan(size, chain.cut, rows)
            score = self.artifact.score(plan)
            value = score.usd if self.case.cheapest else score.iteration_s
            kept = self.case.budget is None or score.usd <= self.case.budget
            kept &= self.case.least_rate is None or score.iteration_s <= 1.0 / self.case.least_rate
            if kept and not score.problems and (best is None or value < best[0]):
                best = (value, Placed(plan=plan, score=score))
        return best

    def _room(self, gpu: str, tp: int, area: str | None) -> dict[str, int]:
        """Return how many replicas of a stage each zone of an area has room for."""
        found = {zone: self.case.devices.get((gpu, zone), 0) // tp for zone in self.zones}
        return {zone: room for zone, room in found.items() if room and (area is None or _region(zone) == area)}

    def _build(self, size: int, needed: tuple[tuple[str, ...], ...]) -> StageCosts | None:
        kinds, layers = self.kinds(size), self.artifact.layers
        if not kinds:
            return None
        compute = np.full((MAX_STAGES, len(kinds), layers + 1, layers + 1), np.inf)
        update = np.zeros((len(kinds), layers + 1, layers + 1))
        first, end = np.indices((layers + 1, layers + 1))
        for k, kind in enumerate(kinds):
            times = self.artifact.layer_times(kind.gpu, size, kind.tp)
            spent = _spans(times[:, 0] + times[:, 1])
            parameters = _spans(self.artifact.layer_sizes(kind.tp, "params_floats"))
            kept = _spans(self.artifact.layer_sizes(kind.tp, "act_mem_floats")) * 4.0 * size
            update[k, :layers] = times[:, 2][:, None]
            for held in range(1, MAX_STAGES + 1):
                used = parameters * BYTES_PER_PARAMETER + FRAMEWORK_BYTES + kept * held
                fits = (end > first) & (used <= self.artifact.memory_bytes(kind.gpu))
                compute[held - 1, k] = np.where(fits, spent, np.inf)
        after, before = self._cuts_s(kinds, size, needed)
        return StageCosts(
            size=size,
            use=np.array(
                [
                    [kind.tp * (kind.gpu == gpu and area in (None, kind.area)) for gpu, area in self.pools]
                    for kind in kinds
                ]
            ),
            compute_s=compute,
            after_s=after,
            before_s=before,
            after_way_s=after,
            before_way_s=before,
            first_after=np.array([1.0, 1.0, 1.0] + [2.0] * (MAX_STAGES - 3)),
            last_before=2.0,
            update_s=update,
        )

    def _cuts_s(self, kinds: list[Kind], size: int, needed: tuple[tuple[str, ...], ...]) -> tuple[Floats, Floats]:
        layers = self.artifact.layers
        after = np.zeros((len(kinds), len(kinds), layers + 1))
        before = np.zeros_like(after)
        sent = np.array([self.artifact.sent_bytes(layer, size) for layer in range(layers)])
        distinct, where = np.unique(sent, return_inverse=True)
        for i, src in enumerate(kinds):
            for j, dst in enumerate(kinds):
                on = self._least_transfer_s(distinct, src, dst, needed[i], needed[j])
                back = self._least_transfer_s(distinct, dst, src, needed[j], needed[i])
                after[i, j, 1:layers], before[i, j, 1:layers] = on[where[:-1]], back[where[1:]]
        return after, before

    def _least_transfer_s(
        self, nbytes: Floats, src: Kind, dst: Kind, src_needs: tuple[str, ...], dst_needs: tuple[str, ...]
    ) -> Floats:
        """Return a bound on the slowest of the replicas' transfers, wherever in their areas the stages stand.

        Zones that a stage can't do without have each a transfer, which is the fastest at best.
        """
        here, there = (list(self._room(kind.gpu, kind.tp, kind.area)) for kind in (src, dst))
        if not here or not there:
            return np.full(nbytes.shape, np.inf)
        taken = np.array([[self._transfer_s(nbytes, src, a, dst, b) for b in there] for a in here])
        bounds = [taken.min(axis=(0, 1))]
        bounds += [taken[here.index(zone)].min(axis=0) for zone in src_needs]
        bounds += [taken[:, there.index(zone)].min(axis=0) for zone in dst_needs]
        if len(self.areas) > 1 and None in (src.area, dst.area) and src.area != dst.area:
            # A stage in several regions has a replica outside the region of its neighbour.
            far = [taken[i, j] for i, a in enumerate(here) for j, b in enumerate(there) if _region(a) != _region(b)]
            bounds.append(np.min(far, axis=0))
        return np.asarray(np.max(bounds, axis=0))

    def _transfer_s(self, nbytes: Floats, src: Kind, a: str, dst: Kind, b: str) -> Floats:
        key = (nbytes.tobytes(), src.gpu, src.tp, a, dst.gpu, dst.tp, b)
        if key not in self._transfers:
            ends = Place(src.gpu, a, src.tp), Place(dst.gpu, b, dst.tp)
            self._transfers[key] = np.asarray(self.artifact.transfer_s(nbytes, *ends))
        return self._transfers[key]

    def _ring_table(self, kind: Kind, replicas: int) -> Floats:
        """Return the least seconds of a stage's sum, shape [first, end]; the same for all microbatch sizes."""
        if (kind, replicas) not in self._rings:
            spans = np.maximum(_spans(self.artifact.layer_sizes(1, "params_floats")), 0.0) * 4.0
            distinct, where = np.unique(spans, return_inverse=True)
            each = self._least_ring_s(distinct, kind, replicas)
            self._rings[kind, replicas] = each[where].reshape(spans.shape)
        return self._rings[kind, replicas]

    def _least_ring_s(self, nbytes: Floats, kind: Kind, replicas: int) -> Floats:
        """Return the least over all sets of zones that have room for the replicas of a stage."""
        if replicas < 2:
            return np.zeros_like(nbytes)
        room = self._room(kind.gpu, kind.tp, kind.area)
        hop, path = self._hops_and_paths(nbytes, kind.gpu, replicas)
        at = _DEGREES.index(kind.tp)
        spread = len(self.areas) > 1 and kind.area is None
        best = np.full(nbytes.shape, np.inf)
        for count in range(1, min(len(room), replicas) + 1):
            for zones in combinations(sorted(room), count):
                if sum(room[zone] for zone in zones) < replicas or (spread and len({_region(z) for z in zones}) < 2):
                    continue
                inside = [hop[z, z][at] for z in zones if replicas - sum(room[o] for o in zones if o != z) >= 2]
                best = np.minimum(best, np.max([*inside, path[zones][at]], axis=0))
        return best

    def _hops_and_paths(
        self, nbytes: Floats, gpu: str, replicas: int
    ) -> tuple[dict[tuple[str, str], Floats], dict[tuple[str, ...], Floats]]:
        """Return the sums' seconds by hop, and by set of zones in their best order; shapes [tp degree, bytes]."""
        if (gpu, replicas) not in self._paths:
            ways = np.stack([nbytes / tp for tp in _DEGREES])
            zones = sorted(self._room(gpu, 1, None))
            hop = {
                (a, b): self.artifact.ring_s(ways, replicas, Place(gpu, a, 1), Place(gpu, b, 1))
                for a in zones
                for b in zones
            }
            path = {(zone,): hop[zone, zone] for zone in zones}
            for count in range(2, len(zones) + 1):
                for chosen in combinations(zones, count):
                    orders = [np.max([hop[a, b] for a, b in pairwise(order)], axis=0) for order in permutations(chosen)]
                    path[chosen] = np.min(orders, axis=0)
            self._paths[gpu, replicas] = (hop, path)
        return self._paths[gpu, replicas]


def placements(devices: dict[tuple[str, str], int], stages: list[Kind], replicas: int) -> Iterator[list[list[Place]]]:
    """Yield places [stage][replica]: whole pipelines in zones taken in some order, the rest where there is room.

    In two zones the stages may also take the zones in different orders, or stand in one of them each: then all
    pipelines cross between them.
    """
    zones = sorted({zone for _, zone in devices})
    seen = set()
    if len(zones) == 2 and 1 < len(stages) <= _TURNED_STAGES:
        for chosen in product(zones, repeat=len(stages)):
            taken = Counter[tuple[str, str]]()
            for kind, zone in zip(stages, chosen, strict=True):
                taken[kind.gpu, zone] += kind.tp * replicas
            if len(set(chosen)) > 1 and all(count <= devices.get(place, 0) for place, count in taken.items()):
                yield [[Place(kind.gpu, zone, kind.tp)] * replicas for kind, zone in zip(stages, chosen, strict=True)]
    for count in range(1, len(zones) + 1):
        for order in permutations(zones, count):
            rows = _fill(devices, stages, replicas, order)
            if rows is None:
                continue
            turned = [rows]
            if count == 2 and len(stages) <= _TURNED_STAGES:
                turned = [
                    [row[::-1] if turn else row for row, turn in zip(rows, turns, strict=True)]
                    for turns in product((False, True), repeat=len(stages))
                ]
            for each in turned:
                key = tuple(tuple(row) for row in each)
                if key not in seen:
                    seen.add(key)
                    yield each


def _fill(
    devices: dict[tuple[str, str], int], stages: list[Kind], replicas: int, zones: tuple[str, ...]
) -> list[list[Place]] | None:
    free = {(kind.gpu, zone): devices.get((kind.gpu, zone), 0) for kind in stages for zone in zones}
    rows: list[list[Place]] = [[] for _ in stages]

    def put(places: list[Place]) -> bool:
        left = dict(free)
        for place in places:
            left[place.gpu, place.zone] -= place.tp
        if min(left.values()) < 0:
            return False
        free.update(left)
        for row, place in zip(rows, places, strict=True):
            row.append(place)
        return True

    for zone in zones:
        while len(rows[0]) < replicas and put([Place(kind.gpu, zone, kind.tp) for kind in stages]):
            pass
    # Pipelines that cross zones: each stage where the one before it stands, if there is room, else in the next.
    while len(rows[0]) < replicas:
        at, chosen, left = zones[0], [], dict(free)
        for kind in stages:
            able = [zone for zone in (at, *zones) if left[kind.gpu, zone] >= kind.tp]
            if not able:
                return None
            at = able[0]
            left[kind.gpu, at] -= kind.tp
            chosen.append(Place(kind.gpu, at, kind.tp))
        put(chosen)
    return rows


def _needed(room: dict[str, int], replicas: int | None) -> list[str]:
    """Return the zones without which the others have no room for the replicas."""
    return [zone for zone in room if replicas is not None and sum(room.values()) - room[zone] < replicas]


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]


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


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _spans(values: Floats) -> Floats:
    prefix = _prefix(values)
    return np.asarray(prefix[None, :] - prefix[:, None])
