"""The choices of a user: the cheapest, the balanced and the fastest plan, and the price of what is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

import numpy as np

from sailor_cloud.model.document import (
    Choice,
    Cost,
    CostKind,
    Decision,
    LeftOut,
    Pick,
    Prediction,
    Rejected,
    Subject,
    machines_text,
)
from sailor_cloud.model.job import Constraints, Goal
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.evaluate.pareto import figures, of_run, run_seconds, unbeaten
from sailor_cloud.planner.explain.frontier import promising
from sailor_cloud.planner.explain.frontier_steps import Explorer
from sailor_cloud.planner.explain.insisting import names_of, near_with
from sailor_cloud.planner.explain.shortage import NO_PLAN, NO_PLAN_YET, shortage
from sailor_cloud.planner.improvement import evaluated
from sailor_cloud.planner.improvement.choice import Chosen, first_that_holds
from sailor_cloud.planner.improvement.restricted import is_even
from sailor_cloud.planner.space.draft import Draft, nodes_of, significant, to_plan
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import NEARLY, TIE, Target
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.restrictions import Restriction, part_of
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, Scenario, evaluate
from sailor_cloud.units import (
    GIB,
    pace_text,
    probability_text,
    usd_difference,
    usd_difference_text,
    usd_text,
)

# The most plans that are replayed for each pick and for each thing left out; and the most moves from the frontier.
_TRIED, _INSISTED, _STEPS = 16, 6, 240
# A plan is much more expensive if its money grows by this many times the share by which the run gets faster.
_MUCH = 3.0
# Smaller differences in USD are never much.
_MONEY = 1.0
# From this share of the money on, people would ask about it.
_HALF = 0.5
# A plan that keeps its limits with a lower probability has no margin.
_LIKELY = 0.9
# Mean in-sample error of estimated memory on published runs (benchmarks/results/published_memory.md).
_MEMORY_ERROR = 0.085
# Plans on equal nodes are one choice if their time and money differ by less than this.
_ALIKE = 1e-3
# Plans are equally fast if their times differ by less than this; then the cheaper one is chosen. The same holds for
# equal money.
_EQUAL = 5e-4
# If the fastest plan is chosen, of plans that insist on something and differ by less than this factor, the cheapest.
_NEARLY_EQUAL = 1.005

_GOALS = {
    Goal.MAXIMIZE_THROUGHPUT: Pick.FASTEST,
    Goal.MINIMIZE_TIME: Pick.FASTEST,
    Goal.MINIMIZE_COST: Pick.CHEAPEST,
}


def goal_pick(goal: Goal) -> Pick:
    """Return the default choice of a goal."""
    return _GOALS[goal]


def draft_of(plan: Plan, space: Space, target: Target) -> Draft | None:
    """Return the draft of a plan; None if the space lacks something that the plan uses."""
    pools = {pool.offer.id: number for number, pool in enumerate(space.pools)}
    if any(node.offer not in pools for node in plan.nodes):
        return None
    instances: Counter[int] = Counter()
    places = {}
    for node in plan.nodes:
        pool = pools[node.offer]
        places[node.id] = pool, instances[pool]
        instances[pool] += 1
    usual = plan.interleaved(1)
    assert usual is not None, "every plan can have 1F1B"
    shapes = [
        Shape(
            slots=tuple(Slot(*places[stage.node], len(stage.devices)) for stage in pipeline.stages),
            cut=(0, *(stage.end_layer for stage in pipeline.stages)),
            microbatch_size=pipeline.microbatch_size,
        )
        for pipeline in usual.pipelines
    ]
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    draft = Assessor(space.at(plan.zero_stage), target).draft(shapes, microbatches=counts)
    return None if draft is None else replace(draft, zero_stage=plan.zero_stage)


@dataclass(frozen=True, slots=True)
class _Uses:
    """The nodes of a draft by kind."""

    devices: tuple[tuple[str, int], ...]
    zones: tuple[str, ...]
    markets: tuple[str, ...]
    clouds: tuple[str, ...]

    def names(self, subject: Subject) -> tuple[str, ...]:
        match subject:
            case Subject.ACCELERATOR:
                return tuple(name for name, _ in self.devices)
            case Subject.ZONE:
                return self.zones
            case Subject.MARKET:
                return self.markets
        return self.clouds

    def insists(self, subject: Subject, name: str) -> bool:
        """Return whether something is used. With a market, all nodes must be on it: mixed plans can be preempted."""
        names = self.names(subject)
        return names == (name,) if subject is Subject.MARKET else name in names

    def __str__(self) -> str:
        return machines_text(dict(self.devices), self.markets, self.zones)


@dataclass(slots=True)
class Deciding:
    """Collects the plans of a search, and makes the decision from them on request.

    `asked`: the requested pick; without it the goal decides. `rejected`: what can't be used, and why. `restrictions`:
    those of the searched space. `cut_short`: a time limit ended the search.
    """

    space: Space
    target: Target
    rejected: Sequence[Rejected] = ()
    asked: Pick | None = None
    restrictions: frozenset[Restriction] = frozenset()
    cut_short: bool = False
    _drafts: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    _used: dict[int, tuple[Draft, _Uses]] = field(default_factory=dict)
    _assessor: Assessor = field(init=False)

    def __post_init__(self) -> None:
        self._assessor = Assessor(self.space, self.target)

    def keeps(self, draft: Draft) -> bool:
        """Return whether a plan is in the space that is searched."""
        uses = self._uses(draft)
        alone = {Restriction.ONE_ACCELERATOR: len(uses.devices) == 1, Restriction.ONE_ZONE: len(uses.zones) == 1}
        kept = all(there for restriction, there in alone.items() if restriction in self.restrictions)
        return kept and is_even(self.space, draft, self.restrictions)

    @property
    def drafts(self) -> list[Draft]:
        """The collected plans."""
        return list(self._drafts.values())

    def add(self, drafts: Iterable[Draft]) -> None:
        """Collect plans; figures that are known about a plan are kept."""
        for draft in drafts:
            key = (draft.zero_stage, tuple(part.key() for part in draft.pipelines))
            before = self._drafts.get(key)
            if (before is None and self.keeps(draft)) or (before is not None and before.expected is None):
                self._drafts[key] = replace(draft, goal=self.target.goal)

    def explore(self, effort: Effort, *, most: int = _STEPS) -> None:
        """Collect plans that are one move away from the frontier."""
        front = self._frontier(self._feasible(effort))
        for stage in sorted({draft.zero_stage for draft in front}):
            begun = [draft for draft in front if draft.zero_stage == stage]
            share = most * len(begun) // len(front)
            if share:
                self.add(Explorer(self.space.at(stage), self.target, effort).run(begun, most=share))

    def picks(self, effort: Effort, by_goal: Chosen | None = None, *, proven: bool = False) -> dict[Pick, Chosen]:
        """Return the plan of each pick; empty if no known plan keeps the limits.

        `by_goal`: the search's result for the goal. Unless it is `proven`, a better plan replaces it. It is also the
        pick for which no other plan keeps the limits.
        """
        feasible = self._feasible(effort)
        front = self._frontier(feasible)
        found: dict[Pick, Chosen] = {}
        for number, (pick, first) in enumerate(((Pick.FASTEST, run_seconds), (Pick.CHEAPEST, of_run))):
            best = None
            # Figures of drafts may be too low, so a draft further down may beat the first one after evaluation.
            near = _deduplicated(sorted(feasible, key=lambda draft: (first(draft), draft.order())))
            for draft in near[:_TRIED]:
                if best is not None and first(draft) >= _figures(best)[number]:
                    break
                shown = self._first([draft])
                if shown is not None and (best is None or _figures(shown)[number] < _figures(best)[number]):
                    best = shown
            if by_goal is not None and pick is goal_pick(self.space.scenario.job.goal):
                best = by_goal if best is None or proven or not self._better(best, by_goal) else best
            best = best or by_goal
            if best is not None:
                found[pick] = self._tie_broken(near, best, pick)
        if len(found) == 2:
            # Drafts leave out parts of the bill, so each end is compared with the other one.
            for number, (pick, other) in enumerate(((Pick.FASTEST, Pick.CHEAPEST), (Pick.CHEAPEST, Pick.FASTEST))):
                one, two = found[pick], found[other]
                if _figures(two)[number] < _figures(one)[number] and self._goal(two) <= self._goal_within(pick, one):
                    found[pick] = two
            found[Pick.BALANCED] = self._balanced(front, found[Pick.CHEAPEST], found[Pick.FASTEST])
        return found

    def unbeaten_picks(self, picks: dict[Pick, Chosen]) -> dict[Pick, Chosen]:
        """Return the picks, each replaced by a known plan that is better in time or money and no worse in the other."""
        feasible = [draft for draft in self._drafts.values() if self._excess(draft) == 1.0]
        return {pick: self._unbeaten(chosen, feasible, pick) for pick, chosen in picks.items()}

    def _unbeaten(self, chosen: Chosen, drafts: Sequence[Draft], pick: Pick) -> Chosen:
        seconds, usd = _figures(chosen)

        def places(draft: Draft) -> tuple[float, float]:
            return run_seconds(draft) / seconds, of_run(draft) / (usd or 1.0)

        goal, most = self.target.goal, self._goal_within(pick, chosen)
        near = [draft for draft in drafts if draft.foreseen[goal] <= most]
        better = [draft for draft in near if max(places(draft)) <= 1.0 and min(places(draft)) < 1.0 - _ALIKE]
        for draft in sorted(better, key=lambda draft: (sum(places(draft)), draft.order()))[:_TRIED]:
            other = self._first([draft])
            if (
                other is not None
                and all(new <= old for new, old in zip(_figures(other), (seconds, usd), strict=True))
                and self._goal(other) <= most
            ):
                return other
        return chosen

    def _goal_within(self, pick: Pick, chosen: Chosen) -> float:
        """Return the goal's value up to which a plan may replace a pick; any value if the pick is not the goal's.

        The run of a plan with the highest throughput may end later than that of others: more nodes start later and are
        interrupted more often.
        """
        by_goal = pick is goal_pick(self.space.scenario.job.goal)
        return self._goal(chosen) * (1.0 + _EQUAL) if by_goal else math.inf

    def _goal(self, chosen: Chosen) -> float:
        return float(replayed(chosen.draft, chosen.evaluation)[self.target.goal])

    def _tie_broken(self, drafts: Sequence[Draft], best: Chosen, pick: Pick) -> Chosen:
        """Return the best plan in the other figure among those that equal the best one in time or money."""
        number, first, second = (1, of_run, run_seconds) if pick is Pick.CHEAPEST else (0, run_seconds, of_run)
        goal, most = self.target.goal, self._goal_within(pick, best)
        equal_to = _figures(best)[number] * (1.0 + _EQUAL)
        near = [draft for draft in drafts if first(draft) <= equal_to and draft.foreseen[goal] <= most]
        for draft in sorted(near, key=lambda draft: (second(draft), draft.order()))[:_TRIED]:
            shown = self._first([draft])
            if shown is None:
                continue
            mine, theirs = _figures(shown), _figures(best)
            equal = mine[number] <= equal_to and self._goal(shown) <= most
            if equal and mine[1 - number] < theirs[1 - number] * (1.0 - _ALIKE):
                return shown
        return best

    def decision(self, picks: dict[Pick, Chosen], *, complete: bool = True) -> Decision | None:
        """Return what people choose from; None if no plan is known.

        Without `complete`, the search continues, and the price of insisting is that of collected plans.
        """
        if len(picks) < len(Pick):
            return None
        chosen = self.picked
        choices = []
        for pick in Pick:
            those = tuple(other for other in Pick if self._same(picks[other], picks[pick]))
            if those[0] is pick:
                choices.append(self._choice(those, picks, chosen=chosen in those))
        cheapest_first = tuple(sorted(choices, key=lambda choice: (choice.usd, choice.seconds)))
        evaluation, as_of = picks[chosen].evaluation, self.space.scenario.as_of.date()
        return Decision(
            chosen=chosen,
            asked=self.asked,
            choices=cheapest_first,
            left_out=self.prices_of_insisting(picks[chosen], picks.values(), complete=complete),
            notes=(
                *(cheaper_nearby(cheapest_first) if self.asked is None else ()),
                *_no_margin(cheapest_first, self.space.scenario.job.constraints),
                *warnings(
                    evaluation.prediction, evaluation.cost, as_of, self.space.scenario.job.constraints.budget_usd
                ),
            ),
            complete=complete,
        )

    def look_near(self, chosen: Chosen) -> None:
        """Collect changes of a plan that use what it leaves out."""
        for subject, name in self._left(chosen):
            self.add(near_with(self.space, self.target, chosen.draft, subject, name))

    def prices_of_insisting(
        self, chosen: Chosen, others: Iterable[Chosen] = (), *, complete: bool = True
    ) -> tuple[LeftOut, ...]:
        """Return the cost of insisting on each thing that the job names and a plan leaves out, among collected plans.

        `others`: the other choices, which no row may be worse than. Without `complete`, the search continues.
        """
        return tuple(
            self.insisted(subject, name, chosen, others, complete=complete) for subject, name in self._left(chosen)
        )

    def insisted(
        self, subject: Subject, name: str, chosen: Chosen, others: Iterable[Chosen] = (), *, complete: bool = True
    ) -> LeftOut:
        """Return the price of insisting on something, by the best known plan that uses it.

        The best is the one that the same choice would take: the cheapest; the fastest, and of nearly equally fast ones
        the cheapest; or the smallest sum of time and money, each relative to the chosen plan's.
        """
        uses = [draft for draft in self._drafts.values() if self._uses(draft).insists(subject, name)]
        ours = _figures(chosen)
        kept = [draft for draft in uses if self._excess(draft) == 1.0]
        for drafts, target in ((kept, self.target), (uses, replace(self.target, limits=()))):
            ordered = self._best_first(drafts, ours)
            found = [first_that_holds(self.space, target, ordered[:_INSISTED])]
            # Bills order plans a little differently than the figures of drafts.
            found += [other for other in others if self._uses(other.draft).insists(subject, name)]
            measure = self._measure(ours)
            best = min(filter(None, found), key=lambda each: measure(_figures(each)), default=None)
            if best is None:
                continue
            theirs = _figures(best)
            trade = _difference(theirs, ours, bool(self.space.scenario.job.training.steps))
            breaks = "" if drafts is kept else f"; no plan found keeps {_broken(self.target, best)}"
            prediction, cost = best.evaluation.prediction, best.evaluation.cost
            return LeftOut(
                subject=subject,
                name=name,
                why=f"{trade}{breaks}",
                runs_on=str(self._uses(best.draft)),
                iteration_s=prediction.iteration_s_replay,
                total_usd=cost.total_usd,
                usd_per_iteration=cost.usd_per_iteration,
                keeps_limits=drafts is kept,
                plan=to_plan(self.space, best.draft),
            )
        return LeftOut(subject=subject, name=name, why=self._why_not(subject, name, complete=complete))

    def _best_first(self, drafts: Sequence[Draft], ours: tuple[float, float]) -> list[Draft]:
        """Return the plans that insist on something, best first; the first ones have their figures under the replay.

        `ours`: the seconds and USD of the chosen plan.
        """
        measure = self._measure(ours)

        def rank(draft: Draft) -> tuple[object, ...]:
            return significant(measure((run_seconds(draft), of_run(draft)))), draft.order()

        every = sorted(drafts, key=rank)
        first, others = every[:_INSISTED], every[_INSISTED:]
        hopeful = [draft for draft in first if draft.expected is None]
        found = evaluated(self.space, self.target, hopeful, Effort())
        self.add(found)
        ordered = sorted((*found, *(draft for draft in first if draft.expected is not None), *others), key=rank)
        if self.picked is Pick.FASTEST and ordered:
            least = run_seconds(ordered[0])
            ordered.sort(key=lambda draft: of_run(draft) if run_seconds(draft) <= least * _NEARLY_EQUAL else math.inf)
        return ordered

    def _measure(self, ours: tuple[float, float]) -> Callable[[tuple[float, float]], float]:
        """Return the measure of seconds and USD of plans that insist on something; `ours` are the chosen plan's."""
        if self.picked is Pick.FASTEST:
            return lambda each: each[0]
        if self.picked is Pick.CHEAPEST:
            return lambda each: each[1]
        seconds, usd = ours
        return lambda each: each[0] / seconds + each[1] / (usd or 1.0)

    @property
    def picked(self) -> Pick:
        """The requested pick, or that of the goal."""
        return self.asked or goal_pick(self.space.scenario.job.goal)

    def _why_not(self, subject: Subject, name: str, *, complete: bool) -> str:
        """Return why no plan uses something: what ruled it out, or what the model needs and what is allowed."""
        rows = [row.why for row in self.rejected if name in (row.what, row.zone, row.market) or row.subject == name]
        pools = [pool for pool in self.space.pools if name in names_of(pool.offer, subject)]
        if not pools:
            return rows[0] if rows else "nothing that the job allows is sold there"
        every = {pool.accelerator.name for pool in pools}, {pool.offer.zone for pool in pools}
        why = shortage(part_of(self.space, *every), one_zone=subject is Subject.ZONE)
        if why != NO_PLAN:
            return why
        if not complete:
            return NO_PLAN_YET
        return "none found before the time limit ended the search" if self.cut_short else NO_PLAN

    def _left(self, chosen: Chosen) -> list[tuple[Subject, str]]:
        """Return the things that the job names and a plan leaves out."""
        uses, job = self._uses(chosen.draft), self.space.scenario.job
        named = {
            Subject.ACCELERATOR: [name for entry in job.resources for name in sorted(entry.accelerators)],
            Subject.ZONE: [zone for entry in job.resources for zone in entry.zones],
            Subject.MARKET: [market.value for entry in job.resources for market in entry.markets],
            Subject.CLOUD: [str(entry.provider) for entry in job.resources],
        }
        return [
            (subject, name)
            for subject, names in named.items()
            for name in dict.fromkeys(names)
            if name not in uses.names(subject)
        ]

    def _feasible(self, effort: Effort) -> list[Draft]:
        """Return the plans that keep the limits; candidates for the frontier have replayed figures."""
        near = [draft for draft in self._drafts.values() if self._excess(draft) <= NEARLY]
        if not near:
            return []
        hopeful = [draft for draft in promising(near) if draft.expected is None]
        self.add(evaluated(self.space, self.target, hopeful, effort.quiet()))
        return [draft for draft in self._drafts.values() if self._excess(draft) == 1.0]

    def _frontier(self, drafts: Sequence[Draft]) -> list[Draft]:
        return [drafts[index] for index in unbeaten(*figures(drafts))] if drafts else []

    def _excess(self, draft: Draft) -> float:
        return self._assessor.excess(draft, draft.foreseen)

    def _first(self, ordered: Sequence[Draft]) -> Chosen | None:
        """Return the first plan that keeps the limits under the replay, with the job's probability."""
        wanted = self.space.scenario.job.constraints.probability
        for draft in ordered[:_TRIED]:
            best = first_that_holds(self.space, self.target, [draft])
            if best is not None and (wanted is None or _probability(best) >= wanted):
                return best
        return None

    def _better(self, one: Chosen, other: Chosen) -> bool:
        return self._goal(one) < self._goal(other) * (1.0 - TIE)

    def _balanced(self, front: Sequence[Draft], cheapest: Chosen, fastest: Chosen) -> Chosen:
        """Return the plan farthest below the line between two plans; the cheapest if there is none below it.

        Drafts are ordered by their own figures; the first of them are judged by the figures that reports show.
        """
        ends = _figures(cheapest), _figures(fastest)
        if ends[0][0] <= ends[1][0] or ends[1][1] <= ends[0][1]:
            return cheapest
        own = [(run_seconds(chosen.draft), of_run(chosen.draft)) for chosen in (cheapest, fastest)]
        slow, fast = max(seconds for seconds, _ in own), min(seconds for seconds, _ in own)
        low, high = min(usd for _, usd in own), max(usd for _, usd in own)
        between = [draft for draft in front if fast < run_seconds(draft) < slow]
        between.sort(
            key=lambda draft: (_share((run_seconds(draft), of_run(draft)), (slow, low), (fast, high)), draft.order())
        )
        judged = [chosen for draft in between[:_TRIED] if (chosen := self._first([draft])) is not None]
        best = min(judged, key=lambda chosen: _share(_figures(chosen), *ends), default=cheapest)
        return best if _share(_figures(best), *ends) < 1.0 - _ALIKE else cheapest

    def _same(self, one: Chosen, other: Chosen) -> bool:
        """Return whether two plans are one choice: equal, or of the same nodes and figures."""
        if one.draft.pipelines == other.draft.pipelines and one.draft.zero_stage == other.draft.zero_stage:
            return True
        pairs = zip(_figures(one), _figures(other), strict=True)
        # Nodes of a cluster may cost nothing.
        alike = all(abs(mine - theirs) <= _ALIKE * abs(theirs) for mine, theirs in pairs)
        return alike and self._uses(one.draft) == self._uses(other.draft)

    def _choice(self, those: tuple[Pick, ...], picks: dict[Pick, Chosen], *, chosen: bool) -> Choice:
        picked, scenario = picks[those[0]], self.space.scenario
        known = {pick: _figures(each) for pick, each in picks.items()}
        found = _choice_of(to_plan(self.space, picked.draft), picked.evaluation, scenario, those, chosen=chosen)
        return replace(found, why=_reason(those, known, scenario.job.goal))

    def _uses(self, draft: Draft) -> _Uses:
        known = self._used.get(id(draft))
        if known is None:
            devices: Counter[str] = Counter()
            pools = nodes_of(tuple(part.slots for part in draft.pipelines))
            offers = [self.space.pools[pool].offer for pool in sorted(pools)]
            for pool, count in pools.items():
                devices[self.space.pools[pool].accelerator.name] += count * self.space.pools[pool].devices
            uses = _Uses(
                devices=tuple(sorted(devices.items())),
                zones=tuple(sorted({offer.zone for offer in offers})),
                markets=tuple(sorted({offer.market.value for offer in offers}, reverse=True)),
                clouds=tuple(sorted({str(offer.provider) for offer in offers})),
            )
            # Keeping the draft prevents another one from getting its id.
            known = self._used[id(draft)] = draft, uses
        return known[1]


