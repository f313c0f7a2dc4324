"""Turns a job into its PlanDocument."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import Clock
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import (
    Alternative,
    Decision,
    FrontierPoint,
    GapPart,
    Infeasibility,
    Pick,
    PlanDocument,
    Rejected,
    Search,
)
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Network
from sailor_cloud.planner.documents import Surroundings, infeasible_document, plan_document
from sailor_cloud.planner.evaluate.assess import Assessor, shapes_of
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.explain.alternatives import Alternatives
from sailor_cloud.planner.explain.anchor import anchored, earlier
from sailor_cloud.planner.explain.decision import Deciding, goal_pick
from sailor_cloud.planner.explain.frontier import explored, frontier
from sailor_cloud.planner.explain.gap import gap_parts
from sailor_cloud.planner.explain.infeasible import by_quota, explain_infeasible, nearest
from sailor_cloud.planner.explain.quota_change import quota_changes
from sailor_cloud.planner.explain.rare_sync import apart, over_clouds
from sailor_cloud.planner.improvement import evaluated, improved
from sailor_cloud.planner.improvement.choice import Chosen, best_that_holds, first_that_holds
from sailor_cloud.planner.improvement.rescheduled import rescheduled
from sailor_cloud.planner.probable import probable, tightened
from sailor_cloud.planner.seeds.homogeneous import homogeneous, homogeneous_at
from sailor_cloud.planner.solving import Searched, enumerated, solve
from sailor_cloud.planner.space.answer import OPTIMAL_GAP, Answer, share_above
from sailor_cloud.planner.space.candidates import collect
from sailor_cloud.planner.space.capacity import over_capacity
from sailor_cloud.planner.space.draft import Draft, to_plan
from sailor_cloud.planner.space.effort import NORMAL, Effort, NoPlanInTimeError, OutOfTimeError
from sailor_cloud.planner.space.goals import TIE, Figure, Target, in_words, target_of
from sailor_cloud.planner.space.restrictions import Restriction, variants, zero_stages
from sailor_cloud.planner.space.search_options import SearchOptions as SearchOptions
from sailor_cloud.planner.space.space import Space, build
from sailor_cloud.simulator import Scenario
from sailor_cloud.simulator.engines import SAILOR, SAILOR_ALIKE, Engine
from sailor_cloud.workload import ComputeProfiles
from sailor_cloud.workload import decoder as decoder_of

# Smaller spaces whose best plans are shown next to the chosen one.
_SMALLER_SPACES = tuple((restriction,) for restriction in Restriction)
# For searches with a time limit: the incumbents kept for the end, how many of them may be evaluated then, and the
# seconds for a first plan even if reading the data took all of the time.
_INCUMBENTS, _EVALUATED, _FIRST_S = 24, 8, 0.25
# The factor of the looser limits within which the best plans are kept for questions about them, and their number.
LOOSER, _NEARLY = 1.1, 4
# The share of a time limit that is left for the choices among the incumbents, and the most seconds of it.
_FOR_THE_END = 0.1, 0.2
# CPU seconds that a proof may take.
_PROOF_S = 300.0
# How much longer local searches take before a proof. Eight times as long found hardly more.
_THOROUGH = 4.0
# An improvement is reported if the figure falls below this share of the last one.
_BETTER = 0.995
# A note of the decision if the frontier was requested.
_NO_FRONTIER = "the time limit ended the search before the Pareto frontier; with more time it is in the report"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A job as the search sees it.

    `nearly`: the best plans of its space that the first search met within limits that are looser by `LOOSER`.
    """

    space: Space
    target: Target
    rejected: tuple[Rejected, ...]
    nearly: list[Draft] = field(default_factory=list, compare=False)


