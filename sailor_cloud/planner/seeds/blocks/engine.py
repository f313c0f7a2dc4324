"""Searches plans of blocks, in which the same stages of several pipelines share a node.

All-reduces are fast inside a node and slow between nodes. If a node's devices hold the same layers for several
pipelines, little data leaves it. All sets of blocks are rated as if layers could be divided freely. The best sets are
cut, placed on nodes in several orders, and judged exactly.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, permutations, takewhile

import numpy as np

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.improvement.sizing import with_balanced_sizes
from sailor_cloud.planner.patterns.layer_cuts import Cutter
from sailor_cloud.planner.patterns.option import Option
from sailor_cloud.planner.seeds.blocks.guesses import Guess, Guesser
from sailor_cloud.planner.seeds.blocks.placing import slots
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.effort import NORMAL, Effort
from sailor_cloud.planner.space.goals import NEAR, Target
from sailor_cloud.planner.space.replica_counts import divisors, replica_counts
from sailor_cloud.planner.space.space import Seat, Space

# A larger microbatch is tried only if it makes a sample faster by this share on some kind of stage.
_FASTER = 0.02
# The number of guesses kept for every microbatch size and number of pipelines.
_KEPT = 12
# The number of orders of the blocks of a pipeline that are tried.
_ORDERS = 6
# The closed form may rate a plan this many times as slow or expensive as the replay does.
_OVERESTIMATE = 1.6
# The error of guesses is up to about this factor, so they are judged up to this factor behind the incumbent.
_SLACK = 1.1
# For plans from the fastest to the cheapest: every number of pipelines up to the first value is tried; the second is
# the number of guesses kept for every microbatch size, number of pipelines and number of units.
_FEW = 24
_KEPT_TRADES = 24
# The number of other sets of accelerators, or of stretches of money as shares of it, whose best guesses are judged
# first.
_LEADERS, _OF_MONEY = 12, 0.2


# A microbatch size and a number of pipelines.
Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rated:
    """The best guesses of a key, and how many sets of blocks were rated for them."""

    guesses: tuple[Guess, ...]
    sets: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The drafts of a guess, and the number of plans judged for them."""

    drafts: tuple[Draft, ...]
    plans: int