def _deduplicated(drafts: Sequence[Draft]) -> list[Draft]:
    """Return the first draft of each time and money, both rounded to one part in a thousand."""
    found: dict[tuple[float, ...], Draft] = {}
    rounded = (np.round(np.log(np.maximum(each, np.finfo(float).tiny)) / _ALIKE) for each in figures(drafts))
    for draft, *place in zip(drafts, *rounded, strict=True):
        found.setdefault(tuple(place), draft)
    return list(found.values())


def _figures(chosen: Chosen) -> tuple[float, float]:
    """Return the seconds and the USD of a run, or of an iteration without a number of steps."""
    prediction, cost = chosen.evaluation.prediction, chosen.evaluation.cost
    seconds = prediction.iteration_s_replay if prediction.duration_s is None else prediction.duration_s
    usd = cost.usd_per_iteration if cost.total_usd is None else cost.total_usd
    return seconds, usd or 0.0


def _share(figures: tuple[float, float], slow: tuple[float, float], fast: tuple[float, float]) -> float:
    """Return the sum of seconds and USD, both scaled to 0 to 1 between two ends; 1 on the line between the ends."""
    return (figures[0] - fast[0]) / ((slow[0] - fast[0]) or 1.0) + (figures[1] - slow[1]) / ((fast[1] - slow[1]) or 1.0)


