"""Pipelines over several zones or accelerators, with all replicas of a stage on equal nodes in one zone.

All-reduces then stay inside zones, and no slow network card delays the other nodes' rings. Activations cross zones
while stages compute. Large models gain most: their gradients are many times larger than their activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.patterns.layer_cuts import Cutter
from sailor_cloud.planner.patterns.node_patterns import MAX_STAGES
from sailor_cloud.planner.space.draft import Draft, nodes_of, seats_of
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space

# The most zones and accelerators of a chain.
_ZONES, _ACCELERATORS = 8, 3
# What is tried: devices of a stage at most, pipelines that share each node, and microbatch sizes.
_DEGREES, _SHARING, _SIZES = (8, 4, 2, 1), (1, 2, 4, 8), (1, 2, 4, 8)
# For each number of zones, the chains that are cut and those that are judged; and all drafts that are evaluated.
_CUT, _JUDGED, _EVALUATED = 32, 8, 6

# The slots of each pipeline.
_Pipelines = list[tuple[Slot, ...]]


@dataclass(frozen=True, slots=True)
class _Chain:
    """`sharing` pipelines on each of `sets` sets of nodes, with at most `degree` devices for each stage.

    `nodes`: pools in the order of the stages, with their number of nodes in a set.
    """

    nodes: tuple[tuple[int, int], ...]
    sets: int
    sharing: int
    degree: int


@dataclass(slots=True)
class ZoneChains:
    """Draws such plans in a space at one ZeRO stage. `known`: the goal's value of a plan that keeps all limits."""

    space: Space
    target: Target
    known: float
    _assessor: Assessor = field(init=False)
    _cutter: Cutter = field(init=False)
    # By accelerator: the least device-seconds of a sample.
    _work: dict[str, float] = field(init=False)
    # By zone and accelerator: a pool and its number of nodes.
    _nodes: dict[str, dict[str, tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._assessor = Assessor(self.space, self.target)
        self._cutter = Cutter(self.space)
        work = {name: float(seconds.sum()) for name, seconds in device_seconds(self.space).items()}
        self._work = {name: work[name] for name in sorted(work, key=lambda name: (work[name], name))[:_ACCELERATORS]}
        self._nodes = defaultdict(dict)
        for row, index in self._largest().items():
            here = self.space.candidates.rows[row]
            self._nodes[here.zone][here.accelerator] = index, self.space.pools[index].max_nodes

    def draw(self) -> list[Draft]:
        """Return the best plans, with figures under the replay; they may break limits a little."""
        drafts: dict[tuple[object, ...], Draft] = {}
        for zones in self._zones():
            rated = sorted({(each[1][0], each[2]): each for each in self._rated(zones)}.values())
            timed = sorted(filter(None, (self._timed(pipelines, size) for _, pipelines, size in rated[:_CUT])))
            for _, shapes in timed[:_JUDGED]:
                drafts |= {draft.order(): draft for draft in map(self._assessor.draft, _cuts(shapes)) if draft}
        best = sorted(drafts.values(), key=lambda draft: (draft.figures[self.target.goal], draft.order()))
        return list(map(Evaluator(self._assessor).expected, best[:_EVALUATED]))

    def _largest(self) -> dict[int, int]:
        """Return the pool of each row with the most devices in all, then with the largest nodes, then the cheapest."""
        space, found = self.space, dict[int, int]()

        def rank(index: int) -> tuple[float, float, float]:
            pool = space.pools[index]
            return -pool.devices * pool.max_nodes, -pool.devices, space.rates[index].expected

        for index, pool in enumerate(space.pools):
            if pool.accelerator.name in self._work and rank(index) < rank(found.setdefault(pool.row, index)):
                found[pool.row] = index
        return found

    def _zones(self) -> Iterator[list[str]]:
        """Yield a zone of each cloud's largest region, then with more and more of the zones with the fastest links."""
        region_of = self.space.scenario.catalog.region_of
        clouds: dict[str, list[str]] = defaultdict(list)
        devices: dict[str, int] = defaultdict(int)
        for zone, nodes in sorted(self._nodes.items()):
            for index, count in nodes.values():
                devices[region_of(zone)] += self.space.pools[index].devices * count
            clouds[self.space.pools[index].offer.provider].append(zone)
        for there in clouds.values():
            chain = [max(there, key=lambda zone: devices[region_of(zone)])]
            for _ in there[:_ZONES]:
                yield list(chain)
                others = [zone for zone in there if zone not in chain]
                chain += sorted(others, key=lambda zone: -self._bytes_per_s(chain[-1], zone))[:1]

    def _bytes_per_s(self, zone: str, other: str) -> float:
        """Return the speed of the fastest link between two zones."""
        return max(
            self.space.link(src, dst, same_node=False, pairs=1).bandwidth_bytes_per_s
            for (src, _), (dst, _) in product(self._nodes[zone].values(), self._nodes[other].values())
        )

    def _rated(self, zones: Sequence[str]) -> Iterator[tuple[float, _Pipelines, int]]:
        """Yield promising pipelines through zones, with the seconds of their passes if stages are equally fast."""
        for most in range(1, len(self._work) + 1):
            names = list(self._work)[:most]
            every = [self._nodes[zone][name] for zone in zones for name in names if name in self._nodes[zone]]
            for chain in self._chains(every):
                self.space.known.deadline.check()
                pipelines = self._pipelines(chain)
                sample_s = self._sample_s(pipelines)
                if not self._promising(pipelines, sample_s):
                    continue
                for size in (size for size in _SIZES if len(pipelines) * size <= self.space.batch):
                    rounds = self._microbatches(pipelines, size) + len(pipelines[0]) - 1
                    yield rounds * size * len(pipelines) * sample_s, pipelines, size

    def _timed(self, pipelines: _Pipelines, size: int) -> tuple[float, list[Shape]] | None:
        """Return the seconds of the passes with the least busiest stage, and the pipelines; None if they do not fit."""
        microbatches, seats = self._microbatches(pipelines, size), seats_of(pipelines[0])
        found = self._cutter.cut(seats, size=size, microbatches=microbatches, replicas=len(pipelines))
        if found is None:
            return None
        cut, busiest_s = found
        return (microbatches + len(seats) - 1) * busiest_s, [Shape(slots, cut, size) for slots in pipelines]

    def _microbatches(self, pipelines: _Pipelines, size: int) -> int:
        return -(-self.space.batch // (len(pipelines) * size))

    def _sample_s(self, pipelines: _Pipelines) -> float:
        """Return the seconds per sample of the global batch if no device is ever idle."""
        pools = self.space.pools
        return 1.0 / sum(
            slot.tp / self._work[pools[slot.pool].accelerator.name] for slots in pipelines for slot in slots
        )

    def _promising(self, pipelines: _Pipelines, sample_s: float) -> bool:
        """Return whether pipelines that are never idle keep all limits and are better than the known plan."""
        nodes, most = nodes_of(tuple(pipelines)), self.space.scenario.job.constraints.max_nodes
        if most is not None and nodes.total() > most:
            return False
        figures = Bill.of(self.space, nodes).figures(self.space.batch * sample_s, 0.0)
        return float(self.target.excess(figures)) == 1.0 and figures[self.target.goal] < self.known

    def _chains(self, every: Sequence[tuple[int, int]]) -> Iterator[_Chain]:
        """Yield chains on pools with numbers of nodes; pools with fewer nodes than sets are left out."""
        counts = {count for _, count in every} | {count // 2 for _, count in every}
        for sets, sharing, degree in product(sorted(counts - {0}), _SHARING, _DEGREES):
            nodes = tuple((pool, count // sets) for pool, count in every if count >= sets)
            chain = _Chain(nodes, sets, sharing, degree)
            each = [self._stages(pool, chain) for pool, _ in nodes]
            stages = sum(number * stages for (_, number), stages in zip(nodes, each, strict=True))
            if len(nodes) > 1 and all(each) and stages <= min(MAX_STAGES, self.space.layers):
                yield chain

    def _degree(self, pool: int, chain: _Chain) -> int:
        """Return the largest possible number of devices of a stage; 0 if there is none."""
        most = min(chain.degree, self.space.pools[pool].devices // chain.sharing)
        return max((tp for tp in self.space.tp_degrees[pool] if tp <= most), default=0)

    def _stages(self, pool: int, chain: _Chain) -> int:
        """Return how many stages of a pipeline are on each node; 0 if that is impossible."""
        tp = self._degree(pool, chain)
        return self.space.pools[pool].devices // (tp * chain.sharing) if tp else 0

    def _pipelines(self, chain: _Chain) -> _Pipelines:
        return [
            tuple(
                Slot(pool, number * group + node, self._degree(pool, chain))
                for pool, number in chain.nodes
                for node in range(number)
                for _ in range(self._stages(pool, chain))
            )
            for group in range(chain.sets)
            for _ in range(chain.sharing)
        ]


def _cuts(shapes: list[Shape]) -> Iterator[list[Shape]]:
    """Yield pipelines as they are, and with equally many layers in each stage.

    The first cut balances computation. The second one balances all-reduces, which take longest for the largest stage.
    """
    *_, layers = cut = shapes[0].cut
    even = tuple(layers * stage // (len(cut) - 1) for stage in range(len(cut)))
    yield shapes
    yield [shape._replace(cut=even) for shape in shapes]
