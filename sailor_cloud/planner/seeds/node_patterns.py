"""Node patterns: equal pipelines through nodes of some pools, with the same stages of several pipelines on each node.

All replicas of a stage are on equal nodes in one zone. So all-reduces stay inside zones, and no slow network card
delays the other nodes' rings. Activations cross zones while stages compute. Large models gain most: their gradients are
many times larger than their activations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, NamedTuple, TypeVar

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.seeds.narrowing import likely_zones
from sailor_cloud.planner.space.draft import Draft, near, seats_of
from sailor_cloud.planner.space.goals import NEARLY, TIE, Figure, Target
from sailor_cloud.planner.space.layer_cuts import MAX_STAGES, Cutter
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space
from sailor_cloud.units import SECONDS_PER_HOUR

# The most zones of a pattern, and accelerators: those that do most work in the zones.
_ZONES, _ACCELERATORS = 12, 3
# The share of a row's devices that its nodes have at least: 8 of 11 on one node may be better than 11 on single ones.
_NODES = 1.0, 2 / 3
# What is tried: devices of a stage at most, pipelines that share each node, nodes of a pool in a row at most, and
# microbatch sizes.
_DEGREES, _SHARING, _DEPTHS, _SIZES = (8, 4, 2, 1), (1, 2, 4, 8), (MAX_STAGES, 16, 4, 2, 1), (1, 2, 4, 8)
# For each set of zones, the patterns that are cut and those that are assessed; and all drafts that are evaluated. If
# patterns do not fit or break limits, more are cut, up to the last number.
_CUT, _ASSESSED, _EVALUATED, _TRIED = 32, 24, 32, 48
# Of these, at most so many of one kind.
_ALIKE_CUT, _ALIKE = 4, 2

_Entry = TypeVar("_Entry", bound=tuple[Any, ...])

# By zone and accelerator: pools with their numbers of nodes, one for each entry of the job.
_Nodes = dict[str, dict[str, list[tuple[int, int]]]]
# The slots of each pipeline.
_Pipelines = list[tuple[Slot, ...]]


class _Part(NamedTuple):
    """The nodes of one pool: `depth` nodes in a row, each with `stages` stages of `sharing` pipelines."""

    pool: int
    tp: int
    stages: int
    sharing: int
    depth: int


class _Pattern(NamedTuple):
    """Equal pipelines through the nodes of some pools, in the order of the stages."""

    parts: tuple[_Part, ...]
    pipelines: int

    @property
    def stages(self) -> int:
        return sum(part.stages * part.depth for part in self.parts)

    @property
    def kind(self) -> tuple[int, ...]:
        """The number of pipelines, and the devices of the largest nodes and of the largest stage."""
        devices = max(part.tp * part.stages * part.sharing for part in self.parts)
        return self.pipelines, devices, max(part.tp for part in self.parts)

    def reversed(self) -> _Pattern:
        return self._replace(parts=self.parts[::-1])

    def nodes(self) -> Counter[int]:
        """Return the number of nodes of each pool."""
        return Counter({part.pool: part.depth * -(-self.pipelines // part.sharing) for part in self.parts})

    def slots(self) -> _Pipelines:
        """Return the slots of each pipeline."""
        return [
            tuple(
                Slot(part.pool, number // part.sharing * part.depth + node, part.tp)
                for part in self.parts
                for node in range(part.depth)
                for _ in range(part.stages)
            )
            for number in range(self.pipelines)
        ]


class _Timed(NamedTuple):
    """A pattern at the cut whose slowest stage is fastest: the goal's figure and the seconds of its passes."""

    value: float
    pattern: _Pattern
    shapes: list[Shape]
    seconds: float