def _probability(chosen: Chosen) -> float:
    totals = chosen.evaluation.totals
    return 1.0 if totals is None or totals.within_limits is None else totals.within_limits


def _broken(target: Target, chosen: Chosen) -> str:
    """Return the limits that a plan breaks, in words."""
    found = replayed(chosen.draft, chosen.evaluation)
    words = {"budget_usd": "the budget", "deadline": "the deadline"}
    broken = [limit.name for limit in target.limits if found[limit.figure] > limit.at_most * (1.0 + TIE)]
    return " and ".join(words.get(name, name) for name in broken) or "a limit"


def _choice_of(
    plan: Plan, evaluation: Evaluation, scenario: Scenario, picks: tuple[Pick, ...], *, chosen: bool
) -> Choice:
    """Return a choice without its reason."""
    prediction, cost, totals = evaluation.prediction, evaluation.cost, evaluation.totals
    offers = tuple(scenario.offers[name] for name in sorted({node.offer for node in plan.nodes}))
    devices: Counter[str] = Counter()
    for node in plan.nodes:
        devices[scenario.offers[node.offer].accelerator] += node.devices
    return Choice(
        picks=picks,
        chosen=chosen,
        plan=plan,
        offers=offers,
        iteration_s=prediction.iteration_s_replay,
        duration_s=prediction.duration_s,
        usd_per_hour=cost.usd_per_hour,
        usd_per_iteration=cost.usd_per_iteration or 0.0,
        total_usd=cost.total_usd,
        within_budget=None if totals is None else totals.within_budget,
        within_deadline=None if totals is None else totals.within_deadline,
        within_limits=None if totals is None else totals.within_limits,
        devices=dict(sorted(devices.items())),
        zones=tuple(sorted({offer.zone for offer in offers})),
        markets=tuple(sorted({offer.market.value for offer in offers}, reverse=True)),
        why="",
    )


