"""The space of even batches under the formulas of Sailor's artifact, for the product's exact search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sailor_assign import Assignment, Wanted
from sailor_cases import Case
from sailor_formulas import BYTES_PER_PARAMETER, FRAMEWORK_BYTES, USD_PER_HOUR, Artifact, Place, Score
from sailor_links import Links, Room, region
from sailor_places import Kind, Placer
from sailor_traffic import Traffic, Where

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.engine import solve
from sailor_cloud.planner.even.outcome import Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_STAGES = 14
_DEGREES = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A plan in the artifact's form with its score."""

    plan: dict[str, Any]
    score: Score


def answer(artifact: Artifact, case: Case, *, gap: float, most_nodes: int) -> tuple[Outcome, list[SailorEven]]:
    """Return the best plans of a case with a bound, and the parts that their numbers mean.

    Where all zones together leave a gap, pipelines that cross zones are told apart from others.
    """
    links, known, bound = Links(artifact), np.inf, -np.inf
    whole, outcome = [SailorEven(links, case)], None
    if len({region(zone) for _, zone in case.devices}) == 1:
        outcome = solve(whole, gap=gap, most_nodes=most_nodes)
        bound, known = outcome.bound, min((found.value for found in outcome.found), default=np.inf)
        if bound >= known * (1.0 - gap) * (1.0 - 1e-9) or len(whole[0].zones) < 2:
            return outcome, whole
    split = parts(links, case)
    finer = solve(split, gap=gap, most_nodes=most_nodes, known=known)
    if outcome is None or (finer.found[:1] and finer.found[0].value < known):
        return replace(finer, bound=max(finer.bound, bound)), split
    return replace(outcome, bound=max(finer.bound, bound), nodes=outcome.nodes + finer.nodes), whole


def parts(links: Links, case: Case, wheres: tuple[Where, ...] = (Where.INSIDE, Where.ACROSS)) -> list[SailorEven]:
    """Return parts that together hold every plan of a case of several zones, by whether pipelines cross areas."""
    zones = sorted({zone for _, zone in case.devices})
    regions = sorted({region(zone) for zone in zones})
    areas = [{zone for zone in zones if region(zone) == each} for each in regions]
    alone = [
        replace(case, devices={place: count for place, count in case.devices.items() if place[1] in area})
        for area in (areas if len(regions) > 1 else [{zone} for zone in zones])
    ]
    return [
        *(SailorEven(links, each) for each in alone),
        *(SailorEven(links, case, where) for where in wheres),
    ]