@dataclass(slots=True)
class NodePatterns:
    """Draws such plans in a space at one ZeRO stage. `known`: the goal's value of a plan that keeps all limits."""

    space: Space
    target: Target
    known: float
    _assessor: Assessor = field(init=False)
    _cutter: Cutter = field(init=False)
    # The most accelerators of a pattern.
    _most: int = _ACCELERATORS
    # By accelerator: the least device-seconds of a sample.
    _work: dict[str, float] = field(init=False)
    # By accelerator, devices of a stage and pipelines: the most of the model whose states a stage can hold.
    _shares: dict[tuple[str, int, int], float] = field(default_factory=dict)
    # The nodes with most devices in all, of any size and of smaller ones, whose cards are faster in proportion.
    _nodes: list[_Nodes] = field(init=False)

    def __post_init__(self) -> None:
        self._assessor = Assessor(self.space, self.target)
        self._cutter = Cutter(self.space)
        self._work = {name: float(seconds.sum()) for name, seconds in device_seconds(self.space).items()}
        sizes = sorted({pool.devices for pool in self.space.pools}, reverse=True)
        every = [self._nodes_of(most, share) for share in _NODES for most in sizes]
        self._nodes = [nodes for number, nodes in enumerate(every) if nodes and nodes not in every[:number]]

    def best(self) -> list[Draft]:
        """Return the best plans, with figures under the replay; they may break limits."""
        every = self.every()
        kept = sorted(every, key=self._assessor.rank)
        first = sorted(every, key=lambda draft: near(self._assessor.rank(draft)))
        best = {draft.order(): draft for pair in zip(kept, first, strict=True) for draft in pair}
        return list(map(Evaluator(self._assessor).expected, list(best.values())[:_EVALUATED]))

    def every(self) -> list[Draft]:
        """Return all plans that are assessed, by the closed form.

        If none fits on a few accelerators together, they may use all.
        """
        found = self._drawn()
        if not found and len(self._work) > self._most:
            self._most = len(self._work)
            found = self._drawn()
        return found

    def _drawn(self) -> list[Draft]:
        drafts: dict[tuple[object, ...], Draft] = {}
        for zones in self._zones():
            for timed in _diverse(self._cut(zones), _ASSESSED, _ALIKE):
                drafts |= {draft.order(): draft for draft in map(self._assessor.draft, _cuts(timed.shapes)) if draft}
        return list(drafts.values())

    def _nodes_of(self, most: int, share: float) -> _Nodes:
        """Return the nodes of each row with up to `most` devices, as in `Assessor.node_sizes`."""
        space, found = self.space, self._assessor.node_sizes(share=share, most_devices=most)
        nodes: _Nodes = defaultdict(dict)
        for row, index in found.items():
            here = space.candidates.rows[row]
            nodes[here.zone].setdefault(here.accelerator, []).append((index, self._assessor.most_nodes(index)))
        return dict(nodes)

    def _zones(self) -> Iterator[list[str]]:
        """Yield likely zones of the space, then more and more zones of each cloud, and of all clouds."""
        clouds: dict[str, list[str]] = defaultdict(list)
        speed: dict[str, float] = {}
        for zone, nodes in sorted(self._nodes[0].items()):
            every = [entry for entries in nodes.values() for entry in entries]
            speed[zone] = sum(self._speed(index, count) for index, count in every)
            clouds[self.space.pools[every[0][0]].offer.provider].append(zone)

        def near(zone: str, others: Iterable[str]) -> float:
            """Return the speed of the link to each of the nearest zones times the speed of that zone, added up."""
            links = sorted(((self._bytes_per_s(zone, other), speed[other]) for other in others), reverse=True)
            return sum(link * work for link, work in links[:_ZONES])

        known: set[frozenset[str]] = set()
        growing = [(there, True) for there in (*clouds.values(), list(speed))]
        for there, grows in (*((zones, False) for zones in likely_zones(self.space)), *growing):
            rows = list(self._rows(sorted(there, key=lambda zone: (-near(zone, there), zone))))
            for row in rows if grows else rows[-1:]:
                if frozenset(row) not in known:
                    known.add(frozenset(row))
                    yield row

    def _speed(self, pool: int, count: int) -> float:
        """Return the samples per second of a number of nodes without idle time."""
        return self.space.pools[pool].devices * count / self._work[self.space.pools[pool].accelerator.name]

    def _rows(self, zones: Sequence[str]) -> Iterator[list[str]]:
        """Yield the first zone, and rows with more and more of the others.

        The zone with the fastest link to an end of the row joins it there.
        """
        row = list(zones[:1])
        for _ in zones[:_ZONES]:
            yield list(row)
            others = [zone for zone in zones if zone not in row]
            nearest = sorted(product(others, (-1, 0)), key=lambda one: -self._bytes_per_s(row[one[1]], one[0]))
            for zone, end in nearest[:1]:
                row = [*row, zone] if end else [zone, *row]

    def _bytes_per_s(self, zone: str, other: str) -> float:
        """Return the speed of the fastest link between two zones."""
        return max(
            self.space.link(src, dst, same_node=False, pairs=1).bandwidth_bytes_per_s
            for sources, others in product(self._nodes[0][zone].values(), self._nodes[0][other].values())
            for (src, _), (dst, _) in product(sources, others)
        )

    def _cut(self, zones: Sequence[str]) -> list[_Timed]:
        """Return the best patterns in zones with their cuts, both ways, best first.

        The first ones show how much longer passes take than estimated. Those that then break limits by far are left
        out.
        """
        numbers: Counter[tuple[int, ...]] = Counter()
        found: dict[_Pattern, _Timed] = {}
        # By the devices of the largest stage.
        longer: dict[int, float] = {}
        cut, tried = 0, 0
        for _, seconds, pattern in self._rated(zones):
            if cut == _CUT or tried == _TRIED:
                break
            *_, degree = pattern.kind
            expected_s = seconds * longer.get(degree, 1.0)
            if numbers[pattern.kind] == _ALIKE_CUT or self._excess(pattern, expected_s) > NEARLY:
                continue
            tried += 1
            timed = {each: self._timed(each) for each in (pattern, pattern.reversed())}
            fitting = {each: one for each, one in timed.items() if one is not None}
            kept = {each: one for each, one in fitting.items() if self._promising(each, one.seconds / NEARLY)}
            if not fitting:
                continue
            if not kept:
                own = min(one.seconds for one in fitting.values()) / seconds
                longer[degree] = min(own, longer.get(degree, own))
                continue
            found |= kept
            numbers[pattern.kind] += 1
            cut += 1
        return sorted(found.values())

    def _rated(self, zones: Sequence[str]) -> Iterator[tuple[float, float, _Pattern]]:
        """Yield promising patterns in zones, best first, with the seconds of passes if all stages are equally fast.

        They are rated by the goal's figure; as in `near`, what exceeds limits counts as worse.
        """
        rated = []
        for pattern in dict.fromkeys(found for every in self._orders(zones) for found in self._patterns(every)):
            rounds = self._microbatches(pattern, 1) + pattern.stages - 1
            seconds = rounds * pattern.pipelines * self._sample_s(pattern)
            rated.append((self._value(pattern, seconds) * self._excess(pattern, seconds) ** 2, seconds, pattern))
        return (
            one
            for one in sorted(rated)
            if self._may_fit(one[2]) and self._promising(one[2], self.space.batch * self._sample_s(one[2]))
        )

    def _may_fit(self, pattern: _Pattern) -> bool:
        """Return whether the stages of a pipeline have enough memory for weights, gradients and optimizer states."""
        held = sum(part.stages * part.depth * self._share(part, pattern.pipelines) for part in pattern.parts)
        return held >= 1.0

    def _share(self, part: _Part, replicas: int) -> float:
        """Return the most of the model whose states one stage can hold; activations are left out."""
        key = (self.space.pools[part.pool].accelerator.name, part.tp, replicas)
        if key not in self._shares:
            table = self.space.table(part.pool, part.tp, 1)
            states = table.memory.states(0, self.space.layers, replicas)
            needed = float(states.weights + states.gradients + states.optimizer)
            self._shares[key] = table.limit_bytes / needed if needed else 1.0
        return self._shares[key]

    def _orders(self, zones: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
        """Yield the nodes of zones in an order of stages: zone by zone, and accelerator by accelerator.

        By accelerator they pass the zones to and fro, so that equal accelerators are neighbours and few links are slow.
        """
        speed: dict[str, float] = defaultdict(float)
        for zone in zones:
            for name, entries in self._nodes[0].get(zone, {}).items():
                speed[name] += sum(self._speed(index, count) for index, count in entries)
        most_work = sorted(speed, key=lambda name: (-speed[name], name))[: self._most]
        every = sorted(most_work, key=lambda name: (self._work[name], name))
        for names in (some for most in range(1, len(every) + 1) for some in combinations(every, most)):
            by_zone = [(zone, name) for zone in zones for name in names]
            by_name = [(zone, name) for turn, name in enumerate(names) for zone in zones[:: 1 - 2 * (turn % 2)]]
            for nodes, order in product(self._nodes, dict.fromkeys((tuple(by_zone), tuple(by_name)))):
                yield [entry for zone, name in order for entry in nodes.get(zone, {}).get(name, [])]

    def _timed(self, pattern: _Pattern) -> _Timed | None:
        """Return a pattern at its best cut and microbatch size; None if it does not fit.

        If the head alone is a stage, it may be on twice as many devices.
        """
        pipelines = pattern.slots()
        found = self._sized(pattern, pipelines)
        if found is None or found.shapes[0].cut[-2] < self.space.layers - 1:
            return found
        wide = [joined for slots in pipelines if (joined := self._with_wide_head(slots)) is not None]
        other = self._sized(pattern, wide) if wide else None
        return found if other is None else min(found, other)

    def _with_wide_head(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
        """Return slots with the last two as one; None if that is impossible."""
        before, last = slots[-2:] if len(slots) > 1 else (None, slots[-1])
        possible = before == last and 2 * last.tp in self.space.tp_degrees[last.pool]
        return (*slots[:-2], last._replace(tp=2 * last.tp)) if possible else None

    def _sized(self, pattern: _Pattern, pipelines: _Pipelines) -> _Timed | None:
        """Return pipelines at the best cut and microbatch size; None if they do not fit."""
        best, best_s, batch = None, 0.0, self.space.batch
        for size in (size for size in _SIZES if pattern.pipelines * size <= batch and batch % size == 0):
            microbatches = self._microbatches(pattern, size)
            found = self._cutter.cut(
                seats_of(pipelines[0]), size=size, microbatches=microbatches, replicas=pattern.pipelines
            )
            if found is None:
                break
            cut, busiest_s = found
            passes_s = (microbatches + len(pipelines[0]) - 1) * busiest_s
            if best is not None and passes_s >= best_s:
                # Larger microbatches only lengthen the bubble from here on.
                break
            best, best_s = [Shape(slots, cut, size) for slots in pipelines], passes_s
        return None if best is None else _Timed(self._value(pattern, best_s), pattern, best, best_s)

    def _value(self, pattern: _Pattern, seconds: float) -> float:
        """Return the goal's figure of an iteration, up to a factor that all patterns share."""
        if self.target.goal.is_time:
            return seconds
        return seconds * self._usd_per_hour(pattern.nodes())

    def _excess(self, pattern: _Pattern, seconds: float) -> float:
        """Return roughly the factor by which iterations of so many seconds exceed limits, at least 1."""
        if not self.target.limits:
            return 1.0
        steps = self.space.scenario.job.training.steps or 1
        rate = self._usd_per_hour(pattern.nodes())
        usd = seconds * rate / SECONDS_PER_HOUR
        figures = {
            Figure.ITERATION_S: seconds,
            Figure.DURATION_S: seconds * steps,
            Figure.USD_PER_HOUR: rate,
            Figure.USD_PER_ITERATION: usd,
            Figure.TOTAL_USD: usd * steps,
        }
        return max(1.0, *(figures.get(limit.figure, 0.0) / limit.at_most for limit in self.target.limits))

    def _usd_per_hour(self, nodes: Counter[int]) -> float:
        return sum(self.space.rates[pool].expected * count for pool, count in nodes.items())

    def _microbatches(self, pattern: _Pattern, size: int) -> int:
        return -(-self.space.batch // (pattern.pipelines * size))

    def _sample_s(self, pattern: _Pattern) -> float:
        """Return the seconds per sample of the global batch if no device is ever idle."""
        pools = self.space.pools
        each = sum(
            part.tp * part.stages * part.depth / self._work[pools[part.pool].accelerator.name] for part in pattern.parts
        )
        return 1.0 / (each * pattern.pipelines)

    def _promising(self, pattern: _Pattern, seconds: float) -> bool:
        """Return whether iterations of so many seconds keep all limits and are better than the known plan."""
        figures = Bill.of(self.space, pattern.nodes()).figures(seconds, 0.0)
        return float(self.target.excess(figures)) == 1.0 and figures[self.target.goal] < self.known

    def _patterns(self, every: Sequence[tuple[int, int]]) -> Iterator[_Pattern]:
        """Yield patterns on pools with numbers of nodes; pools with too few nodes for all pipelines are left out."""
        longest = min(MAX_STAGES, self.space.layers)
        choices = product(_SHARING, _DEGREES)
        nodes = (tuple((count, self._part(pool, *choice)) for pool, count in every) for choice in choices)
        for each in dict.fromkeys(nodes):
            numbers = {
                count // depth * part.sharing for count, part in each for depth in range(1, min(count, longest) + 1)
            }
            for pipelines in sorted(number for number in numbers if number <= self.space.batch):
                self.space.known.deadline.check()
                depths = [count // -(-pipelines // part.sharing) for count, part in each]
                for most in _DEPTHS:
                    stages = sum(min(depth, most) * part.stages for depth, (_, part) in zip(depths, each, strict=True))
                    # Below the largest depth, a limit changes nothing.
                    if 0 < stages <= longest and (most == _DEPTHS[0] or most < max(depths)):
                        parts = (
                            part._replace(depth=min(depth, most))
                            for depth, (_, part) in zip(depths, each, strict=True)
                            if depth
                        )
                        yield from self._within_limits(_Pattern(tuple(parts), pipelines))

    def _within_limits(self, pattern: _Pattern) -> Iterator[_Pattern]:
        """Yield a pattern, or its first and its last nodes if it has too many or they cost too much per hour."""
        if self._may_have(pattern.nodes()):
            yield pattern
            return
        for step in (1, -1):
            kept = list(pattern.parts[::step])
            while kept and not self._may_have(pattern._replace(parts=tuple(kept)).nodes()):
                last = kept.pop()
                kept += [last._replace(depth=last.depth - 1)] if last.depth > 1 else []
            if kept:
                yield pattern._replace(parts=tuple(kept[::step]))

    def _may_have(self, nodes: Counter[int]) -> bool:
        """Return whether the job's limits on nodes and USD per hour allow nodes, by pool."""
        most, rate = self.space.scenario.job.constraints.max_nodes, self._usd_per_hour(nodes)
        limits = (limit.at_most for limit in self.target.limits if limit.figure is Figure.USD_PER_HOUR)
        return (most is None or nodes.total() <= most) and all(rate <= each * (1.0 + TIE) for each in limits)

    def _part(self, pool: int, sharing: int, degree: int) -> _Part:
        """Return one node of a pool, with at most `degree` devices for each stage."""
        devices = self.space.pools[pool].devices
        tp = max(tp for tp in self.space.tp_degrees[pool] if tp <= degree)
        shared = min(sharing, devices // tp)
        return _Part(pool, tp, devices // (tp * shared), shared, 1)


def _diverse(ranked: Iterable[_Entry], most: int, alike: int) -> list[_Entry]:
    """Return the first patterns, at most so many of one kind."""
    numbers: Counter[tuple[int, ...]] = Counter()
    found: list[_Entry] = []
    for entry in ranked:
        if len(found) == most:
            break
        numbers[entry[1].kind] += 1
        if numbers[entry[1].kind] <= alike:
            found.append(entry)
    return found


def _cuts(shapes: list[Shape]) -> Iterator[list[Shape]]:
    """Yield pipelines as they are, and with equally many layers in each stage.

    The first cut balances computation. The second one balances all-reduces, which take longest for the largest stage.
    """
    *_, layers = cut = shapes[0].cut
    even = tuple(layers * stage // (len(cut) - 1) for stage in range(len(cut)))
    yield shapes
    yield [shape._replace(cut=even) for shape in shapes]