def _reason(
    those: tuple[Pick, ...], known: Mapping[Pick, tuple[float, float]], goal: Goal, kept: str = "within the limits"
) -> str:
    """Return one sentence that says why a plan is one of the choices; `known`: the seconds and USD of each pick.

    `kept`: what the cheapest plan keeps.
    """
    seconds, usd = known[those[0]]
    slow, low = known[Pick.CHEAPEST]
    fast, high = known[Pick.FASTEST]
    if Pick.CHEAPEST in those and Pick.FASTEST in those:
        return "no plan found within the limits is cheaper or faster"
    if Pick.CHEAPEST in those:
        return f"lowest cost {kept}; {pace_text(slow / fast, 'the fastest')}"
    if Pick.FASTEST in those:
        # A slower iteration may have a shorter run, if its nodes are preempted less.
        first = "highest throughput" if goal is Goal.MAXIMIZE_THROUGHPUT else "shortest time"
        return f"{first} within the limits; {_trade(slow, low, fast, high)} than the cheapest"
    less = usd_difference_text(high, usd).lstrip("+")
    money = f"{less} less than" if less[0].isdigit() else f"{less} as"
    trade = _trade(slow, low, seconds, usd, high)
    return f"{trade} than the cheapest; {money} the fastest and {pace_text(seconds / fast)}"