@dataclass(slots=True)
class SailorEven:
    """Links and sums are the best that any zones allow.

    Pools: the devices of each GPU, and for pipelines across areas one cut at which some replica crosses.
    """

    links: Links
    case: Case
    where: Where = Where.ANY
    gpus: tuple[str, ...] = field(init=False)
    zones: tuple[str, ...] = field(init=False)
    areas: dict[str, str] = field(init=False)
    _costs: dict[tuple[int, tuple[str | None, ...]], StageCosts | None] = field(default_factory=dict)
    _sync: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _rings: dict[tuple[Kind, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpus = tuple(sorted({gpu for gpu, _ in self.case.devices}))
        self.zones = tuple(sorted({zone for _, zone in self.case.devices}))
        several = len({region(zone) for zone in self.zones}) > 1
        self.areas = {zone: region(zone) if several else zone for zone in self.zones}

    @property
    def far(self) -> bool:
        """Whether kinds tell of a cut at which some replica crosses areas."""
        apart = self.where in (Where.SPLIT, Where.PARTLY) and len({region(zone) for zone in self.zones}) > 1
        return apart or self.where is Where.ACROSS

    @property
    def artifact(self) -> Artifact:
        return self.links.artifact

    @property
    def batch(self) -> int:
        return self.artifact.batch

    @property
    def rising(self) -> bool:
        return not self.case.cheapest and self.case.budget is None and self.where is Where.ANY

    @property
    def timed(self) -> bool:
        return not self.case.cheapest

    def most(self, replicas: int) -> Ints:
        devices = [sum(self._room(gpu, 1).values()) // replicas for gpu in self.gpus]
        return np.array([*devices, 1] if self.far else devices, dtype=np.int64)

    def sizes(self) -> list[int]:
        found = {int(size) for gpu in self.gpus for size in self.artifact.times.get(gpu, {})}
        return [size for size in sorted(found) if self.batch % size == 0]

    def kinds(self, size: int) -> list[Kind]:
        return [
            Kind(gpu, tp, far)
            for gpu in self.gpus
            for tp in _DEGREES
            if self.artifact.known(gpu, size, tp)
            for far in ((False, True) if self.far else (False,))
        ]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        # Links depend on the replicas only by the zones that a stage can't do without.
        held = replicas if self.where is Where.ANY else None
        needed = tuple(_needed(self._room(kind.gpu, kind.tp), held) for kind in self.kinds(size))
        if (size, needed) not in self._costs:
            self._costs[size, needed] = self._build(size, needed)
        return self._costs[size, needed]

    def sync_s(self, size: int, replicas: int) -> Floats:
        if (size, replicas) not in self._sync:
            self._sync[size, replicas] = np.stack([self._ring_table(kind, replicas) for kind in self.kinds(size)])
        return self._sync[size, replicas]

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        whole = use[:, : len(self.gpus)]
        rate = whole @ np.array([USD_PER_HOUR[gpu] for gpu in self.gpus]) / 3600.0 * replicas
        egress = self._traffic().least_usd(size, replicas, whole)
        longest = np.where(np.isfinite(egress), np.inf, -1.0)
        if self.far:
            longest = np.where(use[:, -1] == 1, longest, -1.0)
        egress = np.where(np.isfinite(egress), egress, 0.0)
        if self.case.budget is not None:
            paid = np.where(rate > 0, (self.case.budget - egress) / np.maximum(rate, 1e-9), np.inf)
            longest = np.minimum(longest, paid)
        if self.case.least_rate is None:
            return Worth(slope=np.ones(len(use)), offset=np.zeros(len(use)), longest_s=longest)
        return Worth(slope=rate, offset=egress, longest_s=np.minimum(longest, 1.0 / self.case.least_rate))

    def _traffic(self) -> Traffic:
        areas = sorted(set(self.areas.values()))
        there = [[sum(self._room(gpu, 1, area).values()) for gpu in self.gpus] for area in areas]
        return Traffic(artifact=self.artifact, where=self.where, areas=self.areas, there=np.array(there))

    @property
    def settles(self) -> bool:
        """In one zone there is but one place, and the costs are those of it."""
        return len(self.zones) > 1

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        """Return the best of all placements looked at, by the artifact's score, and a bound on all there are."""
        kinds, sync = self.kinds(size), self.sync_s(size, replicas)
        stages = list(zip(chain.kinds, pairwise(chain.cut), strict=True))
        placer = Placer(self.links, self.case.devices, [kinds[k] for k in chain.kinds], size, chain.cut)
        wanted = Wanted(
            longest_s=np.inf if self.case.least_rate is None else 1.0 / self.case.least_rate,
            budget=np.inf if self.case.budget is None else self.case.budget,
            cheapest=self.case.cheapest,
            below=below,
        )
        least_s = max(float(sync[k, first, end]) for k, (first, end) in stages)
        best, bound = Assignment(placer, replicas, least_s).best(wanted, closely=closely)
        if best is None:
            return Judged(bound=bound)
        plan = placer.plan(best.runs)
        score = self.artifact.score(plan)
        assert not score.problems, score.problems
        value = score.usd if self.case.cheapest else score.iteration_s
        return Judged(value=value, placed=Placed(plan=plan, score=score), bound=bound)

    def _room(self, gpu: str, tp: int, area: str | None = None) -> Room:
        """Return how many replicas of a stage each zone has room for, of all zones or those of one area."""
        found = {zone: self.case.devices.get((gpu, zone), 0) // tp for zone in self.zones}
        return {zone: room for zone, room in found.items() if room and area in (None, self.areas[zone])}

    def _build(self, size: int, needed: tuple[str | None, ...]) -> StageCosts | None:
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
                # Nothing follows the last stage, to which its replicas could cross.
                fits &= (end < layers) | (not kind.far)
                compute[held - 1, k] = np.where(fits, spent, np.inf)
        after, before = self._cuts_s(kinds, size, needed)
        return StageCosts(
            size=size,
            use=np.array([self._use(kind) for kind in kinds]),
            compute_s=compute,
            after_s=after,
            before_s=before,
            after_way_s=after,
            before_way_s=before,
            first_after=np.array([1.0, 1.0, 1.0] + [2.0] * (MAX_STAGES - 3)),
            last_before=2.0,
            update_s=update,
            exact=np.arange(len(self.most(1))) == len(self.gpus),
        )

    def _use(self, kind: Kind) -> list[int]:
        devices = [kind.tp * (kind.gpu == gpu) for gpu in self.gpus]
        return [*devices, int(kind.far)] if self.far else devices

    def _cuts_s(self, kinds: list[Kind], size: int, needed: tuple[str | None, ...]) -> tuple[Floats, Floats]:
        layers = self.artifact.layers
        after = np.zeros((len(kinds), len(kinds), layers + 1))
        before = np.zeros_like(after)
        sent = np.array([self.artifact.sent_bytes(layer, size) for layer in range(layers)])
        distinct, where = np.unique(sent, return_inverse=True)
        for i, src in enumerate(kinds):
            for j, dst in enumerate(kinds):
                on = self._least_s(distinct, (src, dst), needed[i], far=src.far)
                back = self._least_s(distinct, (dst, src), needed[j], far=src.far)
                after[i, j, 1:layers], before[i, j, 1:layers] = on[where[:-1]], back[where[1:]]
        return after, before

    def _least_s(self, nbytes: Floats, ends: tuple[Kind, Kind], needed: str | None, *, far: bool) -> Floats:
        """Return what the transfers of one stage to its neighbour take at least, wherever the two stand.

        A stage takes as long as the replica whose two transfers together are slowest, so that what is said of one
        replica has to be of the same one on both sides: that in a zone that the others have no room without; with
        pipelines inside two zones, that in the last zone. The one that crosses does so on one side only.
        """
        src, dst = ends
        ways = [(a, b) for a in self._room(src.gpu, src.tp) for b in self._room(dst.gpu, dst.tp)]
        if far:
            ways = [(a, b) for a, b in ways if self.areas[a] != self.areas[b]]
        elif self.where is Where.INSIDE:
            ways = [(a, b) for a, b in ways if self.areas[a] == self.areas[b]]
            if len(self.zones) == 2:
                ways = [(a, b) for a, b in ways if a == self.zones[-1]]
        elif needed is not None:
            ways = [(a, b) for a, b in ways if a == needed]
        if not ways:
            return np.full(nbytes.shape, np.inf)
        places = {(Place(src.gpu, a, src.tp), Place(dst.gpu, b, dst.tp)) for a, b in ways}
        return np.asarray(np.min([self.links.transfer_s(nbytes, *each) for each in sorted(places)], axis=0))

    def _ring_table(self, kind: Kind, replicas: int) -> Floats:
        """Return the least seconds of a stage's sum, shape [first, end]; the same for all microbatch sizes."""
        kind = replace(kind, far=False)
        if (kind, replicas) not in self._rings:
            spans = np.maximum(_spans(self.artifact.layer_sizes(1, "params_floats")), 0.0) * 4.0
            distinct, where = np.unique(spans, return_inverse=True)
            room = self._room(kind.gpu, kind.tp)
            areas = self.areas if self.where is Where.INSIDE else dict.fromkeys(self.zones, "")
            each = self.links.least_sum_s(distinct / kind.tp, replicas, kind.gpu, room, areas)
            self._rings[kind, replicas] = each[where].reshape(spans.shape)
        return self._rings[kind, replicas]


def _needed(room: Room, replicas: int | None) -> str | None:
    """Return the last zone without which the others have no room for the replicas, if there is one."""
    found: Iterator[str] = (
        zone for zone in reversed(room) if replicas is not None and sum(room.values()) - room[zone] < replicas
    )
    return next(found, None)


def _spans(values: Floats) -> Floats:
    prefix = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(prefix[None, :] - prefix[:, None])
