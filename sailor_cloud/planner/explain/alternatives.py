"""Alternatives to the chosen plan: the best plans of smaller spaces, and plans of other kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from sailor_cloud.model.document import Alternative, Rejected
from sailor_cloud.planner.enumeration.exhaustive import small_layouts
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.explain.shortage import NO_PLAN, shortage
from sailor_cloud.planner.improvement import Improver, improved
from sailor_cloud.planner.improvement.choice import Chosen, evaluated_first, first_that_holds
from sailor_cloud.planner.improvement.restricted import even_drafts, is_even
from sailor_cloud.planner.solving import KEPT_DRAFTS, solve
from sailor_cloud.planner.space.draft import Draft, in_space, nodes_of, significant, to_plan
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import TIE, Target
from sailor_cloud.planner.space.restrictions import EVEN, Restriction, part_of
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, evaluate

# A known plan of a smaller space is not improved if its goal is this many times that of the plan.
_HOPELESS = 1.5
# Drafts found for something else that are evaluated for each smaller space.
_MOST_EVALUATED = 3
# Limits on money and time, which an alternative may exceed; its label then says by how much.
_SOFT_LIMITS = ("budget_usd", "deadline", "max_usd_per_hour", "min_throughput", "max_usd_per_iteration")


@dataclass(frozen=True, slots=True)
class _Named:
    """The best plan of a smaller space, with the name of the space."""

    label: str
    draft: Draft
    evaluation: Evaluation
    restrictions: tuple[Restriction, ...]


@dataclass(slots=True)
class Alternatives:
    """Alternatives to one chosen draft, in the order in which reports show them; `seeds` are known drafts."""

    space: Space
    target: Target
    chosen: Draft
    effort: Effort
    seeds: Sequence[Draft] = ()
    named: list[_Named] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    # Smaller spaces that contain the chosen plan.
    _kept: list[tuple[Space, tuple[Restriction, ...]]] = field(default_factory=list)

    @property
    def drafts(self) -> list[Draft]:
        """The drafts of the alternatives."""
        return [named.draft for named in self.named]

    @property
    def found(self) -> tuple[Alternative, ...]:
        """The alternatives as documents have them."""
        return tuple(self._alternative(named) for named in self.named)

    def or_better(self, chosen: Chosen) -> Chosen:
        """Return the chosen plan, or a better one of a smaller space, which a search of the whole space can miss."""
        best = chosen
        for named in self.named:
            figures, least = replayed(named.draft, named.evaluation), replayed(best.draft, best.evaluation)
            if self.target.feasible(figures) and figures[self.target.goal] < least[self.target.goal] * (1.0 - TIE):
                best = Chosen(draft=named.draft, evaluation=named.evaluation)
        return best

    def replace_chosen(self, best: Chosen, before: Chosen) -> Chosen:
        """Replace the chosen plan."""
        self.chosen = best.draft
        # A smaller space with the new plan is no alternative to it; one with only the previous plan is.
        self.named = [named for named in self.named if not named.restrictions or not self._contains_chosen(named)]
        for part, restrictions in self._kept:
            if not self._keeps(restrictions, part):
                label = self._labelled(before.draft, restrictions)
                self._enter(_Named(label, before.draft, before.evaluation, restrictions))
        return best

    def restricted(self, restrictions: Sequence[tuple[Restriction, ...]]) -> None:
        """Add the best plan of each smaller space that does not contain the chosen plan.

        Each accelerator is a space by itself. If no plan keeps the limits, add the best one that exceeds limits on
        money or time. If there is none either, add what the model needs and what is allowed, if that explains it. Known
        plans of small problems are only improved a little, since separate searches would take longer than that of the
        plan.
        """
        every = [(part, chosen) for chosen in restrictions for part in self._parts(chosen)]
        wanted = [(part, chosen) for part, chosen in every if not self._keeps(chosen, part)]
        self._kept = [(part, chosen) for part, chosen in every if self._keeps(chosen, part)]
        for number, entry in enumerate(wanted):
            self._enter(self._best_of(*entry, self.effort.between(number / len(wanted), (number + 1) / len(wanted))))

    def update(self, drafts: Sequence[Draft]) -> None:
        """Replace the plan of each smaller space by a better one that was found for something else.

        It may be another alternative or one of the drafts, of which the first few in each space are evaluated.
        """
        assessor = Assessor(self.space, self.target)
        reaching = [draft for draft in drafts if _reaches(assessor, draft)]
        ordered = sorted(reaching, key=lambda draft: (significant(draft.foreseen[self.target.goal]), draft.order()))
        self.named = [self._best_known(named, ordered) if named.restrictions else named for named in self.named]

    def _best_known(self, named: _Named, ordered: Iterable[Draft]) -> _Named:
        part, restrictions = self._part_of(named), named.restrictions
        known = [Chosen(draft=other.draft, evaluation=other.evaluation) for other in (named, *self.named)]
        first = islice((draft for draft in ordered if self._lies_in(draft, restrictions, part)), _MOST_EVALUATED)
        known += [held for draft in first if (held := first_that_holds(self.space, self.target, [draft])) is not None]
        inside = [chosen for chosen in known if self._lies_in(chosen.draft, restrictions, part)]
        best = min(inside, key=self._rank)
        return _Named(self._labelled(best.draft, restrictions), best.draft, best.evaluation, restrictions)

    def _rank(self, chosen: Chosen) -> tuple[bool, float]:
        figures = replayed(chosen.draft, chosen.evaluation)
        return not self.target.feasible(figures), float(figures[self.target.goal])

    def _parts(self, restrictions: tuple[Restriction, ...]) -> list[Space]:
        names = sorted({pool.accelerator.name for pool in self.space.pools})
        if Restriction.ONE_ACCELERATOR not in restrictions or len(names) == 1:
            return [self.space]
        zones = {pool.offer.zone for pool in self.space.pools}
        return [part_of(self.space, {name}, zones) for name in names]

    def _best_of(self, part: Space, restrictions: tuple[Restriction, ...], effort: Effort) -> _Named | Rejected:
        loose = replace(
            self.target, limits=tuple(limit for limit in self.target.limits if limit.name not in _SOFT_LIMITS)
        )
        targets = [self.target] if loose == self.target else [self.target, loose]
        # A small space is enumerated; its best plan by the closed form is the answer.
        small = small_layouts(self.space) is not None
        near = _is_even_restriction(restrictions) and not small
        for number, target in enumerate(targets):
            lighter = effort.lighter().between(number / len(targets), (number + 1) / len(targets))
            assessor = Assessor(self.space, target)
            if near:
                known = self._seeds(part, restrictions)
                if target is not self.target:
                    # All known plans were found under limits that no plan of this space keeps.
                    known += self._improved(part, target, [each for each in restrictions if each not in EVEN], lighter)
                # Moves within the whole space would leave the part.
                inside = [in_space(each, self.space, part) for each in known]
                made = even_drafts(part, target, inside, restrictions, lighter)
                every = [in_space(each, part, self.space) for each in made]
            elif small:
                every = self._searched(part, target, restrictions, lighter)
            else:
                every = self._improved(part, target, restrictions, lighter)
            ordered = sorted(every, key=Draft.order)
            if not small:
                ordered = evaluated_first(Improver(self.space, target), ordered, most=KEPT_DRAFTS)
            reaching = [draft for draft in ordered if _reaches(assessor, draft)]
            held = first_that_holds(self.space, target, reaching[:KEPT_DRAFTS])
            if held is not None:
                label = self._labelled(held.draft, restrictions)
                return _Named(label, held.draft, held.evaluation, restrictions)
        one_zone = Restriction.ONE_ZONE in restrictions
        why = shortage(part, one_zone=one_zone)
        if near and why == NO_PLAN:
            why = f"none found near the plan; {_option(restrictions)} searches for one"
        return _rejected(_label(part, restrictions), why, restrictions)

    def _searched(
        self, part: Space, target: Target, restrictions: Sequence[Restriction], effort: Effort
    ) -> list[Draft]:
        """Return the best drafts of a smaller space, and the known ones."""
        assessor = Assessor(self.space, target)
        known = [draft for draft in self._seeds(part, restrictions) if is_even(self.space, draft, restrictions)]
        seeds = [draft for draft in known if _reaches(assessor, draft)]
        least = min((draft.figures[target.goal] for draft in seeds), default=np.inf)
        answer = solve(part, target, restrictions, effort, known=least)
        estimated = [draft for draft in answer.others if draft.expected is not None]
        found = [in_space(draft, part, self.space) for draft in (*answer.drafts, *estimated)]
        return [*found, *seeds]

    def _improved(
        self, part: Space, target: Target, restrictions: Sequence[Restriction], effort: Effort
    ) -> list[Draft]:
        """Return the known drafts of a smaller space, and the best of them after local search in it."""
        known = [draft for draft in self._seeds(part, restrictions) if is_even(self.space, draft, restrictions)]
        improver = Improver(self.space, target)
        near = sorted(known, key=Assessor(self.space, target).rank)
        best = min(evaluated_first(improver, near), key=improver.rank, default=None)
        if best is None or best.foreseen[target.goal] > _HOPELESS * self.chosen.foreseen[target.goal]:
            return known
        accelerators, zones = _where(self.space, best)
        if Restriction.ONE_ACCELERATOR not in restrictions:
            accelerators = tuple({pool.accelerator.name for pool in part.pools})
        if Restriction.ONE_ZONE not in restrictions:
            zones = tuple({pool.offer.zone for pool in part.pools})
        there = part_of(self.space, accelerators, zones)
        begun = replace(in_space(best, self.space, there), goal=target.goal)
        made = improved(there, target, [begun], effort, most=1)
        return [*known, *(in_space(draft, there, self.space) for draft in made)]

    def _seeds(self, part: Space, restrictions: Sequence[Restriction]) -> list[Draft]:
        """Return the known drafts on the accelerators and zones of a part of a smaller space, without duplicates."""
        found = {}
        for draft in (*self.seeds, *self.drafts):
            accelerators, zones = _where(self.space, draft)
            if _holds(part, accelerators) and (Restriction.ONE_ZONE not in restrictions or len(zones) == 1):
                found[draft.order()] = draft
        return list(found.values())

    def kinds(self, drafts: Iterable[Draft], *, most: int) -> None:
        """Add the best drafts on other devices, in another market, or in another number of zones."""
        known = {kind(self.space, self.chosen)} | {kind(self.space, draft) for draft in self.drafts}
        added = 0
        assessor = Assessor(self.space, self.target)
        for draft in sorted(drafts, key=lambda draft: (significant(draft.foreseen[draft.goal]), draft.order())):
            if added == most:
                return
            if kind(self.space, draft) in known or not _reaches(assessor, draft):
                continue
            evaluation = evaluate(to_plan(self.space, draft), self.space.scenario)
            if not evaluation.fits:
                continue
            known.add(kind(self.space, draft))
            self._enter(_Named(described(self.space, draft), draft, evaluation, ()))
            added += 1

    def _keeps(self, restrictions: tuple[Restriction, ...], part: Space) -> bool:
        """Return whether a part of a smaller space contains the chosen plan, so that nothing in it is better."""
        return self._lies_in(self.chosen, restrictions, part)

    def _lies_in(self, draft: Draft, restrictions: tuple[Restriction, ...], part: Space) -> bool:
        if not is_even(self.space, draft, restrictions):
            return False
        accelerators, zones = _where(self.space, draft)
        kept = {
            Restriction.ONE_ACCELERATOR: len(accelerators) == 1 and _holds(part, accelerators),
            Restriction.ONE_ZONE: len(zones) == 1,
        }
        return all(kept[restriction] for restriction in set(restrictions) - EVEN)

    def _labelled(self, draft: Draft, restrictions: tuple[Restriction, ...]) -> str:
        accelerators, zones = _where(self.space, draft)
        parts = []
        for restriction in restrictions:
            match restriction:
                case Restriction.ONE_ACCELERATOR:
                    parts.append(f"all {accelerators[0]}")
                case Restriction.ONE_ZONE:
                    parts.append(f"one zone: {zones[0]}")
                case other:
                    parts.append(_name(other))
        return ", ".join(parts)

    def _enter(self, outcome: _Named | Rejected) -> None:
        if isinstance(outcome, Rejected):
            self.rejected.append(outcome)
        else:
            self.named.append(outcome)

    def _contains_chosen(self, named: _Named) -> bool:
        """Return whether the smaller space of a named plan contains the chosen plan."""
        return self._keeps(named.restrictions, self._part_of(named))

    def _part_of(self, named: _Named) -> Space:
        accelerators, _ = _where(self.space, named.draft)
        return next(part for part in self._parts(named.restrictions) if _holds(part, accelerators))

    def _alternative(self, named: _Named) -> Alternative:
        prediction, cost = named.evaluation.prediction, named.evaluation.cost
        return Alternative(
            label=named.label,
            plan=to_plan(self.space, named.draft),
            iteration_s=prediction.iteration_s_replay,
            throughput_iterations_per_s=prediction.throughput_iterations_per_s,
            usd_per_hour=cost.usd_per_hour,
            total_usd=cost.total_usd,
            duration_s=prediction.duration_s,
            restrictions=tuple(restriction.value for restriction in named.restrictions),
        )


def _is_even_restriction(restrictions: Sequence[Restriction]) -> bool:
    """Return whether the last restriction requires even batches or layers."""
    return restrictions[-1] in EVEN


def _option(restrictions: Iterable[Restriction]) -> str:
    return " ".join(f"--restrict {restriction.value}" for restriction in restrictions)


def _holds(part: Space, accelerators: Sequence[str]) -> bool:
    """Return whether a part has all of some accelerators."""
    return {pool.accelerator.name for pool in part.pools}.issuperset(accelerators)


def _rejected(label: str, why: str, restrictions: tuple[Restriction, ...]) -> Rejected:
    names = tuple(restriction.value for restriction in restrictions)
    return Rejected(what=label, why=why, restrictions=names)


def _reaches(assessor: Assessor, draft: Draft) -> bool:
    """Return whether a draft keeps limits, by the expected replay if it is known."""
    return assessor.excess(draft, draft.foreseen) == 1.0


def kind(space: Space, draft: Draft) -> tuple[object, ...]:
    """Return the kind of a plan: its devices and their number, its market, and its number of zones."""
    devices: Counter[tuple[str, str]] = Counter()
    for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
        devices[space.pools[pool].accelerator.name, space.pools[pool].offer.market] += count * space.pools[pool].devices
    return tuple(sorted(devices.items())), len(_where(space, draft)[1])


def described(space: Space, draft: Draft) -> str:
    """Return a short description of a plan."""
    devices: Counter[str] = Counter()
    for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
        devices[space.pools[pool].accelerator.name] += count * space.pools[pool].devices
    _, zones = _where(space, draft)
    stages = sorted({len(part.cut) - 1 for part in draft.pipelines})
    deep = f"{stages[0]} stages" if len(stages) == 1 else f"{stages[0]} to {stages[-1]} stages"
    place = zones[0] if len(zones) == 1 else f"{len(zones)} zones"
    bought = " + ".join(f"{count} {name}" for name, count in sorted(devices.items()))
    return f"{bought} in {place}, {len(draft.pipelines)} x {deep}"


def _where(space: Space, draft: Draft) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the accelerators and the zones of a plan."""
    pools = [space.pools[number] for number in draft.pools]
    accelerators = tuple(sorted({pool.accelerator.name for pool in pools}))
    return accelerators, tuple(sorted({pool.offer.zone for pool in pools}))


def _name(restriction: Restriction) -> str:
    return restriction.value.replace("-", " ")


def _label(part: Space, restrictions: tuple[Restriction, ...]) -> str:
    """Return the name of a smaller space without a plan."""
    names = sorted({pool.accelerator.name for pool in part.pools})
    alone = Restriction.ONE_ACCELERATOR in restrictions and len(names) == 1
    return ", ".join(
        f"all {names[0]}" if alone and restriction is Restriction.ONE_ACCELERATOR else _name(restriction)
        for restriction in restrictions
    )