def with_chosen(decision: Decision, plan: Plan, evaluation: Evaluation, scenario: Scenario, kept: str) -> Decision:
    """Return a decision with another plan in the place of the cheapest one; `kept`: what it keeps.

    It may be that of another choice. All differences are those to the new plan; nothing that it uses is left out.
    """
    goal, limits = scenario.job.goal, scenario.job.constraints
    same = [choice for choice in decision.choices if choice.chosen or choice.plan == plan]
    picks = tuple(pick for pick in Pick if any(pick in choice.picks for choice in same))
    chosen = _choice_of(plan, evaluation, scenario, picks, chosen=True)
    every = [chosen, *(choice for choice in decision.choices if choice not in same)]
    known = {pick: (choice.seconds, choice.usd) for choice in every for pick in choice.picks}
    every = [replace(choice, why=_reason(choice.picks, known, goal, kept)) for choice in every]
    choices = tuple(sorted(every, key=lambda choice: (choice.usd, choice.seconds)))
    of_before = {*cheaper_nearby(decision.choices), *_no_margin(decision.choices, limits)}
    clouds = tuple(sorted({str(offer.provider) for offer in chosen.offers}))
    uses = _Uses(tuple(chosen.devices.items()), chosen.zones, chosen.markets, clouds)
    return replace(
        decision,
        choices=choices,
        notes=(
            *(cheaper_nearby(choices) if decision.asked is None else ()),
            *_no_margin(choices, limits),
            *(note for note in decision.notes if note not in of_before),
        ),
        left_out=tuple(
            row if row.plan is None else replace(row, why=_change(evaluate(row.plan, scenario), chosen, row.why))
            for row in decision.left_out
            if not uses.insists(row.subject, row.name)
        ),
    )