def problem_of(
    job: Job,
    *,
    catalog: Catalog,
    network: Network,
    profiles: ComputeProfiles,
    clock: Clock,
    decoder: Decoder | None = None,
    engine: Engine = SAILOR,
) -> Problem:
    """Return the space and the target of a job. Raises as `search` does."""
    candidates = collect(job, catalog)
    scenario = Scenario(
        job=job,
        decoder=decoder if decoder is not None else decoder_of(job.model),
        offers={pool.offer.id: pool.offer for pool in candidates.pools},
        catalog=catalog,
        network=network,
        profiles=profiles,
        as_of=clock.now(),
        engine=engine,
    )
    space, fallen_out = build(scenario, candidates)
    return Problem(space=space, target=target_of(job), rejected=(*candidates.rejected, *fallen_out))


def search(
    job: Job,
    *,
    catalog: Catalog,
    network: Network,
    profiles: ComputeProfiles,
    clock: Clock,
    decoder: Decoder | None = None,
    engine: Engine = SAILOR,
    restrictions: Collection[Restriction] = (),
    options: SearchOptions | None = None,
    started_s: float | None = None,
    problem: Problem | None = None,
) -> PlanDocument:
    """Return the best plan for a job with its proof, or what makes the job infeasible.

    `decoder` is the job's model and `problem` its problem, if the caller has them already; `engine` is the training
    program; `restrictions` make the space smaller. A time limit counts from `started_s` on the clock, by default from
    now. Raises RequestError for an unknown model, NoPlanInTimeError if no plan was found in time, DataError for an
    unknown accelerator or for a path without bandwidth or price.
    """
    asked = options if options is not None else SearchOptions(restrictions=tuple(restrictions))

    begun, given = [] if started_s is None else [started_s], problem

    def planned(part: Job, requested: SearchOptions) -> PlanDocument:
        started = begun.pop() if begun else clock.monotonic_s()
        problem = given if given is not None and part is job else None
        problem = problem or problem_of(
            part, catalog=catalog, network=network, profiles=profiles, clock=clock, decoder=decoder, engine=engine
        )
        document = _planned(problem, requested, clock, started)
        alike = None if document.plan is not None else _alike(problem.space)
        if alike is not None:
            # Nothing fits with ZeRO-0 or 1, and their search is over.
            problem = replace(problem, space=alike, nearly=[])
            document = _planned(problem, requested, clock, started)
        if not requested.decide or requested.choose not in (None, Pick.CHEAPEST):
            return document
        sooner = _Sooner(problem, requested, clock, started, cut_short=document.search.cut_short)
        found = anchored(document, problem.space.scenario, problem.space.candidates, sooner.plan)
        if not sooner.searched:
            return found
        spent = clock.monotonic_s() - started
        return replace(found, search=replace(found.search, seconds=spent, cut_short=sooner.cut_short))

    try:
        return over_capacity(job, asked, clock.now(), planned)
    except OutOfTimeError as out:
        remedy = f"the nearest one found needs {out}; allow that, or more time" if str(out) else "allow more time"
        limit = f"{asked.time_limit_s:g} s"
        raise NoPlanInTimeError(f"no plan was found within the time limit of {limit}; {remedy}") from None


def _planned(problem: Problem, asked: SearchOptions, clock: Clock, started: float) -> PlanDocument:
    job = problem.space.scenario.job

    def searched(factor: float, step: int) -> PlanDocument:
        tighter = replace(problem, target=tightened(problem.target, factor), nearly=[] if step else problem.nearly)
        options = (
            asked if asked.progress is None or wanted is None else replace(asked, progress=_later(asked.progress, step))
        )
        return _search(tighter, options, clock, started)

    wanted = job.constraints.probability
    first = searched(1.0, 0)
    if wanted is None or first.prediction is None:
        return first
    likely = problem.space.scenario.profiles.errors.of_p50(first.prediction.error_p50)
    return probable(wanted, first, ratio=likely.ratio, search=searched)


