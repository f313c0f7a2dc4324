"""Searches a space for a target, and checks the results under the replay."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound.bounds import goal_bound
from sailor_cloud.planner.enumeration import exhaustive
from sailor_cloud.planner.enumeration.combinations import is_crowded
from sailor_cloud.planner.evaluate.assess import Assessor, shapes_of
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement import improved
from sailor_cloud.planner.improvement.choice import Chosen, best_that_holds, first_that_holds
from sailor_cloud.planner.improvement.restricted import even_drafts, even_space
from sailor_cloud.planner.space.answer import Answer
from sailor_cloud.planner.space.draft import Draft, in_space, near, to_plan
from sailor_cloud.planner.space.effort import NORMAL, Effort
from sailor_cloud.planner.space.goals import NEAR, NEARLY, Figure, Target
from sailor_cloud.planner.space.restrictions import EVEN, Restriction, also_fits, variants, zero_stages
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, evaluate

Floats = NDArray[np.float64]

# The number of drafts kept for the check under the replay; the best that keeps the constraints there is the answer.
KEPT_DRAFTS = 16
# How often a search is repeated with tightened limits, and how much more than the replay's excess they are tightened.
REPEATS = 3
TIGHTER = 1.0005
# The number of plans from other searches that are replayed before the search for a target fails.
_MOST_TRIED = 32
# A plan with the least of one of these nearly has the least of both: preemption and start-up differ little.
_TIMES = frozenset(figure for figure in Figure if figure.is_time)
# Plans that are tried without ZeRO-1, and the progress at which plans are improved. With 32 plans, the plan of 80 A100
# and 240 V100 is 1.7 % slower.
_UNSHARDED, _SEARCHED = 256, 0.7
# The most homogeneous plans that are starts of the local search, at each ZeRO stage.
_SIMPLE = 24
# The plans of equal pipelines that start a local search, and its relative depth: each is simulated completely.
_UNIFORM, _SHALLOW = 3, 0.5
# The share of the progress bar that is left for what may follow a search.
_REST = 0.2


def solve(
    space: Space,
    target: Target,
    restrictions: Collection[Restriction] = (),
    effort: Effort = NORMAL,
    *,
    known: float = math.inf,
) -> Answer:
    """Return the best drafts for a target over the parts of a space; each draft belongs to the space that it names.

    `known`: the goal's value of a known plan; drafts may be missing if none is better.
    """
    if space.scenario.engine.uniform:
        return _uniform(space, target, restrictions, effort)
    if EVEN & set(restrictions):
        return _even(space, target, restrictions, effort, known)
    parts = variants(space, restrictions)
    answers = _answers(parts, target, effort.between(0.0, _SEARCHED), known)
    drafts = [in_space(draft, part, space) for part, answer in answers for draft in answer.drafts]
    exhausted = all(answer.exhausted for _, answer in answers)
    simple = [] if exhausted else _simple(space, target)
    if not (exhausted or simple):
        # Few jobs need its module.
        from sailor_cloud.planner.seeds.fitting import fitting

        simple = fitting(space, target)
    better = _improved(space, target, answers, simple, effort.between(_SEARCHED, 1.0))
    assessor = Assessor(space, target)
    every = {draft.order(): draft for draft in (*drafts, *filter(assessor.keeps, better))}
    bounds = [answer.bound for _, answer in answers]
    return Answer(
        drafts=tuple(every[order] for order in sorted(every)[:KEPT_DRAFTS]),
        bound=min((bound for bound in bounds if bound is not None), default=None),
        others=(*better, *(in_space(draft, part, space) for part, answer in answers for draft in answer.others)),
        exhausted=exhausted,
    )


def _simple(space: Space, target: Target) -> list[Draft]:
    """Return the best homogeneous plans at every ZeRO stage of a space."""
    # Small jobs need none of its modules.
    from sailor_cloud.planner.seeds.homogeneous import homogeneous

    found = []
    assessors = {stage: Assessor(space.at(stage), target) for stage in zero_stages(space)}
    rank = Assessor(space, target).rank
    for draft in sorted(homogeneous(space, target), key=lambda draft: near(rank(draft)))[:_SIMPLE]:
        for stage, assessor in assessors.items():
            made = draft if draft.zero_stage == stage else assessor.draft(shapes_of(draft))
            if made is not None:
                found.append(replace(made, zero_stage=stage, goal=target.goal))
    return found


def _improved(
    space: Space,
    target: Target,
    answers: Sequence[tuple[Space, Answer]],
    simple: Sequence[Draft],
    effort: Effort,
) -> list[Draft]:
    """Return the drafts of large parts, and simple ones, after local search over all ZeRO stages of a part."""
    by_pools: dict[tuple[int, ...], list[tuple[Space, Answer]]] = {}
    for part, answer in answers:
        if not answer.exhausted:
            by_pools.setdefault(part.numbers, []).append((part, answer))
    found: list[Draft] = []
    for number, those in enumerate(by_pools.values()):
        there = those[0][0].at(space.zero_stage)
        drafts = [
            replace(draft, zero_stage=max(part.zero_stage, draft.zero_stage), goal=target.goal)
            for part, answer in those
            for draft in (*answer.drafts, *answer.others)
        ]
        kept = set(there.numbers)
        drafts += [in_space(draft, space, there) for draft in simple if {space.numbers[n] for n in draft.pools} <= kept]
        own = effort.between(number / len(by_pools), (number + 1) / len(by_pools))
        found += [in_space(draft, there, space) for draft in improved(there, target, drafts, own, most=effort.refined)]
    return found


def _uniform(space: Space, target: Target, restrictions: Collection[Restriction], effort: Effort) -> Answer:
    """Search for engines that only run equal pipelines, which have even batches.

    The search places stages on one type of nodes per accelerator and zone; a local search also moves them elsewhere.
    """
    from sailor_cloud.planner.uniform import uniform_drafts

    drafts: dict[tuple[object, ...], Draft] = {}
    for part in variants(even_space(space, restrictions), restrictions):
        found = uniform_drafts(part, target, effort)[:KEPT_DRAFTS]
        if space.scenario.engine.formulas is None:
            found += improved(
                part, target, found, replace(effort.quiet(), depth=_SHALLOW * effort.depth), most=_UNIFORM
            )
        drafts |= {draft.order(): draft for draft in (in_space(draft, part, space) for draft in found)}
    best = [drafts[order] for order in sorted(drafts)]
    return Answer(drafts=tuple(best[:KEPT_DRAFTS]), bound=None, others=tuple(best[KEPT_DRAFTS:]))


def _even(space: Space, target: Target, restrictions: Collection[Restriction], effort: Effort, known: float) -> Answer:
    """Search a space of even batches or even layers; the best plans without that restriction are also a start."""
    free = [restriction for restriction in restrictions if restriction not in EVEN]
    answer = solve(even_space(space, restrictions), target, free, effort.between(0.0, 0.5), known=known)
    if answer.exhausted or not effort.bounded:
        return answer
    uneven = solve(space, target, free, effort.between(0.5, 0.9))
    near = even_drafts(space, target, [*uneven.drafts, *uneven.others], restrictions, effort.between(0.9, 1.0))
    every = {draft.order(): draft for draft in (*answer.drafts, *_within(space, target, near))}
    drafts = tuple(every[order] for order in sorted(every)[:KEPT_DRAFTS])
    return replace(answer, drafts=drafts, others=(*answer.others, *near))


def _answers(parts: Sequence[Space], target: Target, effort: Effort, known: float) -> list[tuple[Space, Answer]]:
    answers: list[tuple[Space, Answer]] = []
    for number, part in enumerate(parts):
        own = effort.between(number / len(parts), (number + 1) / len(parts))
        sharded = _sharded(part, *answers[-1]) if answers else None
        answers.append((part, _solve_part(part, target, own, known, sharded)))
    return answers


def _sharded(space: Space, before: Space, answer: Answer) -> Answer | None:
    """Return the answer of the space before if that is the same with ZeRO-1, and every plan also fits with it."""
    alike = before.pools == space.pools and not answer.exhausted
    return answer if alike and also_fits(space, before) else None


def _solve_part(space: Space, target: Target, effort: Effort, known: float, sharded: Answer | None = None) -> Answer:
    """Enumerate all plans if they are few, else mix pipelines.

    `sharded`: the answer of the same space with ZeRO-1, if every plan also fits with it.
    """
    layouts = exhaustive.small_layouts(space)
    if layouts is not None and space.even_batches:
        even = exhaustive.of_even_batches(space, target, layouts)
        if even is not None:
            kept = sorted(filter(Assessor(space, target).keeps, even), key=Draft.order)[:KEPT_DRAFTS]
            bounded = goal_bound(space, target, close=effort.bounded)
            return Answer(drafts=tuple(kept), bound=bounded, others=tuple(even), exhausted=True)
    if layouts is None or space.even_batches:
        if sharded is not None:
            return _unsharded(space, target, sharded, effort)
        # Small jobs need none of its modules.
        from sailor_cloud.planner.seeds.mixed import mix

        return mix(space, target, keep=KEPT_DRAFTS, effort=effort, known=known)
    found = exhaustive.exhaust(space, target, layouts, keep=KEPT_DRAFTS, effort=effort, known=known)
    bound = found.bound if math.isfinite(found.bound) else None
    return Answer(drafts=found.drafts, bound=bound, others=(*found.drafts, *found.others), exhausted=found.complete)


def enumerated(space: Space, target: Target, known: float) -> Answer | None:
    """Return the bound of all plans, and plans better than `known`; None if there are too many even for a proof.

    Raises OutOfTimeError.
    """
    found = []
    for part in variants(space, ()):
        layouts = exhaustive.small_layouts(part, exhaustive.MAX_PROOF_FIGURES)
        if layouts is None:
            return None
        replays = exhaustive.MAX_PROOF_REPLAYED
        answer = exhaustive.exhaust(part, target, layouts, keep=KEPT_DRAFTS, known=known, replays=replays)
        found.append((answer.bound, [in_space(draft, part, space) for draft in answer.drafts]))
    return Answer(
        drafts=tuple(draft for _, drafts in found for draft in drafts), bound=min(bound for bound, _ in found)
    )


def _unsharded(space: Space, target: Target, sharded: Answer, effort: Effort) -> Answer:
    """Return the best plans of an answer with ZeRO-1, changed to none, with the bound of all such plans."""
    assessor = Assessor(space, target)
    every = {draft.order(): draft for draft in (*sharded.drafts, *sharded.others)}
    best = [every[order] for order in sorted(every)[:_UNSHARDED]]
    found = [draft for draft in (assessor.draft(shapes_of(draft)) for draft in best) if draft is not None]
    kept = sorted(filter(assessor.keeps, found), key=Draft.order)[:KEPT_DRAFTS]
    bound = goal_bound(space, target, close=effort.bounded)
    return Answer(drafts=tuple(kept), bound=bound, others=tuple(found))


@dataclass(slots=True)
class Searched:
    """Caches finished searches, since the search for reasons of infeasibility repeats them."""

    restrictions: frozenset[Restriction] = frozenset()
    effort: Effort = NORMAL
    known: list[tuple[Space, Target, Answer]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share to report as done. Most jobs need one search; the number of further ones is unknown."""
        return 1.0 - _REST ** len(self.known)

    def answer(self, space: Space, target: Target) -> Answer:
        """Return the plans that keep all limits, best first, with the bound.

        Their order is by the closed form, or by the replay if all plans were enumerated.

        The search ignores limits on the minimised figure, since they do not change which plan is best. So the result
        does not depend on how tight such a limit is.
        """
        ignored = _TIMES if target.goal.is_time else {target.goal}
        free = self._searched(space, _unlimited(target, ignored))
        own = replace(target, limits=tuple(limit for limit in target.limits if limit.figure is target.goal))
        if free.drafts and Assessor(space, own).keeps(free.drafts[0]) and not _within(space, target, free.drafts[:1]):
            # A limit on the other time may rule out the best plan, but not one that is nearly as good.
            free = self._searched(space, _unlimited(target, {target.goal}))
        return replace(free, drafts=_within(space, target, free.drafts))

    def _searched(self, space: Space, target: Target) -> Answer:
        for known_space, known_target, answer in self.known:
            if known_space is space and known_target == target:
                return answer
        effort = self.effort.between(self.share, 1.0 - _REST ** (len(self.known) + 1))
        self.known.append((space, target, solve(space, target, self.restrictions, effort)))
        return self.known[-1][2]

    def best(self, space: Space, target: Target) -> tuple[Answer, Chosen | None]:
        """Return the answer, and the best plan that keeps the limits under the replay.

        If all plans were enumerated, it is the first one of the answer. Otherwise the best plans are evaluated, and
        simulated in the order of their expected figures until no other can be better.

        The replay is often faster than the closed form, so plans may break limits by the difference. If none of the
        best drafts keeps the limits under the replay, they are tightened by its excess and the search is repeated. Then
        the plans that are best by the limits' own figures are tried, and at last all plans of any search.
        """
        answer = self.answer(space, target)
        tightened, drafts = target, answer.drafts
        # If ranks share cores, the closed form is too imprecise to choose by it alone.
        crowded = any(is_crowded(space, tuple(part.slots for part in draft.pipelines)) for draft in drafts)
        if answer.exhausted and not crowded:
            chosen = first_that_holds(space, target, drafts)
        else:
            assessor = Assessor(space, target)
            near = (draft for draft in (*drafts, *answer.others) if assessor.excess(draft, draft.foreseen) <= NEARLY)
            chosen = best_that_holds(space, target, sorted(near, key=Draft.order))
            chosen = chosen or first_that_holds(space, target, drafts)
        for _ in range(REPEATS):
            if chosen is not None or not drafts:
                break
            tightened = _tightened(target, tightened, drafts[0], evaluate(to_plan(space, drafts[0]), space.scenario))
            drafts = self.answer(space, tightened).drafts
            chosen = first_that_holds(space, target, drafts)
        for limit in target.limits:
            others = replace(target.without(limit.name), goal=limit.figure)
            least = [] if chosen is not None else self.answer(space, others).drafts
            chosen = chosen or first_that_holds(space, target, least)
            if chosen is not None or (least and least[0].figures[limit.figure] > limit.at_most):
                break
        chosen = chosen or self._best_known(space, target)
        return answer, chosen

    def _best_known(self, space: Space, target: Target) -> Chosen | None:
        """Return the best plan under the replay from any search of the same offers; None if none keeps the limits.

        Plans whose figures so far break limits a little are included, since the replay may be faster.
        """
        assessor = Assessor(space, target)
        found: dict[tuple[object, ...], Draft] = {}
        for known, _, answer in self.known:
            if known.numbers == space.numbers and known.known is space.known:
                drafts = [replace(draft, goal=target.goal) for draft in (*answer.drafts, *answer.others)]
                found |= {draft.order(): draft for draft in drafts if assessor.excess(draft, draft.foreseen) <= NEAR}
        nearest = sorted(found.values(), key=lambda draft: (assessor.excess(draft, draft.foreseen), draft.order()))
        tried = sorted(nearest[:_MOST_TRIED], key=Draft.order)
        return best_that_holds(space, target, tried)

    def reachable(self, space: Space, target: Target) -> float | None:
        """Return the goal's value of the best plan under the replay; None if there is no plan."""
        _, chosen = self.best(space, target)
        return None if chosen is None else float(replayed(chosen.draft, chosen.evaluation)[target.goal])


def _unlimited(target: Target, figures: Collection[Figure]) -> Target:
    """Return a target without limits on some figures."""
    return replace(target, limits=tuple(limit for limit in target.limits if limit.figure not in figures))


def _within(space: Space, target: Target, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
    """Return the drafts that keep all limits."""
    return tuple(filter(Assessor(space, target).keeps, drafts))


def _tightened(target: Target, before: Target, draft: Draft, evaluation: Evaluation) -> Target:
    """Return the target with each limit divided by the factor by which the replay's figure of a draft is higher."""
    figures = replayed(draft, evaluation)
    limits = []
    for limit, last in zip(target.limits, before.limits, strict=True):
        excess = max(1.0, float(figures[limit.figure]) / draft.figures[limit.figure] * TIGHTER)
        limits.append(replace(last, at_most=min(last.at_most, limit.at_most / excess)))
    return replace(target, limits=tuple(limits))