@dataclass
class Blocks:
    """One search; `known` is the goal of the best known plan, `found` the ratings so far."""

    space: Space
    target: Target
    effort: Effort = NORMAL
    known: float = np.inf
    judged: int = 0
    found: dict[Key, Rated] = field(default_factory=dict)
    drafts: list[Draft] = field(default_factory=list)
    # The guesses that are not judged yet, best first; None before they are computed.
    _left: deque[Guess] | None = None

    def __post_init__(self) -> None:
        self.assessor = Assessor(self.space, self.target)
        self.cutter = Cutter(self.space)
        self.guesser = Guesser(self.space, self.target)

    def run(self) -> list[Draft]:
        """Return the drafts that keep all limits."""
        while some := self.wanted(1):
            self.enter([self.judge(guess) for guess in some])
        return [draft for draft in self.drafts if self.assessor.keeps(draft)]

    @property
    def nearly_kept(self) -> list[Draft]:
        """The drafts that keep all limits or nearly so, by the closed form or the expected replay."""
        evaluator = Evaluator(self.assessor)
        found = []
        for draft in self.drafts:
            excess = self.assessor.excess(draft)
            if NEAR < excess <= NEAR * _OVERESTIMATE:
                draft = evaluator.expected(draft)
                excess = self.assessor.excess(draft, draft.foreseen)
            if excess <= NEAR:
                found.append(draft)
        return found

    def wanted(self, most: int) -> list[Guess]:
        """Return the next guesses to judge, at most `most`; empty once they are not promising enough."""
        if self._left is None:
            self._left = deque(self._leaders_first(self.guesses()))
        worst = self.known * _SLACK
        while self._left and self._left[0].value >= worst:
            self._left.popleft()
        left = self.effort.judged - self.judged
        # Most of them have two orders.
        some = list(islice(self._left, min(most, -(-left // 2)))) if left > 0 else []
        return list(takewhile(lambda guess: guess.value < worst, some))

    def judge(self, guess: Guess) -> Judged:
        """Return the drafts of a guess, independently of earlier ones."""
        before = self.judged
        drafts = tuple(self.of(guess))
        plans, self.judged = self.judged - before, before
        return Judged(drafts, plans)

    def enter(self, found: Sequence[Judged]) -> None:
        """Add the drafts of the next guesses, in their order."""
        assert self._left is not None, "they were wanted"
        for judged in found:
            self._left.popleft()
            self.judged += judged.plans
            self.drafts += judged.drafts
            kept = [draft.figures[self.target.goal] for draft in judged.drafts if self.assessor.keeps(draft)]
            self.known = min([self.known, *kept])

    def rough(self) -> list[Key]:
        """Return the keys that are always rated."""
        return [key for keys in self._counts().values() for key in keys if self._is_rough(key[1])]

    def many(self) -> list[Key]:
        """Return the keys that are rated for plans from the fastest to the cheapest."""
        return [key for keys in self._counts().values() for key in keys if key[1] <= _FEW or self._is_rough(key[1])]

    def _is_rough(self, count: int) -> bool:
        """Return whether a number of pipelines is always rated: powers of two, or a power of two in each zone."""
        zones = {(pool.offer.provider, pool.offer.zone) for pool in self.space.pools}
        evenly = {1, len(zones), *Counter(provider for provider, _ in zones).values()}
        return any(count % parts == 0 and (count // parts).bit_count() == 1 for parts in evenly)

    def rate(self, key: Key) -> Rated:
        """Return the best guesses of a key, independently of earlier ratings."""
        known = self._known().get(key)
        return self._rated(key, keep=_KEPT) if known is None else known

    def trades(self, key: Key) -> Rated:
        """Return the guesses of a key that no other one beats by far in both time and money."""
        return self._rated(key, keep=_KEPT_TRADES, trades=True)

    def _rated(self, key: Key, *, keep: int, trades: bool = False) -> Rated:
        before = self.guesser.rated
        guesses = self.guesser.best(*key, keep=keep, trades=trades)
        return Rated(tuple(guesses), self.guesser.rated - before)

    def keep(self, key: Key, rated: Rated) -> None:
        """Keep the best guesses of a key, also for later searches of the same space and target."""
        self.found[key] = rated
        if rated.sets:
            self._known()[key] = rated

    def _known(self) -> dict[Key, Rated]:
        known: dict[Target, dict[Key, Rated]] = self.space.remembered.setdefault("rated blocks", {})
        return known.setdefault(self.target, {})

    def _counts(self) -> dict[int, list[Key]]:
        """Return the possible keys by microbatch size."""
        return {
            size: [(size, count) for count, _ in replica_counts(self.space.batch // size, self._devices)]
            for size in _sizes(self.space.batch, _powers(self.space))
        }

    @property
    def _devices(self) -> int:
        return sum(row.devices for row in self.space.candidates.rows)

    def _leaders_first(self, guesses: Sequence[Guess]) -> list[Guess]:
        """Return guesses; with limits, the best of other accelerators, or for far less money, come first.

        Many expensive guesses may all break a limit that others keep.
        """
        leaders: dict[tuple[object, ...], int] = {}
        for number, guess in enumerate(guesses if self.target.limits else ()):
            names = {self.space.pools[pool].accelerator.name for option in guess.options for pool in option.unit.pools}
            stretch = math.floor(math.log(guess.usd) / _OF_MONEY) if guess.usd > 0.0 else -math.inf
            leaders.setdefault((frozenset(names), stretch), number)
        first = dict.fromkeys(sorted(leaders.values())[:_LEADERS])
        others = (guess for number, guess in enumerate(guesses) if number not in first)
        return [*(guesses[number] for number in first), *others]

    def guesses(self) -> list[Guess]:
        """Return the most promising blocks, best first; missing ratings are computed here."""
        for key in self.rough() if not self.found else ():
            self.keep(key, self.rate(key))
        every = (guess for rated in self.found.values() for guess in rated.guesses)
        return sorted(every, key=lambda guess: guess.value)

    def of(self, guess: Guess, *, orders: int = _ORDERS) -> Iterator[Draft]:
        """Yield the drafts of one guess, with its blocks in different orders."""
        microbatches = -(-self.space.batch // guess.size // guess.replicas)
        for order in self._orders(guess.options)[:orders]:
            placed = slots(self.space, order, guess.replicas)
            if placed is None:
                continue
            layout = tuple(placed)
            place = self.assessor.place(layout)
            if place is None:
                continue
            found = self.cutter.cut(place[0], size=guess.size, microbatches=microbatches, replicas=guess.replicas)
            if found is None:
                continue
            cut, _ = found
            self.judged += 1
            shapes = [Shape(slots=row, cut=cut, microbatch_size=guess.size) for row in placed]
            if self.space.batch % guess.size:
                draft = with_balanced_sizes(self.assessor, shapes, microbatches)
            else:
                draft = self.assessor.draft(shapes)
            if draft is not None:
                yield draft

    def _orders(self, options: tuple[Option, ...]) -> list[tuple[Option, ...]]:
        """Return orders of blocks; first those with neighbours in one zone, then those with more memory first."""
        pools = self.space.pools

        def rank(order: tuple[Option, ...]) -> tuple[float, ...]:
            zones = [{pools[pool].offer.zone for pool in option.unit.pools} for option in order]
            crossed = sum(not here & there for here, there in pairwise(zones))
            memory = [-float(pools[option.unit.pools[0]].accelerator.memory_gib) for option in order]
            # A stage for the head of the model is the last one of the pipeline.
            heads = sum(option.head_tp > 0 for option in order[:-1])
            return (float(heads), float(crossed), *memory)

        return sorted(set(permutations(options)), key=lambda order: (rank(order), str(order)))[:_ORDERS]


def _powers(space: Space) -> list[int]:
    """Return the powers of two for microbatch sizes, until samples get no faster on any stage or nothing fits."""
    largest = [
        max(
            (index for index, pool in enumerate(space.pools) if pool.row == row),
            key=lambda index: (space.pools[index].devices, -space.rates[index].expected),
        )
        for row in sorted({pool.row for pool in space.pools})
    ]
    seats = [Seat(pool, tp, 0) for pool in largest for tp in space.tp_degrees[pool]]
    found: list[int] = []
    fastest = np.full(len(seats), np.inf)
    for size in (2**power for power in range(space.batch.bit_length())):
        tables = [space.table(seat.pool, seat.tp, size) for seat in seats]
        each = np.array([float(table.compute_s(0, table.layers)) / size for table in tables])
        slower = bool(found) and (each > fastest * (1.0 - _FASTER)).all()
        fitting = (space.stages_s(seat, size, in_flight=1, replicas=2) for seat in seats)
        if slower or not any(np.isfinite(seconds).any() for seconds in fitting):
            break
        found.append(size)
        fastest = np.minimum(fastest, each)
    return found


def _sizes(batch: int, powers: Sequence[int]) -> list[int]:
    """Return the powers of two that divide a batch, and between two of them one other divisor.

    That divisor leaves the most factors of two in the number of microbatches, since such numbers of pipelines are
    tried.
    """
    found = [power for power in powers if batch % power == 0]
    for power in powers:
        between = [size for size in divisors(batch) if power < size < 2 * power]
        found += sorted(between, key=lambda size: (-(batch // size & -(batch // size)), size))[:1]
    return sorted(found)