@dataclass(slots=True)
class _Sooner:
    """Searches again for plans that end earlier; `cut_short`: no time is left for that."""

    problem: Problem
    asked: SearchOptions
    clock: Clock
    started: float
    cut_short: bool
    searched: bool = False

    def plan(self, seconds: float) -> Plan | None:
        """Return the plan for a deadline that is so much earlier; None if there is none, or no time to search."""
        target = earlier(self.problem.target, seconds)
        if self.cut_short or target is None:
            return None
        self.searched = True
        alone = SearchOptions(restrictions=self.asked.restrictions, time_limit_s=self.asked.time_limit_s)
        try:
            found = _planned(replace(self.problem, target=target, nearly=[]), alone, self.clock, self.started)
        except OutOfTimeError:
            self.cut_short = True
            return None
        self.cut_short = found.search.cut_short
        return found.plan


def _alike(space: Space) -> Space | None:
    """Return the space of plans with ZeRO-2 and 3, whose pipelines have one shape; None if the job allows none."""
    scenario, most = space.scenario, space.scenario.job.training.max_zero_stage
    if scenario.engine != SAILOR or most is None or most < 2:
        return None
    alike, _ = build(replace(scenario, engine=SAILOR_ALIKE), space.candidates)
    alike.known.deadline = space.known.deadline
    return alike if alike.pools else None


def _later(tell: Callable[[float], None], step: int) -> Callable[[float], None]:
    """Return a progress callback for one of several searches whose number is unknown."""
    return lambda share: tell(1.0 - 0.5**step + 0.5 ** (step + 1) * share)


@dataclass(slots=True)
class _Progress:
    """Reports the completed share of a search; skips estimates below the last report."""

    report: Callable[[float], None]
    share: float = 0.0

    def tell(self, share: float) -> None:
        self.share = max(self.share, share)
        self.report(self.share)


@dataclass(slots=True)
class _Improvements:
    """Reports each plan that keeps all limits and is better than the last one by a visible amount."""

    target: Target
    report: Callable[[str], None]
    best: float = math.inf

    def record(self, part: Space, draft: Draft) -> None:
        """Report a draft if its figures under the replay are better."""
        figures, goal = draft.foreseen, self.target.goal
        if draft.expected is None or figures[goal] >= self.best * _BETTER:
            return
        if all(figures[limit.figure] <= limit.at_most for limit in self.target.limits):
            self.best = figures[goal]
            self.report(in_words(goal, self.best))


def _one_shape(draft: Draft) -> bool:
    """Return whether all pipelines of a draft synchronize after each pass of a layer."""
    shapes = {
        (part.cut, part.microbatch_size, part.microbatches, tuple(slot.tp for slot in part.slots))
        for part in draft.pipelines
    }
    return len(shapes) == 1


def _in_pools(draft: Draft, pools: Sequence[int]) -> Draft:
    """Return a draft with pools numbered as in another space."""
    pipelines = tuple(
        row._replace(slots=tuple(slot._replace(pool=pools[slot.pool]) for slot in row.slots)) for row in draft.pipelines
    )
    return replace(draft, pipelines=pipelines)


@dataclass(slots=True)
class _Incumbents:
    """The incumbents of a search that may end at any moment; they keep all limits.

    `nearest`: the figures of the plan that exceeds limits least, by the factor `broken`.
    """

    space: Space
    target: Target
    most: int
    kept: list[tuple[float, Draft]] = field(default_factory=list)
    broken: float = math.inf
    nearest: Mapping[Figure, float] = field(default_factory=dict)

    def record(self, part: Space, draft: Draft) -> None:
        """Keep a draft of a part of the space if it is one of the best."""
        value = draft.foreseen[self.target.goal]
        if len(self.kept) == self.most and value >= self.kept[-1][0]:
            return
        broken = max((draft.foreseen[limit.figure] / limit.at_most for limit in self.target.limits), default=1.0)
        if broken > 1.0 + TIE:
            if broken < self.broken:
                self.broken, self.nearest = broken, draft.foreseen
            return
        stage = max(part.zero_stage, draft.zero_stage)
        there = {own: number for number, own in enumerate(self.space.numbers)}
        if not {part.numbers[pool] for pool in draft.pools} <= set(there):
            return
        here = replace(_in_pools(draft, [there.get(own, -1) for own in part.numbers]), zero_stage=stage)
        for number, (_, known) in enumerate(self.kept):
            if (known.zero_stage, known.pipelines) == (stage, here.pipelines):
                if known.expected is not None or draft.expected is None:
                    return
                # Its figures under the replay may be known by now.
                del self.kept[number]
                break
        here = replace(here, goal=self.target.goal)
        insort(self.kept, (value, here), key=lambda entry: entry[0])
        del self.kept[self.most :]


