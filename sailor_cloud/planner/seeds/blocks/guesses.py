"""Rates all sets of options for the blocks of a pipeline, as if layers could be divided freely; keeps the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound.bounds import least_fixed_s
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.evaluate.pareto import behind, near, unbeaten
from sailor_cloud.planner.patterns.node_patterns import MAX_STAGES
from sailor_cloud.planner.patterns.option import Option
from sailor_cloud.planner.seeds.blocks.measures import Measures
from sailor_cloud.planner.seeds.blocks.options import options_of
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import startup_s
from sailor_cloud.simulator.money import lost_fraction

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# For trades of money and time, a set is kept if no other one beats it by this factor in both.
_NEARLY = 1.1
# The approximate share of the backward pass in a stage's compute.
_BACKWARD = 2.0 / 3.0
# The numbers of sets of one unit, of two, ... that are extended by one more.
_EXTENDED = (40, 20, 10, 0)
# The factor on these numbers if no set has memory for the whole model: the quality of such sets depends on the other
# units.
_MORE_SHORT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Blocks for `replicas` pipelines with estimates: `usd` of an iteration, nodes with `usd_per_hour`."""

    value: float
    iteration_s: float
    usd: float
    usd_per_hour: float
    size: int
    replicas: int
    options: tuple[Option, ...]

    @property
    def nodes(self) -> tuple[tuple[int, int, int], ...]:
        """The number of nodes: for each unit its first pool, its number of pools, and the number of nodes."""
        return tuple(
            sorted((each.unit.pools[0], len(each.unit.pools), each.nodes_each * each.blocks) for each in self.options)
        )


# This many times the sets to keep are rated again, with whole layers. The factors are those by which stages may then
# take longer.
_CLOSER = 6
_LONGER = np.array([1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6, 1.75, 2.0, 2.5])


@dataclass(frozen=True, slots=True)
class _Sets:
    """Sets of options: members [sets, units] index the options. crossed: zone borders that a pipeline crosses."""

    members: Ints
    measures: Measures
    crossed: Floats

    def __getitem__(self, chosen: Ints) -> _Sets:
        return _Sets(self.members[chosen], self.measures[chosen], self.crossed[chosen])


@dataclass(frozen=True, slots=True)
class _Rating:
    """`short`: the share of the layers without memory, infinite if there are too many stages."""

    value: Floats
    seconds: Floats
    usd: Floats
    usd_per_hour: Floats
    short: Floats