def _change(evaluation: Evaluation, chosen: Choice, before: str) -> str:
    """Return what insisting on something changes; `before`: the same compared to another plan."""
    prediction, cost = evaluation.prediction, evaluation.cost
    theirs = (
        prediction.iteration_s_replay if prediction.duration_s is None else prediction.duration_s,
        cost.total_usd if cost.total_usd is not None else cost.usd_per_iteration or 0.0,
    )
    _, *breaks = before.split("; ", 1)
    return "; ".join([_difference(theirs, (chosen.seconds, chosen.usd), prediction.duration_s is not None), *breaks])


def _difference(theirs: tuple[float, float], ours: tuple[float, float], whole: bool) -> str:
    """Return how a plan's seconds and USD differ from those of the chosen one."""
    money = usd_difference_text(theirs[1], ours[1]).replace("-", "saves ")
    return f"{'run' if whole else 'iteration'} {pace_text(theirs[0] / ours[0])}, {money}"


def _trade(slow: float, low: float, fast: float, high: float, largest: float = 0.0) -> str:
    return f"{usd_difference_text(high, low, largest=largest)} for {100.0 * (1.0 - fast / slow):.0f} % less time"


def cheaper_nearby(choices: Sequence[Choice]) -> Iterable[str]:
    """Yield a warning if the chosen plan costs far more than the next slower choice, and what that one saves."""
    chosen = next(choice for choice in choices if choice.chosen)
    slower = [other for other in choices if other.seconds > chosen.seconds and other.usd < chosen.usd]
    if not slower:
        return
    other = min(slower, key=lambda choice: choice.seconds)
    saved, pace = usd_difference(chosen.usd, other.usd), other.seconds / chosen.seconds
    share = chosen.usd / other.usd - 1.0 if other.usd > 0.0 else math.inf
    if saved >= _MONEY and share >= _MUCH * (pace - 1.0):
        pick, less = other.picks[-1].value, usd_difference_text(chosen.usd, other.usd).lstrip("+")
        yield f"the {pick} plan costs {less} less and is {pace_text(pace)}; '--choose {pick}' takes it"


