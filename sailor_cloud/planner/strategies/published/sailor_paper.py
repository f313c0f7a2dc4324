"""Sailor's search (Strati et al., SOSP'25, section 4), as its paper and its public code describe it.

It runs for every number of stages, microbatch size and order of regions. Layers are cut into equal shares. Each kind of
GPU and stage gets the smallest tensor parallelism that fits, doubled while that makes it 1.5 times as fast. Then it
tries the numbers of replicas that change the number of microbatches, most first, until one brings nothing. A dynamic
program assigns stages to kinds of GPUs. All replicas of a stage wait for its slowest, and a stage sends its activation
and its gradient after it has computed. If a region can't hold the next stage, the next region follows.

The original tries all ways to divide a stage's replicas among kinds. This one tries stages of one kind, and stages that
use up what is left of one kind: a mixed stage is as slow as its slowest replica, so mixing earlier gains nothing. At
the end, the limits of a job filter the plans; the cheapest comes first if the job asks for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, permutations

from sailor_cloud.errors import RequestError
from sailor_cloud.model.job import Goal
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Machine, Slot, even_cuts
from sailor_cloud.planner.strategies.grid import even_microbatches
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# A doubling of tensor parallelism must be at least this many times faster.
WORTH_DOUBLING = 1.5
MOST_ORDERS = 24

# Remaining devices of each kind of a region, in the order of its kinds.
Left = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The machines of one accelerator in one region, the zone with the most of them first."""

    accelerator: str
    machines: tuple[Machine, ...]

    @property
    def devices(self) -> int:
        return sum(machine.devices for machine in self.machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The best way to continue from a stage: its times, and each stage's holders as (region, kind, replicas, tp).

    `first_s`: of its first stage, which has not yet sent a gradient back, `straggler_s` of the slowest other one.
    """

    first_s: float = 0.0
    straggler_s: float = 0.0
    compute_s: float = 0.0
    transfers_s: float = 0.0
    sync_s: float = 0.0
    holders: tuple[tuple[tuple[int, int, int, int], ...], ...] = ()

    def seconds(self, microbatches: int) -> float:
        slowest = max(self.first_s, self.straggler_s)
        return (microbatches - 1) * slowest + self.compute_s + 2.0 * self.transfers_s + self.sync_s


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the best plan for every number of stages, microbatch size, order of regions and number of replicas."""
    for regions in orders(cluster):
        most = sum(kind.devices for region in regions for kind in region)
        for stages in range(1, min(cluster.layers, most) + 1):
            for size in cluster.microbatch_sizes():
                yield from _for_stages(cluster, regions, stages, size, most)


def orders(cluster: Cluster) -> Iterator[tuple[tuple[Kind, ...], ...]]:
    """Yield subsets of regions, ordered so that the slowest link of neighbours is fastest; single regions first."""
    regions: dict[str, list[Machine]] = {}
    for machine in cluster.machines:
        regions.setdefault(cluster.scenario.catalog.region_of(machine.zone), []).append(machine)
    names, seen = sorted(regions), 0
    for count in range(1, len(names) + 1):
        for subset in combinations(names, count):
            if seen == MOST_ORDERS:
                return
            seen += 1
            yield tuple(
                _kinds(regions[name]) for name in max(permutations(subset), key=partial(_link, cluster, regions))
            )


def _link(cluster: Cluster, regions: dict[str, list[Machine]], order: tuple[str, ...]) -> float:
    """Return the slowest link between neighbouring regions of an order."""
    speeds = [cluster.link(regions[a][0], regions[b][0]).bandwidth_bytes_per_s for a, b in pairwise(order)]
    return min(speeds, default=float("inf"))


def _kinds(machines: list[Machine]) -> tuple[Kind, ...]:
    found: dict[str, dict[str, list[Machine]]] = {}
    for machine in machines:
        found.setdefault(machine.accelerator, {}).setdefault(machine.zone, []).append(machine)
    return tuple(
        Kind(
            accelerator=name,
            machines=tuple(m for zone in sorted(zones, key=lambda z: (-len(zones[z]), z)) for m in zones[zone]),
        )
        for name, zones in sorted(found.items())
    )


def _for_stages(
    cluster: Cluster, regions: tuple[tuple[Kind, ...], ...], stages: int, size: int, most: int
) -> Iterator[Proposal]:
    bounds, best = even_cuts(cluster.layers, stages), float("inf")
    degrees = degrees_of(cluster, regions, bounds, size)
    cheap = cluster.scenario.job.goal is Goal.MINIMIZE_COST
    counts = sorted(
        {-(-cluster.batch // (size * m)) for m in range(1, cluster.batch // size + 1)}
        & set(range(1, most // stages + 1))
    )
    for replicas in counts if cheap else reversed(counts):
        microbatches = even_microbatches(cluster, replicas, size)
        if not microbatches:
            continue
        search = _Programme(cluster, regions, bounds, degrees, size, replicas, microbatches)
        found = search.rest(0, 0, search.full)
        if found is None:
            continue
        seconds = found.seconds(microbatches)
        if seconds >= best:
            return
        best = seconds
        build = partial(_plan, cluster, regions, found, bounds, size, replicas)
        yield Proposal(estimate_s=seconds, build=build, rank=seconds * _usd_per_hour(regions, found) if cheap else None)


def _usd_per_hour(regions: tuple[tuple[Kind, ...], ...], rest: Rest) -> float:
    """Return what the devices of all stages cost."""
    held = [(regions[region][kind].machines[0], n * tp) for row in rest.holders for region, kind, n, tp in row]
    return sum(machine.pool.offer.usd_per_hour * devices / machine.devices for machine, devices in held)


def degrees_of(
    cluster: Cluster, regions: tuple[tuple[Kind, ...], ...], bounds: list[int], size: int
) -> dict[tuple[str, int], int]:
    """Return the tensor parallelism by accelerator and stage; a kind is left out if some stage fits at no degree."""
    names = sorted({kind.accelerator for region in regions for kind in region})
    found = {}
    for name in names:
        for stage, (first, end) in enumerate(pairwise(bounds)):
            times = {}
            for tp in cluster.tp_degrees():
                table = cluster.table(name, tp, size)
                held = len(bounds) - 1 - stage
                if table is not None and table.memory_bytes(first, end, in_flight=held) <= table.limit_bytes:
                    times[tp] = float(table.compute_s(first, end))
            if not times:
                continue
            tp = min(times)
            # With several kinds, the first kind keeps its degree.
            if len(names) == 1 or name != names[0]:
                while 2 * tp in times and times[tp] >= WORTH_DOUBLING * times[2 * tp]:
                    tp *= 2
            found[name, stage] = tp
    stages = range(len(bounds) - 1)
    whole = {name for name in names if all((name, stage) in found for stage in stages)}
    return {key: tp for key, tp in found.items() if key[0] in whole}


@dataclass(slots=True)
class _Programme:
    """The dynamic program over stages for one number of stages, replicas and microbatch size."""

    cluster: Cluster
    regions: tuple[tuple[Kind, ...], ...]
    bounds: list[int]
    degrees: dict[tuple[str, int], int]
    size: int
    replicas: int
    microbatches: int
    known: dict[tuple[int, int, Left], Rest | None] = field(default_factory=dict)

    @property
    def full(self) -> Left:
        return tuple(kind.devices for kind in self.regions[0])

    def rest(self, stage: int, region: int, left: Left) -> Rest | None:
        """Return the fastest way to place the stages from one on, in a region with `left` devices."""
        if stage == len(self.bounds) - 1:
            return Rest()
        key = (stage, region, left)
        if key not in self.known:
            self.known[key] = self._best(stage, region, left)
        return self.known[key]

    def _best(self, stage: int, region: int, left: Left) -> Rest | None:
        found = [
            rest for shares in self._shares(stage, region, left) if (rest := self._joined(stage, region, left, shares))
        ]
        if found:
            return min(found, key=lambda rest: rest.seconds(self.microbatches))
        if region + 1 < len(self.regions):
            return self.rest(stage, region + 1, tuple(kind.devices for kind in self.regions[region + 1]))
        return None

    def _shares(self, stage: int, region: int, left: Left) -> Iterator[tuple[int, ...]]:
        """Yield the replicas of each kind: all of one, or the rest of one and others of another."""
        room = [
            free // tp if (tp := self.degrees.get((kind.accelerator, stage))) else 0
            for kind, free in zip(self.regions[region], left, strict=True)
        ]
        for first, there in enumerate(room):
            if there >= self.replicas:
                yield tuple(self.replicas * (k == first) for k in range(len(room)))
                continue
            for second, more in enumerate(room):
                if second != first and there > 0 and there + more >= self.replicas:
                    missing = self.replicas - there
                    yield tuple(there * (k == first) + missing * (k == second) for k in range(len(room)))

    def _joined(self, stage: int, region: int, left: Left, shares: tuple[int, ...]) -> Rest | None:
        kinds, (first, end) = self.regions[region], (self.bounds[stage], self.bounds[stage + 1])
        used = [
            count * self.degrees.get((kind.accelerator, stage), 1) for kind, count in zip(kinds, shares, strict=True)
        ]
        rest = self.rest(stage + 1, region, tuple(free - taken for free, taken in zip(left, used, strict=True)))
        if rest is None:
            return None
        own, hop, slots = 0.0, 0.0, []
        for kind, count in zip(kinds, shares, strict=True):
            tp = self.degrees.get((kind.accelerator, stage), 1)
            table = self.cluster.table(kind.accelerator, tp, self.size) if count else None
            if table is None:
                continue
            own = max(own, float(table.compute_s(first, end)))
            slots.append(Slot(machine=kind.machines[0], first=0, tp=tp))
            slots.append(Slot(machine=kind.machines[-1], first=0, tp=tp))
            for following in self._first(rest, region):
                hop = max(hop, self.cluster.transfer_s(slots[-2], following, table, end) / 2.0)
        if not slots:
            return None
        table = self.cluster.table(slots[0].machine.accelerator, slots[0].tp, self.size)
        assert table is not None
        reduced = self.cluster.all_reduce_s(float(table.gradient_bytes(first, end)), slots, self.replicas)
        return Rest(
            first_s=own + hop,
            straggler_s=max(rest.straggler_s, rest.first_s + (hop if rest.holders else 0.0)),
            compute_s=rest.compute_s + own,
            transfers_s=rest.transfers_s + hop,
            sync_s=max(rest.sync_s, reduced),
            holders=(
                tuple(
                    (region, k, count, self.degrees[kinds[k].accelerator, stage])
                    for k, count in enumerate(shares)
                    if count
                ),
                *rest.holders,
            ),
        )

    def _first(self, rest: Rest, region: int) -> Iterator[Slot]:
        """Yield devices of each kind that holds the first of the other stages, from its last zone in the same
        region."""
        for there, kind, _, tp in rest.holders[0] if rest.holders else ():
            machines = self.regions[there][kind].machines
            yield Slot(machine=machines[-1 if there == region else 0], first=0, tp=tp)


def _plan(
    cluster: Cluster,
    regions: tuple[tuple[Kind, ...], ...],
    rest: Rest,
    bounds: list[int],
    size: int,
    replicas: int,
) -> Plan:
    free = {machine.name: machine.devices for machine in cluster.machines}
    rows: list[list[Slot]] = []
    for holders in rest.holders:
        row = [
            _taken(regions[region][kind].machines, tp, free)
            for region, kind, count, tp in holders
            for _ in range(count)
        ]
        rows.append(row)
    return cluster.plan(
        [
            (size, [Cut(first=a, end=b, slot=row[p]) for (a, b), row in zip(pairwise(bounds), rows, strict=True)])
            for p in range(replicas)
        ]
    )


def _taken(machines: tuple[Machine, ...], tp: int, free: dict[str, int]) -> Slot:
    """Take devices of the first machine with enough free ones. Raises RequestError if there is none."""
    for machine in machines:
        if free[machine.name] >= tp:
            first = machine.devices - free[machine.name]
            free[machine.name] -= tp
            return Slot(machine=machine, first=first, tp=tp)
    raise RequestError(f"no node has {tp} devices left for a stage; the search counted devices, not nodes")


SAILOR_PAPER = Strategy(
    name="sailor-paper",
    paper="Strati et al., SOSP'25",
    summary="mixed GPUs, zones and money: even stages, a dynamic programme over kinds of GPUs",
    propose=propose,
    mixed=True,
    zones=True,
    money=True,
    memory=True,
)
