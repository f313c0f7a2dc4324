"""Local search: from good plans to better neighbours, judged by the replay, until none is better or effort runs out.

In a descent the kinds of moves take turns. Kinds that helped get more neighbours, and the first better neighbour is
taken. A descent continues while it gains. From its local optimum it restarts with a few random moves. Everything is
seeded and bounded by counts, so the same input gives the same plan.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random

from sailor_cloud.planner.evaluate.assess import Assessor, shapes_of
from sailor_cloud.planner.evaluate.checkpoints import saving_share
from sailor_cloud.planner.improvement.evaluator import Evaluator, Factors
from sailor_cloud.planner.improvement.moves import Neighbour, Neighbourhood
from sailor_cloud.planner.improvement.sizing import with_balanced_sizes
from sailor_cloud.planner.space.draft import Draft, Rank, in_space, near
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.restrictions import part_of, zero_stages
from sailor_cloud.planner.space.space import Space

# The most neighbours of one kind of moves in a turn, and how many a random neighbour is drawn from.
_MOST_TURNS, _OF_A_KIND = 8, 60
# Restarts: the number of moves, and how much worse than the best plan the start may be; after this many evaluations,
# how much worse than the best plan it may be to continue.
_KICKS, _WORSE = 2, 1.3
_RESTART, _NEAR = 60.0, 1.02
# After a gain of this much a descent has at least this share of its effort left, up to so many times its effort in all.
_GAIN, _LEFT, _LONGEST = 0.002, 0.5, 4.0
# The evaluations in which the best way to keep the limits is looked for.
_MENDED = 60.0
# How much cheaper a plan that is as good must be to be preferred.
_CHEAPER = 0.01
# The last descent may take so many times its effort until no neighbour is better.
_COMPLETE = 6.0
# A plan counts as one more evaluation for each of this many stages, roughly in proportion to the work.
_STAGES = 40
# A neighbour with the ZeRO stage that it is at.
_Staged = tuple[int, Neighbour]

# The number of results that are kept for each draft, the best ones.
_KEPT = 3


# The evaluations of each of the first descents, which stay in the zones of a plan; of those from the best results,
# which do too; and of one from the best plan in all zones. `docs/decisions/planner-search.md` has the loss with fewer.
_FIRST, _BEST, _WHOLE = 80.0, (500.0, 250.0, 250.0, 250.0), 250.0
# With more zones than this, these numbers grow in proportion, since a stage can move to more places.
_FEW_ZONES = 5


def improved(space: Space, target: Target, drafts: Iterable[Draft], effort: Effort, *, most: int) -> list[Draft]:
    """Return drafts with replayed figures, and the best results of local search; all name their ZeRO stage.

    The best draft of each kind descends, at most `most`. Then the best results continue with restarts, first in their
    own zones. At full effort, the best of all descends once more, until it has no better neighbour or effort runs out.
    """
    improver = Improver(space, target)
    known = _evaluated(improver, list({draft.order(): draft for draft in drafts}.values()), effort.between(0.0, 0.1))
    leaders = _leaders(space, improver, known)[:most]
    if not leaders:
        return known
    first = leaders[0]
    improver.factors = improver.evaluator(improver.stage(first)).correction(first)
    zones = len({pool.offer.zone for pool in space.pools})
    found, depth = list(known), effort.depth * max(1.0, zones / _FEW_ZONES)
    for begin, end, efforts, whole in (
        (0.1, 0.4, (_FIRST,) * most, False),
        (0.4, 0.8, _BEST, False),
        (0.8, 1.0, (_WHOLE,), True),
    ):
        for number, (draft, each) in enumerate(zip(leaders, efforts, strict=False)):
            effort.between(begin, end).tell(number / len(efforts))
            own = _own_zones(space, draft)
            if not whole or len(own.pools) < len(space.pools):
                found += _descended(improver, space if whole else own, draft, each * depth)
        leaders = _leaders(space, improver, found)
    last = leaders[0]
    if effort.depth >= 1.0 and improver.rank(last)[0] == 1.0 and last.order() not in improver.optima:
        found += improver.descend(last, _WHOLE * depth, complete=True)
    return found


def _own_zones(space: Space, draft: Draft) -> Space:
    """Return the space over the zones of a draft, in which fewer moves lead sooner to a better plan."""
    zones = {space.pools[pool].offer.zone for pool in draft.pools}
    return part_of(space, {pool.accelerator.name for pool in space.pools}, zones)


def _descended(improver: Improver, there: Space, draft: Draft, effort: float) -> list[Draft]:
    """Return the results of descents from a draft in a part of the space."""
    space = improver.space
    if len(there.pools) == len(space.pools):
        return improver.descend(draft, effort)
    found = Improver(there, improver.target, improver.factors).descend(in_space(draft, space, there), effort)
    return [in_space(each, there, space) for each in found]


def evaluated(space: Space, target: Target, drafts: Sequence[Draft], effort: Effort) -> list[Draft]:
    """Return drafts with their figures under the replay, in their order."""
    return _evaluated(Improver(space, target), drafts, effort)


def _evaluated(improver: Improver, drafts: Sequence[Draft], effort: Effort) -> list[Draft]:
    found = []
    for number, draft in enumerate(drafts):
        effort.tell(number / len(drafts))
        found.append(improver.expected(draft))
    return found


def _leaders(space: Space, improver: Improver, drafts: Sequence[Draft]) -> list[Draft]:
    """Return the best draft of each kind, taken in turn from two orders.

    In the first order, drafts that keep limits or break them least come first. The second order is `near`: drafts that
    break limits may lead to better plans, or to none that keeps the limits.
    """
    kinds: dict[tuple[object, ...], Draft] = {}
    for draft in sorted(drafts, key=lambda draft: near(improver.rank(draft))):
        kinds.setdefault(_kind(space, draft), draft)
    first = list(kinds.values())
    ranked = sorted(first, key=improver.rank)
    ordered = (draft for pair in zip(ranked, first, strict=True) for draft in pair)
    return list({draft.order(): draft for draft in ordered}.values())


def _kind(space: Space, draft: Draft) -> tuple[object, ...]:
    """Return the common properties of drafts that differ only in cuts, microbatches and offers."""
    offers = [space.pools[pool].offer for pool in draft.pools]
    lengths = frozenset(len(part.slots) for part in draft.pipelines)
    accelerators, zones = {offer.accelerator for offer in offers}, {offer.zone for offer in offers}
    return frozenset(accelerators), len(zones), lengths, len(draft.pipelines)


@dataclass(slots=True)
class Improver:
    """Descents in one space; `factors` as in `Evaluator`."""

    space: Space
    target: Target
    factors: Factors = field(default_factory=dict)
    # The orders of drafts that have no better neighbour.
    optima: set[tuple[object, ...]] = field(default_factory=set)
    _evaluators: dict[int, Evaluator] = field(default_factory=dict)
    _neighbourhoods: dict[int, Neighbourhood] = field(default_factory=dict)

    def evaluator(self, stage: int) -> Evaluator:
        """Return the evaluator of plans at a ZeRO stage."""
        if stage not in self._evaluators:
            space = self.space.at(stage)
            self._evaluators[stage] = Evaluator(Assessor(space, self.target), self.factors)
            self._neighbourhoods[stage] = Neighbourhood(space)
        return self._evaluators[stage]

    def stage(self, draft: Draft) -> int:
        return max(self.space.zero_stage, draft.zero_stage)

    def expected(self, draft: Draft) -> Draft:
        """Return a draft with its figures under the replay."""
        return self.evaluator(self.stage(draft)).expected(draft)

    def rank(self, draft: Draft) -> Rank:
        """Return the sort key of drafts: first the factor by which limits are exceeded, then the goal."""
        return self.evaluator(self.stage(draft)).rank(draft)

    def descend(self, start: Draft, effort: float, *, complete: bool = False) -> list[Draft]:
        """Return the best drafts that keep all limits and that descents from one draft reach, best first.

        `effort`: the number of evaluations, more if they still gain; large plans count more. `complete`: the first
        descent ends when no neighbour is better, or after `_COMPLETE` times as many.
        """
        return _Descent(self, effort).run(self.expected(start), complete=complete)

    def made(self, neighbour: Neighbour, stage: int, better_than: Draft | None = None) -> Draft | None:
        """Return the draft of a neighbour with its figures; None if it does not fit or can't beat `better_than`."""
        evaluator, below_s = self.evaluator(stage), math.inf
        assessor, timed = evaluator.assessor, self.target.goal.is_time
        if better_than is not None and timed and self.rank(better_than)[0] == 1.0:
            below_s = better_than.foreseen[Figure.ITERATION_S]
            if self.target.goal is Figure.DURATION_S:
                first = better_than.pipelines[0]
                # Slower iterations with shorter stalls for checkpoints may make a shorter run.
                below_s *= 1.0 + saving_share(self.space, first.slots, first.cut)
        count = neighbour.microbatches
        if count is None:
            draft = assessor.draft(neighbour.shapes, below_s=below_s)
        else:
            draft = with_balanced_sizes(assessor, neighbour.shapes, count, below_s=below_s)
        return None if draft is None else evaluator.expected(replace(draft, zero_stage=stage))