def _search(problem: Problem, asked: SearchOptions, clock: Clock, started: float) -> PlanDocument:
    effort = replace(NORMAL, depth=_THOROUGH) if asked.prove else NORMAL
    if asked.progress is not None:
        effort = replace(effort, tell=_Progress(asked.progress).tell)
    deadline = problem.space.known.deadline
    records: list[Callable[[Space, Draft], None]] = []
    run = _Run(problem, asked, effort)
    limits = tuple(replace(limit, at_most=LOOSER * limit.at_most) for limit in problem.target.limits)
    nearly = _Incumbents(problem.space, replace(problem.target, limits=limits), _NEARLY)
    if limits:
        records.append(nearly.record)
    if asked.time_limit_s is not None:
        begun = clock.monotonic_s()
        share, most_s = _FOR_THE_END
        at_s = started + asked.time_limit_s - min(share * asked.time_limit_s, most_s)
        deadline.now_s, deadline.at_s = clock.monotonic_s, max(at_s, begun + _FIRST_S)
        records.append(run.incumbents.record)
    if asked.improved is not None:
        records.append(_Improvements(problem.target, asked.improved).record)

    def record(part: Space, draft: Draft) -> None:
        for each in records:
            each(part, draft)

    if records:
        problem.space.known.record = record
    try:
        run.search()
    except OutOfTimeError:
        deadline.lift()
        run.end_early()
    finally:
        deadline.lift()
        problem.space.known.record = None
    problem.nearly[:] = [draft for _, draft in nearly.kept]
    if problem.space.scenario.engine.formulas is not None and asked.time_limit_s is None:
        run.bound_uniform(prove=asked.prove)
    elif asked.prove or asked.time_limit_s is None:
        run.raise_bound(prove=asked.prove)
    seconds = clock.monotonic_s() - started
    return run.document(Search(seconds=seconds, cut_short=run.cut_short, weakest_branch=run.weakest_branch))