class Guesser:
    """Rates sets of options for one target."""

    def __init__(self, space: Space, target: Target) -> None:
        self.space, self.target = space, target
        self.options = options_of(space)
        providers = {pool.offer.provider for pool in space.pools}
        self.restart_s = min(startup_s(provider) for provider in providers)
        self.fixed_s = least_fixed_s(space)
        most = space.scenario.job.constraints.max_nodes
        self.max_nodes = np.inf if most is None else float(most)
        self.crossing_usd = _crossing_usd(space)
        self.rated = 0

    def best(self, size: int, replicas: int, *, keep: int, trades: bool = False) -> list[Guess]:
        """Return the best sets of blocks for `replicas` pipelines at a microbatch size, best first.

        `trades`: return instead the sets that no other one beats by far in both time and money, either of an iteration
        or of the nodes per hour.
        """
        found = self.options.of(size, replicas)
        if found is None:
            return []
        options, measures = found
        found_at: list[tuple[float, _Sets, _Rating, int]] = []
        # Egress is added over options weighted by speed, which determines how many layers an option has.
        weighed = measures.having(sum_usd=measures.sum_usd * measures.speed)
        sets = _Sets(np.arange(len(weighed))[:, None], weighed, np.zeros(len(weighed)))
        for extended in _EXTENDED:
            self.space.known.deadline.check()
            rating = self._rated(sets, size, replicas, weighed)
            self.rated += len(sets.members)
            near = sets[_nearly_unbeaten(rating, _CLOSER * keep) if trades else _first(rating.value, _CLOSER * keep)]
            closer = self._rated(near, size, replicas, weighed, whole=True)
            kept = _nearly_unbeaten(closer, keep) if trades else _first(closer.value, keep)
            found_at += [(float(closer.value[index]), near, closer, int(index)) for index in kept]
            # Sets that break a limit may keep it with more devices; sets without enough memory may have it with others.
            order = np.where(np.isfinite(rating.value), rating.value, 1e30 + rating.seconds)
            order = np.where(rating.short > 0.0, 1e60 * (1.0 + rating.short), order)
            most = extended * (1 if (rating.short == 0.0).any() else _MORE_SHORT)
            sets = _extended(sets[_first(order, most)], weighed)
            if not len(sets.members):
                break
        first = sorted(found_at, key=lambda entry: entry[0])[: None if trades else keep]
        return [self._guess(sets, rating, index, options, size, replicas) for _, sets, rating, index in first]

    def _guess(
        self, sets: _Sets, rating: _Rating, index: int, options: Sequence[Option], size: int, replicas: int
    ) -> Guess:
        return Guess(
            value=float(rating.value[index]),
            iteration_s=float(rating.seconds[index]),
            usd=float(rating.usd[index]),
            usd_per_hour=float(rating.usd_per_hour[index]),
            size=size,
            replicas=replicas,
            options=tuple(options[member] for member in sets.members[index].tolist()),
        )

    def _rated(self, sets: _Sets, size: int, replicas: int, options: Measures, *, whole: bool = False) -> _Rating:
        """Rate sets with layers divided by speed, or evenly; some stage holds the longest layer.

        `options`: the measures of all. `whole`: stages hold whole layers.
        """
        all_of, between = sets.measures, sets.members.shape[1] - 1
        room, each = all_of.room, 1.0 / all_of.speed
        if self.space.even_layers:
            # The slowest stage holds as many layers as the others, and so does the one with least memory.
            room = all_of.stages * (options.room / options.stages)[sets.members].min(axis=1)
            most = np.ceil(self.space.layers / all_of.stages) / self.space.layers
            each = most * (options.stages / options.speed)[sets.members].max(axis=1)
        short = 1.0 - room + all_of.ends
        short = np.where(all_of.stages <= self.space.layers, np.where(short > TIE, short, 0.0), np.inf)
        fits = short == 0.0
        each = np.maximum(each, all_of.layer_s)
        if whole and not self.space.even_layers:
            each = self._in_layers(each, sets.members, options)
        # Every device of the larger tp receives the whole tensor, from as many devices as the smaller tp has.
        joint = np.where(sets.crossed > 0, all_of.far_s, all_of.out_s) * (between > 0)
        joint = joint * all_of.tp_most / all_of.tp_least
        cuts = all_of.cut_s + joint * between
        longest = np.maximum(all_of.longest_s, joint)
        sums = np.maximum(each * all_of.sum_s, all_of.large_s)
        if self.space.scenario.engine.overlap_sync:
            # The all-reduce overlaps at least the stage's last backward pass.
            sums = np.maximum(sums - _BACKWARD * each, 0.0)
        sums = sums + np.where(all_of.nodes > 1, all_of.tied_s, 0.0)
        microbatches = -(-self.space.batch // size // replicas)
        # Stages next to a slow cut get fewer layers, but at least one.
        paced = np.maximum(each + cuts / all_of.stages, longest / 2.0 + np.where(longest > 0, all_of.block_s, 0.0))
        seconds = (microbatches - 1) * paced + all_of.stages * each + cuts + sums
        egress = sets.crossed * self.crossing_usd + all_of.sum_usd / all_of.speed
        figures = self._bill(all_of).figures(seconds, egress)
        value = np.where(fits & (all_of.nodes <= self.max_nodes), self.target.near_value(figures), np.inf)
        seconds = np.where(fits, seconds, np.inf)
        return _Rating(value, seconds, figures[Figure.USD_PER_ITERATION], all_of.usd_per_hour, short)

    def _in_layers(self, seconds: Floats, members: Ints, options: Measures) -> Floats:
        """Return roughly the least seconds, starting with those given, in which all stages compute whole layers each.

        members: [sets, units] of the options. The stage that is fastest on the longest layer, the head, holds it and as
        many others as it can.
        """
        if not len(seconds):
            return seconds
        wanted = self.space.layers - 2
        stages, layer_s, block_s = options.stages[members], options.layer_s[members], options.block_s[members]
        best = np.arange(len(members)), np.argmin(layer_s, axis=1)
        head_s, middle_s = layer_s[best], block_s[best]
        each = np.maximum(seconds * _LONGER[:, None], head_s)
        held = (stages * np.floor(each[..., None] / block_s + 1e-6)).sum(axis=2)
        held += np.floor((each - head_s) / middle_s + 1e-6) - np.floor(each / middle_s + 1e-6)
        enough = held >= wanted
        first = each[np.argmax(enough, axis=0), best[0]]
        return np.asarray(np.where(enough.any(axis=0), first, seconds * _LONGER[-1]))

    def _bill(self, measures: Measures) -> Bill:
        """Return the bill of sets of options, with the least that their nodes can cost."""
        lost = lost_fraction(
            measures.lost_per_hour,
            interval_s=self.space.scenario.job.checkpoint.every,
            checkpoint_s=0.0,
            restart_s=self.restart_s,
        )
        return Bill(
            steps=self.space.scenario.job.training.steps,
            nodes=measures.nodes,
            usd_per_hour=measures.usd_per_hour,
            lost=lost,
            fixed_s=self.fixed_s,
        )


def _extended(sets: _Sets, options: Measures) -> _Sets:
    """Return all sets with one more option of unused rows, without duplicates."""
    before = sets.measures
    stages = before.stages[:, None] + options.stages[None]
    row, option = np.nonzero(((before.rows[:, None] & options.rows[None]) == 0) & (stages <= MAX_STAGES))
    members = np.sort(np.hstack([sets.members[row], option[:, None]]), axis=1)
    numbers = members @ (len(options) ** np.arange(members.shape[1], dtype=np.int64))
    once = np.unique(numbers, return_index=True)[1]
    row, option = row[once], option[once]
    one, other = before[row], options[option]
    apart = (one.zones & other.zones) == 0
    partly = ~apart & (one.zones != other.zones)
    return _Sets(members[once], one.and_(other), sets.crossed[row] + apart + 0.5 * partly)


def _crossing_usd(space: Space) -> float:
    """Return the least egress of an iteration's tensors over a cut between two zones."""
    zones = {pool.offer.zone: number for number, pool in enumerate(space.pools)}
    prices = [space.usd_per_byte(a, b) + space.usd_per_byte(b, a) for a, b in combinations(zones.values(), 2)]
    tensor = space.table(0, 1, 1).boundary_bytes
    return min(prices, default=0.0) * float(tensor.max()) * space.batch


def _nearly_unbeaten(rating: _Rating, count: int) -> Ints:
    """Return the indices of sets that no other one beats by far in both time and money, without duplicates.

    For either sort of money, of an iteration and of the nodes per hour, the `count` best sets, best first.
    """
    finite = np.flatnonzero(np.isfinite(rating.value))
    seconds = rating.seconds[finite]
    found: dict[int, None] = {}
    for usd in (rating.usd[finite], rating.usd_per_hour[finite]):
        front = unbeaten(seconds, usd)
        kept = np.flatnonzero(near(seconds, usd, front, _NEARLY))
        far = behind(seconds, usd, front, kept)
        found |= dict.fromkeys(finite[kept[np.lexsort((seconds[kept], far))[:count]]].tolist())
    return np.array(list(found), dtype=np.int64)


def _first(values: Floats, count: int) -> Ints:
    """Return the indices of the smallest finite values in ascending order; ties keep their order."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    among = np.arange(len(values))
    if count < len(values):
        among = np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])
    order = among[np.argsort(values[among], kind="stable")[:count]]
    return np.asarray(order[np.isfinite(values[order])])
