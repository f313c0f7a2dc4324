"""From a job to its PlanDocument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import Clock
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import (
    Decision,
    FrontierPoint,
    GapPart,
    Infeasibility,
    Pick,
    PlanDocument,
    Rejected,
)
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Network
from sailor_cloud.planner.answer import OPTIMAL_GAP, Answer
from sailor_cloud.planner.apart import apart
from sailor_cloud.planner.beside import Beside
from sailor_cloud.planner.candidates import collect
from sailor_cloud.planner.decision import Deciding, goal_pick
from sailor_cloud.planner.documents import Surroundings, infeasible_document, plan_document
from sailor_cloud.planner.draft import Draft, to_plan
from sailor_cloud.planner.effort import NORMAL, Effort
from sailor_cloud.planner.frontier import explored, frontier
from sailor_cloud.planner.gap import gap_parts
from sailor_cloud.planner.goals import Target, target_of
from sailor_cloud.planner.homogeneous import homogeneous
from sailor_cloud.planner.improvement import evaluated
from sailor_cloud.planner.improvement.choice import Chosen
from sailor_cloud.planner.infeasible import by_quota, explain_infeasible
from sailor_cloud.planner.probable import probable, tightened
from sailor_cloud.planner.quota_change import quota_changes
from sailor_cloud.planner.replayed import replayed
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space import Space, build
from sailor_cloud.planner.spread import spread
from sailor_cloud.planner.team import Team, together
from sailor_cloud.planner.variants import Restriction
from sailor_cloud.simulator import Scenario
from sailor_cloud.simulator.engines import SAILOR, Engine
from sailor_cloud.workload import ComputeProfiles
from sailor_cloud.workload import decoder as decoder_of

# Smaller spaces whose best plans stand beside the chosen one.
_BESIDE = tuple((restriction,) for restriction in Restriction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a search is asked for beyond the plan.

    `restrictions` make the space smaller. `beside`: also the best plans of smaller spaces, one of which is the
    answer where the search of all found none as good. `frontier`: also the plans from the fastest to the cheapest
    that no other one beats in both. `top`: also so many plans of other kinds. `decide`: also the cheapest, the balanced
    and the fastest plan, of which `choose` is the answer, else the goal's; `deciding` gets them whenever they may
    have changed. After `time_limit_s` the best plan
    found until then is the answer, and never called optimal. `progress` gets the share of the search that is done,
    ever larger ones. With more than one of `processes` two make the search; the answer is the same.
    """

    restrictions: tuple[Restriction, ...] = ()
    beside: bool = False
    frontier: bool = False
    top: int = 0
    decide: bool = False
    choose: Pick | None = None
    deciding: Callable[[Decision], None] | None = None
    time_limit_s: float | None = None
    progress: Callable[[float], None] | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A job as the search sees it."""

    space: Space
    target: Target
    rejected: tuple[Rejected, ...]


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
    wishes: Wishes | None = None,
) -> PlanDocument:
    """Return the best plan for a job with its proof, or what makes the job infeasible.

    `decoder` is the model of the job where the caller has read it already; `engine` the training program that plans are
    for; `restrictions` make the space smaller.
    Raises RequestError for an unknown model, DataError for an unknown accelerator and for a path without bandwidth or
    price.
    """
    started = clock.monotonic_s()
    problem = problem_of(
        job, catalog=catalog, network=network, profiles=profiles, clock=clock, decoder=decoder, engine=engine
    )
    asked = wishes if wishes is not None else Wishes(restrictions=tuple(restrictions))

    def searched(factor: float, step: int) -> PlanDocument:
        tighter = replace(problem, target=tightened(problem.target, factor))
        told = (
            asked if asked.progress is None or wanted is None else replace(asked, progress=_later(asked.progress, step))
        )
        return together(partial(_search, tighter, told, clock, started), processes=asked.processes)

    wanted = job.constraints.probability
    first = searched(1.0, 0)
    if wanted is None or first.prediction is None:
        return first
    likely = profiles.errors.of_p50(first.prediction.error_p50)
    return probable(wanted, first, ratio=likely.ratio, search=searched)


def _later(tell: Callable[[float], None], step: int) -> Callable[[float], None]:
    """Return what tells the progress of one of several searches; how many there will be nobody knows."""
    return lambda share: tell(1.0 - 0.5**step + 0.5 ** (step + 1) * share)


def _search(problem: Problem, asked: Wishes, clock: Clock, started: float, team: Team) -> PlanDocument:
    effort = _effort(asked, clock, started, team)
    effort.tell(0.0)
    space, target = problem.space, problem.target
    searched = Searched(frozenset(asked.restrictions), effort)
    if not space.pools:
        nothing = Answer(drafts=(), bound=None)
        changes = quota_changes(space, target, searched)
        why = by_quota(changes) if changes else _no_pools(problem)
        return infeasible_document(space.scenario, why, problem.rejected, nothing, 0.0)
    deciding = Deciding(space, target, problem.rejected, asked.choose, frozenset(asked.restrictions))
    simple = [draft for draft in homogeneous(space, target) if deciding.keeps(draft)] if asked.decide else []
    deciding.meet(simple)
    tell = partial(_tell, deciding, asked, effort)
    tell(None)
    answer, chosen = searched.best(space, target)
    if chosen is None:
        why = explain_infeasible(space, target, searched, exact=answer.exhausted)
        # The searches for reasons may have met a plan that the first one missed.
        answer, chosen = searched.best(space, target)
    if chosen is None:
        return infeasible_document(space.scenario, why, problem.rejected, answer, clock.monotonic_s() - started)
    effort = effort.between(searched.share, 1.0)
    border = 0.3 if asked.frontier else 1.0
    drafts = [chosen.draft, *answer.drafts, *answer.others, *simple]
    deciding.meet(drafts)
    tell(chosen)
    beside = Beside(space, target, chosen.draft, effort.between(0.0, border), drafts)
    gap = answer.gap(float(replayed(chosen.draft, chosen.evaluation)[target.goal]))
    proven, best = gap is not None and gap <= OPTIMAL_GAP, chosen
    if asked.beside and not effort.expired():
        known = {*asked.restrictions, *([Restriction.EVEN_BATCHES] if space.even_batches else [])}
        extras = [extra for extra in _BESIDE if not set(extra) <= known]
        beside.restricted([(*asked.restrictions, *extra) for extra in extras])
        best = chosen if proven else beside.overtaken(chosen)
    decision = None
    if asked.decide:
        deciding.meet(beside.drafts)
        deciding.explore(effort)
        picks = deciding.picks(effort, best, proven=proven)
        decision = deciding.decision(picks)
        best = picks[asked.choose or goal_pick(space.scenario.job.goal)]
    if best is not chosen:
        chosen = beside.instead(best, chosen)
    effort.tell(border)
    around = _surroundings(problem, asked, effort.between(border, 1.0), answer, chosen, beside)
    document = plan_document(space, target, chosen, answer, replace(around, decision=decision), 0.0)
    return replace(document, search=replace(document.search, seconds=clock.monotonic_s() - started))


def _tell(deciding: Deciding, asked: Wishes, effort: Effort, chosen: Chosen | None) -> None:
    """Tell what people can choose from so far, where somebody wants to know it."""
    if asked.decide and asked.deciding is not None:
        decision = deciding.decision(deciding.picks(effort, chosen), complete=False)
        if decision is not None and effort.team.leads:
            asked.deciding(decision)


def _effort(asked: Wishes, clock: Clock, started: float, team: Team) -> Effort:
    effort, limit = replace(NORMAL, team=team), asked.time_limit_s
    if asked.progress is not None:
        effort = replace(effort, tell=_Progress(team, asked.progress).tell)
    if limit is not None:
        effort = replace(effort, expired=lambda: team.agreed(lambda: clock.monotonic_s() - started >= limit))
    return effort


@dataclass(slots=True)
class _Progress:
    """Tells the share of a search that is done; an estimate that falls behind what was told is not told."""

    team: Team
    told_to: Callable[[float], None]
    share: float = 0.0

    def tell(self, share: float) -> None:
        self.share = max(self.share, share)
        if self.team.leads:
            self.told_to(self.share)


def _no_pools(problem: Problem) -> Infeasibility:
    reasons = "; ".join(f"{row.what} {row.why}" for row in problem.rejected)
    return Infeasibility(
        constraint="resources",
        limit=None,
        needed=None,
        unit="",
        message=f"none of the job's accelerators can be used: {reasons}",
    )


def _surroundings(
    problem: Problem, asked: Wishes, effort: Effort, answer: Answer, chosen: Chosen, beside: Beside
) -> Surroundings:
    space, target = problem.space, problem.target
    drafts = [chosen.draft, *answer.drafts, *answer.others]
    points: tuple[FrontierPoint, ...] = ()
    if asked.frontier and not effort.expired():
        every = _spread(problem, asked, effort.between(0.0, 0.9), answer, [*drafts, *beside.drafts])
        points = frontier(space, every, chosen, effort.between(0.9, 1.0))
    if asked.top:
        beside.kinds(drafts, most=asked.top)
    return Surroundings(
        rejected=(*problem.rejected, *beside.rejected),
        alternatives=(*beside.found, *apart(space.scenario, _plans(space, chosen, beside) if asked.beside else ())),
        frontier=points,
        gap_parts=_gap_parts(space, target, answer, chosen, asked),
        cut_short=asked.time_limit_s is not None,
    )


def _plans(space: Space, chosen: Chosen, beside: Beside) -> list[Plan]:
    """Return the plans that are shown, the chosen one first."""
    return [to_plan(space, chosen.draft), *(other.plan for other in beside.found)]


def _spread(problem: Problem, asked: Wishes, effort: Effort, answer: Answer, drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts and others over the whole range from the fastest to the cheapest."""
    space, every = problem.space, list(drafts)
    if not answer.exhausted and not asked.restrictions:
        every += spread(space, effort.between(0.0, 0.6))
    every = evaluated(space, problem.target, every, effort)
    # No step adds an accelerator or a zone; many make pipelines differ.
    if set(asked.restrictions) <= {Restriction.ONE_ACCELERATOR, Restriction.ONE_ZONE}:
        every += explored(space, problem.target, every, effort.between(0.6, 1.0))
    return every


def _gap_parts(space: Space, target: Target, answer: Answer, chosen: Chosen, asked: Wishes) -> tuple[GapPart, ...]:
    """Return what lies between the bound and the plan where the bound is that of the whole space."""
    if answer.bound is None or answer.exhausted or asked.restrictions:
        return ()
    return gap_parts(space, target, chosen.draft, replayed(chosen.draft, chosen.evaluation))