def _no_margin(choices: Sequence[Choice], given: Constraints) -> Iterable[str]:
    """Yield a warning if the chosen plan may well reach a limit, with a choice that leaves a margin."""
    chosen = next(choice for choice in choices if choice.chosen)
    likely = given.probability or _LIKELY
    chance = chosen.within_limits
    if chance is None or chance >= likely:
        return
    chances = ((chosen.within_budget, "uses most of the budget"), (chosen.within_deadline, "ends near the deadline"))
    low = [(within, reaches) for within, reaches in chances if within is not None and within < likely]
    _, reaches = min(low, default=(chance, "may reach its TTL"))
    safer = [other for other in choices if other.within_limits is not None and other.within_limits >= likely]
    pick = min(safer, key=lambda other: other.seconds).picks[-1].value if safer else None
    choose = "" if pick is None else f"'--choose {pick}' leaves a margin, or "
    yield (
        f"the chosen plan {reaches}: with a chance of {probability_text(1.0 - chance)} the run is stopped before it "
        f"finishes; {choose}'probability: {likely:g}' under 'constraints' asks for a margin"
    )


def warnings(prediction: Prediction, cost: Cost, as_of: date, budget_usd: float | None = None) -> Iterable[str]:
    """Yield what may surprise a buyer: mostly egress, old prices, or memory that is nearly full."""
    egress = sum(line.usd for line in cost.lines if line.kind is CostKind.EGRESS)
    share = egress / (sum(line.usd for line in cost.lines) or 1.0)
    if share > _HALF and egress >= _MONEY:
        yield f"{100 * share:.0f} % of the money is egress between zones; '--restrict one-zone' plans for one zone"
    stale = [line.price_as_of for line in cost.lines if line.stale]
    if stale:
        total = cost.worst_case_usd
        worst = f"{usd_text(cost.worst_case_usd_per_hour)} USD/h" if total is None else f"{usd_text(total)} USD"
        over = total is not None and budget_usd is not None and total > budget_usd
        stops = f", but the run stops at the budget of {usd_text(budget_usd or 0.0)} USD" if over else ""
        yield (
            f"prices are up to {(as_of - min(stale)).days} days old and may have risen: {worst} at worst{stops}; 'up' "
            "on a cloud refuses stale prices"
        )
    estimated = [
        (stage.total_bytes - stage.parts.get("allocator", 0), stage)
        for stage in prediction.memory
        # Devices with less than a GiB are emulated; their memory is counted, not estimated.
        if not stage.measured and stage.limit_bytes >= GIB
    ]
    needed, stage = max(estimated, key=lambda entry: entry[0] / entry[1].limit_bytes, default=(0, None))
    if stage is not None and needed * (1.0 + _MEMORY_ERROR) > stage.limit_bytes:
        yield (
            f"stage {stage.stage} may run out of memory: it needs an estimated {needed / GIB:.1f} of "
            f"{stage.limit_bytes / GIB:.1f} GiB ({stage.total_bytes / GIB:.1f} GiB with the allocator's cache), and "
            f"such estimates are off by {100 * _MEMORY_ERROR:.1f} % on average"
        )
