"""Pipelines over several zones or accelerators, with all replicas of a stage on equal nodes in one zone.

All-reduces then stay inside zones, and no slow network card delays the other nodes' rings. Activations cross zones
while stages compute. Large models gain most: their gradients are many times larger than their activations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeVar

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.patterns.layer_cuts import Cutter
from sailor_cloud.planner.patterns.node_patterns import MAX_STAGES
from sailor_cloud.planner.space.draft import Draft, seats_of
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space

# The most zones and accelerators of a chain.
_ZONES, _ACCELERATORS = 8, 3
# What is tried: devices of a stage at most, pipelines that share each node, and microbatch sizes.
_DEGREES, _SHARING, _SIZES = (8, 4, 2, 1), (1, 2, 4, 8), (1, 2, 4, 8)
# For each number of zones, the chains that are cut and those that are judged; and all drafts that are evaluated.
_CUT, _JUDGED, _EVALUATED = 64, 24, 16
# Of these, at most so many of one kind.
_ALIKE_CUT, _ALIKE = 8, 2

_Entry = TypeVar("_Entry", bound=tuple[Any, ...])

# By zone and accelerator: a pool and its number of nodes.
_Nodes = dict[str, dict[str, tuple[int, int]]]
# The slots of each pipeline.
_Pipelines = list[tuple[Slot, ...]]


class _Link(NamedTuple):
    """The nodes of one pool in a chain: `depth` nodes in a row, each with `stages` stages of `sharing` pipelines."""

    pool: int
    tp: int
    stages: int
    sharing: int
    depth: int


class _Chain(NamedTuple):
    """Equal pipelines through the nodes of some pools, in the order of the stages."""

    links: tuple[_Link, ...]
    pipelines: int

    @property
    def stages(self) -> int:
        return sum(link.stages * link.depth for link in self.links)

    @property
    def kind(self) -> tuple[int, int]:
        """The number of pipelines, and the devices of the largest nodes."""
        return self.pipelines, max(link.tp * link.stages * link.sharing for link in self.links)

    def nodes(self) -> Counter[int]:
        """Return the number of nodes of each pool."""
        return Counter({link.pool: link.depth * -(-self.pipelines // link.sharing) for link in self.links})

    def slots(self) -> _Pipelines:
        """Return the slots of each pipeline."""
        return [
            tuple(
                Slot(link.pool, number // link.sharing * link.depth + node, link.tp)
                for link in self.links
                for node in range(link.depth)
                for _ in range(link.stages)
            )
            for number in range(self.pipelines)
        ]


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
    # The largest nodes, and smaller ones, whose cards are faster in proportion.
    _nodes: list[_Nodes] = field(init=False)

    def __post_init__(self) -> None:
        self._assessor = Assessor(self.space, self.target)
        self._cutter = Cutter(self.space)
        work = {name: float(seconds.sum()) for name, seconds in device_seconds(self.space).items()}
        self._work = {name: work[name] for name in sorted(work, key=lambda name: (work[name], name))[:_ACCELERATORS]}
        sizes = sorted({pool.devices for pool in self.space.pools}, reverse=True)
        every = [self._nodes_of(most) for most in sizes]
        self._nodes = [nodes for number, nodes in enumerate(every) if nodes and nodes not in every[:number]]

    def draw(self) -> list[Draft]:
        """Return the best plans, with figures under the replay; they may break limits a little."""
        drafts: dict[tuple[object, ...], Draft] = {}
        for zones in self._zones():
            rated = sorted(self._rated(zones))
            timed = sorted(filter(None, (self._timed(chain) for _, chain in _diverse(rated, _CUT, _ALIKE_CUT))))
            for *_, shapes in _diverse(timed, _JUDGED, _ALIKE):
                drafts |= {draft.order(): draft for draft in map(self._assessor.draft, _cuts(shapes)) if draft}
        best = sorted(drafts.values(), key=lambda draft: (draft.figures[self.target.goal], draft.order()))
        return list(map(Evaluator(self._assessor).expected, best[:_EVALUATED]))

    def _nodes_of(self, most: int) -> _Nodes:
        """Return the nodes of each row that have most devices in all, then each, up to `most`.

        If time is the goal, those with the fastest network card are next, then the cheapest.
        """
        space, found = self.space, dict[int, int]()

        def rank(index: int) -> tuple[float, ...]:
            pool = space.pools[index]
            card = space.card_bytes_per_s(index) if self.target.goal.is_time else 0.0
            return -pool.devices * pool.max_nodes, -pool.devices, -card, space.rates[index].expected

        for index, pool in enumerate(space.pools):
            wanted = pool.accelerator.name in self._work and pool.devices <= most
            if wanted and rank(index) < rank(found.setdefault(pool.row, index)):
                found[pool.row] = index
        nodes: _Nodes = defaultdict(dict)
        for row, index in found.items():
            here = space.candidates.rows[row]
            nodes[here.zone][here.accelerator] = index, space.pools[index].max_nodes
        return dict(nodes)

    def _zones(self) -> Iterator[list[str]]:
        """Yield a zone of each cloud's largest region, then with more and more of the zones with the fastest links.

        A zone joins the end that it has the faster link to. Several clouds are also chained together.
        """
        region_of = self.space.scenario.catalog.region_of
        clouds: dict[str, list[str]] = defaultdict(list)
        devices: dict[str, int] = defaultdict(int)
        for zone, nodes in sorted(self._nodes[0].items()):
            for index, count in nodes.values():
                devices[region_of(zone)] += self.space.pools[index].devices * count
            clouds[self.space.pools[index].offer.provider].append(zone)
        every = [zone for there in clouds.values() for zone in there]
        known: set[frozenset[str]] = set()
        for there in (*clouds.values(), every):
            chain = [max(there, key=lambda zone: devices[region_of(zone)])]
            for _ in there[:_ZONES]:
                if frozenset(chain) not in known:
                    known.add(frozenset(chain))
                    yield list(chain)
                others = [zone for zone in there if zone not in chain]
                nearest = sorted(product(others, (-1, 0)), key=lambda one: -self._bytes_per_s(chain[one[1]], one[0]))
                for zone, end in nearest[:1]:
                    chain = [*chain, zone] if end else [zone, *chain]

    def _bytes_per_s(self, zone: str, other: str) -> float:
        """Return the speed of the fastest link between two zones."""
        return max(
            self.space.link(src, dst, same_node=False, pairs=1).bandwidth_bytes_per_s
            for (src, _), (dst, _) in product(self._nodes[0][zone].values(), self._nodes[0][other].values())
        )

    def _rated(self, zones: Sequence[str]) -> Iterator[tuple[float, _Chain]]:
        """Yield promising chains through zones, with the seconds of their passes if stages are equally fast."""
        for chain in dict.fromkeys(chain for every in self._orders(zones) for chain in self._chains(every)):
            sample_s = self._sample_s(chain)
            if self._promising(chain, sample_s):
                rounds = self._microbatches(chain, 1) + chain.stages - 1
                yield rounds * chain.pipelines * sample_s, chain

    def _orders(self, zones: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
        """Yield the nodes of zones in an order of stages: zone by zone, and accelerator by accelerator.

        The latter passes the zones to and fro, so that equal accelerators are neighbours and few links are slow.
        """
        for most in range(1, len(self._work) + 1):
            names = list(self._work)[:most]
            by_zone = [(zone, name) for zone in zones for name in names]
            by_name = [(zone, name) for turn, name in enumerate(names) for zone in zones[:: 1 - 2 * (turn % 2)]]
            for nodes, order in product(self._nodes, dict.fromkeys((tuple(by_zone), tuple(by_name)))):
                yield [nodes[zone][name] for zone, name in order if name in nodes.get(zone, {})]

    def _timed(self, chain: _Chain) -> tuple[float, _Chain, list[Shape]] | None:
        """Return the seconds of the passes with the least busiest stage, and the pipelines; None if they do not fit."""
        pipelines, best = chain.slots(), None
        for size in (size for size in _SIZES if chain.pipelines * size <= self.space.batch):
            microbatches = self._microbatches(chain, size)
            found = self._cutter.cut(
                seats_of(pipelines[0]), size=size, microbatches=microbatches, replicas=chain.pipelines
            )
            if found is None:
                break
            cut, busiest_s = found
            passes_s = (microbatches + chain.stages - 1) * busiest_s
            if best is not None and passes_s >= best[0]:
                # Larger microbatches only lengthen the bubble from here on.
                break
            best = passes_s, chain, [Shape(slots, cut, size) for slots in pipelines]
        return best

    def _microbatches(self, chain: _Chain, size: int) -> int:
        return -(-self.space.batch // (chain.pipelines * size))

    def _sample_s(self, chain: _Chain) -> float:
        """Return the seconds per sample of the global batch if no device is ever idle."""
        pools = self.space.pools
        each = sum(
            link.tp * link.stages * link.depth / self._work[pools[link.pool].accelerator.name] for link in chain.links
        )
        return 1.0 / (each * chain.pipelines)

    def _promising(self, chain: _Chain, sample_s: float) -> bool:
        """Return whether pipelines that are never idle keep all limits and are better than the known plan."""
        nodes, most = chain.nodes(), self.space.scenario.job.constraints.max_nodes
        if most is not None and nodes.total() > most:
            return False
        figures = Bill.of(self.space, nodes).figures(self.space.batch * sample_s, 0.0)
        return float(self.target.excess(figures)) == 1.0 and figures[self.target.goal] < self.known

    def _chains(self, every: Sequence[tuple[int, int]]) -> Iterator[_Chain]:
        """Yield chains on pools with numbers of nodes; pools with too few nodes for all pipelines are left out."""
        longest = min(MAX_STAGES, self.space.layers)
        for sharing, degree in product(_SHARING, _DEGREES):
            each = [(count, self._link(pool, sharing, degree)) for pool, count in every]
            numbers = {
                count // depth * link.sharing for count, link in each for depth in range(1, min(count, longest) + 1)
            }
            for pipelines in sorted(number for number in numbers if number <= self.space.batch):
                self.space.known.deadline.check()
                depths = [(link, count // -(-pipelines // link.sharing)) for count, link in each]
                links = tuple(link._replace(depth=depth) for link, depth in depths if depth)
                chain = _Chain(links, pipelines)
                if len(links) > 1 and chain.stages <= longest:
                    yield chain

    def _link(self, pool: int, sharing: int, degree: int) -> _Link:
        """Return the link of one node of a pool, with at most `degree` devices for each stage."""
        devices = self.space.pools[pool].devices
        tp = max(tp for tp in self.space.tp_degrees[pool] if tp <= degree)
        shared = min(sharing, devices // tp)
        return _Link(pool, tp, devices // (tp * shared), shared, 1)


def _diverse(ranked: Sequence[_Entry], most: int, alike: int) -> list[_Entry]:
    """Return the first chains, at most so many of one kind."""
    numbers: Counter[tuple[int, int]] = Counter()
    found = []
    for entry in ranked:
        numbers[entry[1].kind] += 1
        if numbers[entry[1].kind] <= alike:
            found.append(entry)
    return found[:most]


def _cuts(shapes: list[Shape]) -> Iterator[list[Shape]]:
    """Yield pipelines as they are, and with equally many layers in each stage.

    The first cut balances computation. The second one balances all-reduces, which take longest for the largest stage.
    """
    *_, layers = cut = shapes[0].cut
    even = tuple(layers * stage // (len(cut) - 1) for stage in range(len(cut)))
    yield shapes
    yield [shape._replace(cut=even) for shape in shapes]