@dataclass(slots=True)
class _Run:
    """One search in steps, with an answer after each of them."""

    problem: Problem
    asked: SearchOptions
    effort: Effort
    space: Space = field(init=False)
    target: Target = field(init=False)
    searched: Searched = field(init=False)
    deciding: Deciding = field(init=False)
    incumbents: _Incumbents = field(init=False)
    answer: Answer = field(default_factory=lambda: Answer(drafts=(), bound=None))
    chosen: Chosen | None = None
    infeasible: Infeasibility | None = None
    alternatives: Alternatives | None = None
    picks: dict[Pick, Chosen] = field(default_factory=dict)
    decision: Decision | None = None
    points: tuple[FrontierPoint, ...] = ()
    joined: tuple[Alternative, ...] = ()
    cut_short: bool = False
    # Whether no plan is better than that of the search for the goal.
    proven: bool = False
    weakest_branch: str | None = None

    def __post_init__(self) -> None:
        problem, asked, restrictions = self.problem, self.asked, frozenset(self.asked.restrictions)
        self.space, self.target = problem.space, problem.target
        self.searched = Searched(restrictions, self.effort)
        self.deciding = Deciding(self.space, self.target, problem.rejected, asked.choose, restrictions)
        self.incumbents = _Incumbents(self.space, self.target, _INCUMBENTS)

    def search(self) -> None:
        """Search for everything in the options, the plan first."""
        space, target, asked, searched = self.space, self.target, self.asked, self.searched
        self.effort.tell(0.0)
        if not space.pools:
            changes = quota_changes(space, target, searched)
            self.infeasible = by_quota(changes) if changes else _no_pools(self.problem)
            return
        simple: list[Draft] = []
        for first in (True, False) if asked.decide else ():
            simple = [draft for draft in homogeneous(space, target, first=first) if self.deciding.keeps(draft)]
            self.deciding.add(simple)
            self._tell(None)
        self.answer, chosen = self._best()
        if chosen is None:
            self.infeasible = explain_infeasible(space, target, searched, exact=self.answer.exhausted)
            # The searches for reasons may have found a plan that the first one missed.
            self.answer, chosen = self._best()
        if chosen is None:
            return
        self.chosen, self.infeasible = chosen, None
        shared, chosen = self._shared(chosen)
        self.chosen = chosen
        effort = self.effort.between(searched.share, 1.0)
        border = 0.3 if asked.frontier else 1.0
        rest = effort.between(border, 1.0)
        drafts = [chosen.draft, *self.answer.drafts, *self.answer.others, *simple]
        self.deciding.add(drafts)
        self._tell(chosen)
        alternatives = self.alternatives = Alternatives(
            space, target, chosen.draft, effort.between(0.0, border), drafts
        )
        gap = self.answer.gap(float(replayed(chosen.draft, chosen.evaluation)[target.goal]))
        self.proven = gap is not None and gap <= OPTIMAL_GAP
        if asked.alternatives:
            known = {*asked.restrictions, *([Restriction.EVEN_BATCHES] if space.even_batches else [])}
            extras = [extra for extra in _SMALLER_SPACES if not set(extra) <= known]
            alternatives.restricted([(*asked.restrictions, *extra) for extra in extras])
            self._take(chosen if self.proven else alternatives.or_better(chosen))
        drafts = [self.chosen.draft, *self.answer.drafts, *self.answer.others]
        if asked.decide:
            self.deciding.add(alternatives.drafts)
            if goal_pick(space.scenario.job.goal) is Pick.CHEAPEST and not self.answer.exhausted:
                self.deciding.add(self._fast(effort))
            self.deciding.explore(effort)
            self.deciding.add(shared)
        effort.tell(border)
        if asked.decide:
            self._pick(proven=self.proven)
            if not self.proven:
                self._improve()
            self._cheaper()
            self.deciding.look_near(self.picks[self.deciding.picked])
            # A plan that was found for the price of insisting may be a better choice.
            self._pick(proven=self.proven)
            self._decide()
        if asked.frontier:
            # Moves from a plan with ZeRO-2 or 3 would make its pipelines differ.
            free = [draft for draft in (*drafts, *alternatives.drafts, *self.deciding.drafts) if draft.zero_stage < 2]
            spread_out = self._spread(rest.between(0.0, 0.9), free)
            if asked.decide:
                # A point of the frontier may be a better choice, and none may beat a choice in time and money.
                self.deciding.add(spread_out)
                self._pick(proven=self.proven)
                self.picks = self.deciding.unbeaten_picks(self.picks)
                self._decide()
            every = [*spread_out, *shared, *self.deciding.drafts]
            self.points = frontier(space, every, self.chosen, rest.between(0.9, 1.0))
        if asked.top:
            alternatives.kinds(drafts, most=asked.top)
        if asked.alternatives:
            alternatives.update([*alternatives.drafts, *self.deciding.drafts])
            drafts = [*self.deciding.drafts, *alternatives.drafts, *self.answer.drafts, *self.answer.others]
            self.joined = over_clouds(space, target, self.chosen.draft, drafts)

    def _best(self) -> tuple[Answer, Chosen | None]:
        """Return the answer of a search; without a bound if the job allows more than 1F1B and ZeRO-0 and 1."""
        answer, chosen = self.searched.best(self.space, self.target)
        training = self.space.scenario.job.training
        scheduled = training.zero_bubble or training.interleaved
        if scheduled or (training.max_zero_stage or 0) >= 2:
            answer = replace(answer, bound=None, exhausted=False)
        engine = self.space.scenario.engine
        # The search of uniform engines has compared the schedules already, and moves make pipelines differ.
        if chosen is not None and scheduled and len(engine.schedules) > 1 and not engine.uniform:
            near = (*answer.drafts, *answer.others)
            chosen = rescheduled(self.space, self.target, chosen, near, self.deciding.keeps)
        return answer, chosen

    def _shared(self, chosen: Chosen) -> tuple[list[Draft], Chosen]:
        """Return plans with ZeRO-2 and 3 if the job allows them, and the better of the best one and `chosen`."""
        alike = _alike(self.space)
        if alike is None:
            return [], chosen
        restrictions, effort = frozenset(self.asked.restrictions), self.effort.quiet()
        answer, best = Searched(restrictions, effort).best(alike, self.target)
        known = {own: number for number, own in enumerate(self.space.numbers)}
        if not set(alike.numbers) <= set(known):
            return [], chosen
        # Other plans than the goal's, for the other choices.
        deciding = Deciding(alike.restricted(even_batches=True), self.target, restrictions=restrictions)
        found = [*([] if best is None else [best.draft]), *answer.drafts, *answer.others]
        deciding.add(evaluated(alike, self.target, found, effort))
        for stage in zero_stages(alike):
            simple = homogeneous_at(deciding.space.at(stage), self.target)
            deciding.add(replace(draft, zero_stage=stage) for draft in simple)
        deciding.explore(effort)
        there = [draft for draft in deciding.drafts if draft.zero_stage >= 2 and _one_shape(draft)]
        pools = [known[own] for own in alike.numbers]
        here = [_in_pools(draft, pools) for draft in evaluated(alike, self.target, there, effort)]
        if best is None or best.draft.zero_stage < 2:
            return here, chosen
        ours, theirs = (float(replayed(each.draft, each.evaluation)[self.target.goal]) for each in (chosen, best))
        return here, chosen if ours <= theirs else replace(best, draft=_in_pools(best.draft, pools))

    def _fast(self, effort: Effort) -> list[Draft]:
        """Return fast plans for the choices of a job that minimises money, which its own search does not look for."""
        target = replace(self.target, goal=Figure.ITERATION_S)
        light = replace(effort.lighter().quiet(), depth=0.0)
        answer = solve(self.space, target, self.asked.restrictions, light)
        return [*answer.drafts, *answer.others]

    def end_early(self) -> None:
        """Make the best plan known so far the answer. Raises OutOfTimeError if there is none."""
        self.cut_short = self.deciding.cut_short = True
        met = [draft for _, draft in self.incumbents.kept if self.deciding.keeps(draft)]
        self.deciding.add(met)
        if self.chosen is None or self.alternatives is None:
            near = sorted(self.deciding.drafts, key=lambda draft: (draft.foreseen[self.target.goal], draft.order()))
            excess = Assessor(self.space, self.target).excess
            kept = [draft for draft in near if excess(draft, draft.foreseen) == 1.0]
            self.chosen = best_that_holds(self.space, self.target, kept[:_EVALUATED])
            self.chosen = self.chosen or first_that_holds(self.space, self.target, kept[:_INCUMBENTS])
            if self.chosen is None:
                found = self.incumbents.nearest
                raise OutOfTimeError(nearest(self.target, found) if found else "")
            self.answer = replace(self.answer, drafts=(self.chosen.draft,), exhausted=False)
            self.alternatives = Alternatives(self.space, self.target, self.chosen.draft, self.effort, met)
        if self.asked.decide and self.decision is None:
            self._pick(proven=False)
            self._decide()
        if self.asked.frontier and self.decision is not None and not self.points:
            self.decision = replace(self.decision, notes=(*self.decision.notes, _NO_FRONTIER))

    def raise_bound(self, *, prove: bool) -> None:
        """Raise the bound by money and egress, or to prove for as long as a proof may take.

        Only a proof may find a better plan, if it enumerates all plans.
        """
        by_goal = self.decision is None or self.decision.chosen is goal_pick(self.space.scenario.job.goal)
        if self.chosen is None or self.answer.bound is None or self.answer.exhausted or not by_goal:
            return
        from sailor_cloud.planner.bound.proof import proven_bound

        figures = replayed(self.chosen.draft, self.chosen.evaluation)
        known_s, value = float(figures[Figure.ITERATION_S]), float(figures[self.target.goal])
        deadline = self.space.known.deadline
        if prove:
            deadline.now_s, deadline.at_s = time.process_time, time.process_time() + _PROOF_S
        bound, branch = proven_bound(self.space, self.target, known_s, self.answer.bound, branched=prove)
        self.answer, self.weakest_branch = replace(self.answer, bound=bound), branch or None
        if prove and share_above(value, bound) > OPTIMAL_GAP and not self.asked.restrictions:
            self._enumerate(value)
        deadline.lift()

    def bound_uniform(self, *, prove: bool) -> None:
        """Bound the goal of all plans with equal pipelines, if the plan is one of them.

        To prove, raise the bound for as long as a proof may take.
        """
        by_goal = self.decision is None or self.decision.chosen is goal_pick(self.space.scenario.job.goal)
        from sailor_cloud.planner.uniform import is_uniform, uniform_bound

        if self.chosen is None or not by_goal or not is_uniform(self.space, self.chosen.draft):
            return
        value = float(replayed(self.chosen.draft, self.chosen.evaluation)[self.target.goal])
        deadline = self.space.known.deadline
        if prove:
            deadline.now_s, deadline.at_s = time.process_time, time.process_time() + _PROOF_S
        parts = variants(self.space, self.asked.restrictions)
        bounds = [uniform_bound(part, self.target, value, branched=prove) for part in parts]
        deadline.lift()
        known = [bound for bound in bounds if bound is not None]
        self.answer = replace(self.answer, bound=min(known) if len(known) == len(bounds) else None)

    def _enumerate(self, known: float) -> None:
        """Enumerate all plans if they are few enough and time is left, and take a better one than that of `known`."""
        try:
            every = enumerated(self.space, self.target, known)
        except OutOfTimeError:
            return
        if every is None:
            return
        assert self.answer.bound is not None, "a proof starts from a bound"
        assert every.bound is not None, "an enumeration has a bound"
        if every.bound > self.answer.bound:
            self.answer, self.weakest_branch = replace(self.answer, bound=every.bound), None
        if every.drafts and self.decision is not None:
            self.deciding.add(every.drafts)
            self._pick(proven=False)
            self._decide()

    def _improve(self) -> None:
        """Let the local search start from the goal's plan if only the search for other choices found it."""
        best = self.picks[goal_pick(self.space.scenario.job.goal)].draft
        known = {(draft.zero_stage, shapes_of(draft)) for draft in (*self.answer.drafts, *self.answer.others)}
        if self._may_move(best) and (best.zero_stage, shapes_of(best)) not in known:
            self.deciding.add(improved(self.space, self.target, [best], self.effort.quiet(), most=1))
            self._pick(proven=False)

    def _cheaper(self) -> None:
        """Let a short local search for money start from the cheapest choice, if the goal is time."""
        job, best = self.space.scenario.job, self.picks[Pick.CHEAPEST].draft
        if goal_pick(job.goal) is not Pick.CHEAPEST and self._may_move(best) and not self.answer.exhausted:
            money = Figure.USD_PER_ITERATION if job.training.steps is None else Figure.TOTAL_USD
            light = self.effort.lighter().quiet()
            self.deciding.add(improved(self.space, replace(self.target, goal=money), [best], light, most=1))

    def _may_move(self, draft: Draft) -> bool:
        """Return whether a local search from a draft stays within what the job asks for."""
        job = self.space.scenario.job
        scheduled = job.training.zero_bubble or job.training.interleaved or self.space.scenario.engine.uniform
        return not scheduled and not self.asked.restrictions and draft.zero_stage < 2

    def _pick(self, *, proven: bool) -> None:
        """Find the plan of each choice; the goal's is that of the search unless a better one is known."""
        assert self.chosen is not None, "choices come after the plan"
        by_goal = self.picks.get(goal_pick(self.space.scenario.job.goal), self.chosen)
        self.picks = self.deciding.picks(self.effort.quiet(), by_goal, proven=proven)

    def _decide(self) -> None:
        self.decision = self.deciding.decision(self.picks)
        self._take(self.picks[self.deciding.picked])

    def _take(self, best: Chosen) -> None:
        """Replace the chosen plan."""
        assert self.chosen is not None, "it replaces another one"
        assert self.alternatives is not None
        if best is not self.chosen:
            self.chosen = self.alternatives.replace_chosen(best, self.chosen)

    def _tell(self, chosen: Chosen | None) -> None:
        """Report the choices so far to the caller if it asked for them."""
        if self.asked.decide and self.asked.deciding is not None:
            decision = self.deciding.decision(self.deciding.picks(self.effort, chosen), complete=False)
            if decision is not None:
                self.asked.deciding(decision)

    def _spread(self, effort: Effort, drafts: Sequence[Draft]) -> list[Draft]:
        """Return drafts and further ones over the whole range from the fastest to the cheapest."""
        space, restrictions, every = self.space, self.asked.restrictions, list(drafts)
        if not self.answer.exhausted and not restrictions:
            from sailor_cloud.planner.seeds.frontier_seeds import spread

            every += spread(space, effort.between(0.0, 0.6))
        every = evaluated(space, self.target, every, effort)
        # No move adds an accelerator or a zone; many make pipelines differ.
        if set(restrictions) <= {Restriction.ONE_ACCELERATOR, Restriction.ONE_ZONE}:
            every += explored(space, self.target, every, effort.between(0.6, 1.0))
        return every

    def document(self, search: Search) -> PlanDocument:
        """Return the answer."""
        problem, space, target = self.problem, self.space, self.target
        chosen, alternatives = self.chosen, self.alternatives
        if chosen is None or alternatives is None:
            assert self.infeasible is not None, "a search ends with a plan or without"
            return infeasible_document(space.scenario, self.infeasible, problem.rejected, search)
        found = alternatives.found if self.asked.alternatives else ()
        plans = [to_plan(space, chosen.draft), *(other.plan for other in found)] if self.asked.alternatives else []
        around = Surroundings(
            rejected=(*problem.rejected, *alternatives.rejected),
            alternatives=(*alternatives.found, *(apart(space.scenario, plans) or self.joined)),
            frontier=self.points,
            gap_parts=_gap_parts(space, target, self.answer, chosen, self.asked),
            limited=self.asked.time_limit_s is not None,
            decision=self.decision,
        )
        return plan_document(space, target, chosen, self.answer, around, search)


def _no_pools(problem: Problem) -> Infeasibility:
    reasons = "; ".join(f"{row.what} {row.why}" for row in problem.rejected)
    return Infeasibility(
        constraint="resources",
        limit=None,
        needed=None,
        unit="",
        message=f"none of the job's accelerators can be used: {reasons}",
    )


def _gap_parts(
    space: Space, target: Target, answer: Answer, chosen: Chosen, asked: SearchOptions
) -> tuple[GapPart, ...]:
    """Return the parts of the gap between the bound and the plan, if the bound is that of the whole space."""
    formulas = space.scenario.engine.formulas
    if answer.bound is None or answer.exhausted or asked.restrictions or formulas is not None:
        return ()
    return gap_parts(space, target, chosen.draft, replayed(chosen.draft, chosen.evaluation))