@dataclass(slots=True)
class _Descent:
    improver: Improver
    effort: float
    found: list[Draft] = field(default_factory=list)
    spent: float = 0.0
    until: float = math.inf
    # How many evaluations it may take by now, and the excess over limits and the goal at the last gain.
    most: float = field(init=False)
    reached: tuple[float, float] = (math.inf, math.inf)
    random: Random = field(default_factory=lambda: Random(0))
    _seen: set[tuple[int, tuple[object, ...]]] = field(default_factory=set)
    # The number of neighbours of each kind in a turn; more for kinds that helped.
    _turns: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: 1))

    def __post_init__(self) -> None:
        self.most = self.effort

    def run(self, start: Draft, *, complete: bool) -> list[Draft]:
        self._gained(start)
        if complete:
            self.most = _COMPLETE * self.effort
        best = current = self._down(start)
        if complete:
            self.most = self.effort
        rank = self.improver.rank
        swaps = self._swapped(current)
        while not self._over():
            kicked = next(swaps, None) or self._kicked(current)
            if kicked is None:
                break
            self.until = self.spent + _RESTART
            current = self._down(kicked)
            if self._value(current) <= self._value(best) * _NEAR:
                self.until = math.inf
                current = self._down(current)
            self.until = math.inf
            if rank(current) < rank(best):
                best = current
            elif self._value(current) > self._value(best) * _NEAR:
                current = best
        kept = {draft.order(): draft for draft in self.found if rank(draft)[0] == 1.0}
        return sorted(kept.values(), key=rank)[:_KEPT]

    def _value(self, draft: Draft) -> float:
        excess, (value, _) = self.improver.rank(draft)
        return excess * float(value)

    def _over(self) -> bool:
        return self.spent >= min(self.most, self.until)

    def _down(self, current: Draft) -> Draft:
        """Return the local optimum from a draft. Kinds of moves take turns until none has a better neighbour."""
        better: Draft | None = current
        while better is not None:
            current, better = better, self._better(better)
            if better is not None:
                self.found.append(better)
                if self._gained(better):
                    self.most = max(self.most, min(self.spent + _LEFT * self.effort, _LONGEST * self.effort))
        return current

    def _gained(self, draft: Draft) -> bool:
        """Return whether a draft is much better than the last one that was: in its limits, or else in the goal."""
        excess, (value, _) = self.improver.rank(draft)
        before = self.reached
        gained = (
            excess < before[0] * (1.0 - _GAIN)
            or excess == 1.0 < before[0]
            or (excess == before[0] and float(value) < before[1] * (1.0 - _GAIN))
        )
        if gained:
            self.reached = excess, float(value)
        return gained

    def _better(self, current: Draft) -> Draft | None:
        """Return a better neighbour; None if there is none or the effort is spent.

        It is the first one found. For a draft that breaks limits, it is the best of those found in some evaluations:
        the first one is often a slow plan that keeps the limits with much to spare.
        """
        reached = self.improver.rank(current)
        kinds = dict(enumerate(kind() for kind in self._kinds(current)))
        found: list[Draft] = []
        enough = self.spent + _MENDED
        while kinds and not self._over() and not (found and self.spent > enough):
            for number in sorted(kinds, key=lambda number: -self._turns[number]):
                turn = list(islice(kinds[number], self._turns[number]))
                named = {(stage, neighbour.key()): neighbour for stage, neighbour in turn}
                some = [name for name in named if name not in self._seen]
                for stage, key in some:
                    self._seen.add((stage, key))
                    neighbour = named[stage, key]
                    draft = self._made(stage, neighbour, current)
                    if draft is not None and self._is_better(draft, current, reached):
                        self._turns[number] = min(_MOST_TURNS, 2 * self._turns[number])
                        if reached[0] == 1.0:
                            return draft
                        found.append(draft)
                if not some:
                    # None is left, or all were examined before.
                    self._turns[number] = 1
                if not turn:
                    del kinds[number]
        if not (kinds or found):
            self.improver.optima.add(current.order())
        rank = self.improver.rank
        return min(found, key=lambda draft: (rank(draft)[0] > 1.0, near(rank(draft))), default=None)

    def _is_better(self, draft: Draft, current: Draft, reached: Rank) -> bool:
        """Return whether a draft is better than another one, or as good and cheaper; `reached`: that one's rank."""
        rank = self.improver.rank(draft)
        if rank < reached and not _tied(rank, reached):
            return True
        usd, before = (each.foreseen[Figure.USD_PER_ITERATION] for each in (draft, current))
        return usd < before * (1.0 - _CHEAPER) and _tied(rank, reached) and _tied(reached, rank)

    def _made(self, stage: int, neighbour: Neighbour, current: Draft | None) -> Draft | None:
        self.spent += 0.5 + sum(len(shape.slots) for shape in neighbour.shapes) / _STAGES
        return self.improver.made(neighbour, stage, current)

    def _kinds(self, draft: Draft) -> list[Callable[[], Iterator[_Staged]]]:
        """Return the kinds of moves from a draft, the other ZeRO stage among them."""
        improver, stage = self.improver, self.improver.stage(draft)
        improver.evaluator(stage)
        kinds = [partial(_staged, stage, kind) for kind in improver._neighbourhoods[stage].kinds(draft)]
        # Stages of a single pipeline may share a tied weight.
        shared = len(draft.pipelines) > 1 or len(draft.pipelines[0].slots) > 1
        others = [other for other in zero_stages(improver.space) if other != stage and shared]
        return [*kinds, *(partial(_as_it_is, other, draft) for other in others)]

    def _swapped(self, draft: Draft) -> Iterator[Draft]:
        """Yield a draft with two runs of stages on equal devices exchanged; the layers then need a descent."""
        stage = self.improver.stage(draft)
        limit = draft.foreseen[self.improver.target.goal] * _WORSE
        self.improver.evaluator(stage)
        for neighbour in self.improver._neighbourhoods[stage].exchanged(draft):
            made = self._made(stage, neighbour, None)
            if made is not None and made.foreseen[self.improver.target.goal] <= limit:
                yield made

    def _kicked(self, draft: Draft) -> Draft | None:
        """Return a draft that is some random moves away; None if there is none."""
        current, limit = draft, draft.foreseen[self.improver.target.goal] * _WORSE
        for _ in range(_KICKS):
            # The descent itself adjusts microbatch sizes and single layers.
            kinds = self._kinds(current)[2:]
            for _ in range(len(kinds)):
                some = list(islice(self.random.choice(kinds)(), _OF_A_KIND))
                if not some or self._over():
                    continue
                made = self._made(*self.random.choice(some), None)
                if made is not None and made.foreseen[self.improver.target.goal] <= limit:
                    current = made
                    break
        return None if current is draft else current


def _staged(stage: int, kind: Callable[[], Iterator[Neighbour]]) -> Iterator[_Staged]:
    return ((stage, neighbour) for neighbour in kind())


def _as_it_is(stage: int, draft: Draft) -> Iterator[_Staged]:
    return iter([(stage, Neighbour(shapes_of(draft)))])


def _tied(rank: Rank, other: Rank) -> bool:
    """Return whether two ranks differ only by rounding, in the excess over limits and in the goal."""
    return math.isclose(rank[0], other[0], rel_tol=TIE) and rank[1][0] >= other[1][0] * (1.0 - TIE)
