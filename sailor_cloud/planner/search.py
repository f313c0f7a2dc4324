"""From a job to its PlanDocument."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import Clock
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import (
    SCHEMA_VERSION,
    Infeasibility,
    Inputs,
    Objective,
    PlanDocument,
    Rejected,
    Search,
    Status,
)
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.network import Network
from sailor_cloud.planner import exhaustive
from sailor_cloud.planner.answer import OPTIMAL_GAP, Answer
from sailor_cloud.planner.candidates import collect
from sailor_cloud.planner.draft import Draft, in_space, to_plan
from sailor_cloud.planner.goals import Figure, Target, target_of
from sailor_cloud.planner.infeasible import explain_infeasible
from sailor_cloud.planner.lifetime import ttl_s
from sailor_cloud.planner.mixing import mix
from sailor_cloud.planner.space import Space, build
from sailor_cloud.planner.variants import Restriction, variants
from sailor_cloud.simulator import Evaluation, Scenario, evaluate
from sailor_cloud.workload import ComputeProfiles
from sailor_cloud.workload import decoder as decoder_of

Floats = NDArray[np.float64]

# Drafts kept for the check under the replay; the best one that keeps the constraints there is the answer.
KEPT_DRAFTS = 16

# Searches with limits tightened by the replay's excess, and how much more than the excess they are tightened.
REPEATS = 3
TIGHTER = 1.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    draft: Draft
    evaluation: Evaluation


def search(
    job: Job,
    *,
    catalog: Catalog,
    network: Network,
    profiles: ComputeProfiles,
    clock: Clock,
    decoder: Decoder | None = None,
    restrictions: Collection[Restriction] = (),
) -> PlanDocument:
    """Return the best plan for a job with its proof, or what makes the job infeasible.

    `decoder` is the model of the job where the caller has read it already; `restrictions` make the space smaller.
    Raises RequestError for an unknown model, DataError for an unknown accelerator and for a path without bandwidth or
    price.
    """
    started = clock.monotonic_s()
    candidates = collect(job, catalog)
    scenario = Scenario(
        job=job,
        decoder=decoder if decoder is not None else decoder_of(job.model),
        offers={pool.offer.id: pool.offer for pool in candidates.pools},
        catalog=catalog,
        network=network,
        profiles=profiles,
        as_of=clock.now(),
    )
    space, fallen_out = build(scenario, candidates)
    rejected = (*candidates.rejected, *fallen_out)
    target = target_of(job)
    if not space.pools:
        reasons = "; ".join(f"{row.what} {row.why}" for row in rejected)
        nothing = Infeasibility(
            constraint="resources",
            limit=None,
            needed=None,
            unit="",
            message=f"none of the job's accelerators can be used: {reasons}",
        )
        return _infeasible(scenario, nothing, rejected, Answer(drafts=(), bound=None, columns=0, nodes=0), 0.0)
    searched = _Searched(frozenset(restrictions))
    answer, chosen = searched.best(space, target)
    if chosen is None:
        why = explain_infeasible(space, target, searched.reachable)
        return _infeasible(scenario, why, rejected, answer, clock.monotonic_s() - started)
    return _document(space, target, chosen, answer, rejected, clock.monotonic_s() - started)


def solve(space: Space, target: Target, restrictions: Collection[Restriction] = ()) -> Answer:
    """Return the best drafts for a target over the parts of a space; a draft stands in the space that it names."""
    answers = [(part, _solve_part(part, target)) for part in variants(space, restrictions)]
    if len(answers) == 1 and answers[0][0] is space:
        return answers[0][1]
    drafts = [in_space(draft, part, space) for part, answer in answers for draft in answer.drafts]
    bounds = [answer.bound for _, answer in answers]
    return Answer(
        drafts=tuple(sorted(drafts, key=Draft.order)[:KEPT_DRAFTS]),
        bound=min((bound for bound in bounds if bound is not None), default=None),
        columns=sum(answer.columns for _, answer in answers),
        nodes=sum(answer.nodes for _, answer in answers),
    )


def _solve_part(space: Space, target: Target) -> Answer:
    """Solve by going through all plans where they are few, else by mixing pipelines."""
    layouts = exhaustive.small_layouts(space)
    if layouts is None:
        return mix(space, target, keep=KEPT_DRAFTS)
    found = exhaustive.exhaust(space, target, layouts, keep=KEPT_DRAFTS)
    best = found.drafts[0].figures[target.goal] if found.drafts else None
    return Answer(drafts=found.drafts, bound=best, columns=found.plans, nodes=len(layouts))


@dataclass(slots=True)
class _Searched:
    """Searches already made, since reasons for infeasibility ask for the same ones again."""

    restrictions: frozenset[Restriction]
    known: list[tuple[Space, Target, Answer]] = field(default_factory=list)

    def answer(self, space: Space, target: Target) -> Answer:
        for known_space, known_target, answer in self.known:
            if known_space is space and known_target == target:
                return answer
        self.known.append((space, target, solve(space, target, self.restrictions)))
        return self.known[-1][2]

    def best(self, space: Space, target: Target) -> tuple[Answer, _Chosen | None]:
        """Return the answer by the closed form, and the best plan that keeps the limits under the replay, too.

        Where none of the best drafts does, limits are tightened by what the replay missed them and the search is
        repeated; at last the plans that are best by the limits' own figures are tried.
        """
        answer = self.answer(space, target)
        tightened, drafts = target, answer.drafts
        chosen = _first_that_holds(space, target, drafts)
        for _ in range(REPEATS):
            if chosen is not None or not drafts:
                break
            tightened = _tightened(target, tightened, drafts[0], evaluate(to_plan(space, drafts[0]), space.scenario))
            drafts = self.answer(space, tightened).drafts
            chosen = _first_that_holds(space, target, drafts)
        for limit in target.limits:
            others = replace(target.without(limit.name), goal=limit.figure)
            least = [] if chosen is not None else self.answer(space, others).drafts
            chosen = chosen or _first_that_holds(space, target, least)
            if chosen is not None or (least and least[0].figures[limit.figure] > limit.at_most):
                break
        return answer, chosen

    def reachable(self, space: Space, target: Target) -> float | None:
        """Return the goal's figure of the best plan under the replay, or None if there is no plan."""
        _, chosen = self.best(space, target)
        return None if chosen is None else float(_replayed(chosen.draft, chosen.evaluation)[target.goal])


def _tightened(target: Target, before: Target, draft: Draft, evaluation: Evaluation) -> Target:
    """Return the target with each limit as much lower as the replay's figure of a draft is higher."""
    figures = _replayed(draft, evaluation)
    limits = []
    for limit, last in zip(target.limits, before.limits, strict=True):
        excess = float(figures[limit.figure]) / draft.figures[limit.figure]
        limits.append(replace(last, at_most=min(last.at_most, limit.at_most / max(1.0, excess * TIGHTER))))
    return replace(target, limits=tuple(limits))


def _first_that_holds(space: Space, target: Target, drafts: Sequence[Draft]) -> _Chosen | None:
    """Return the best draft whose plan keeps the constraints under the replay, too."""
    for draft in drafts:
        evaluation = evaluate(to_plan(space, draft), space.scenario)
        if evaluation.fits and target.feasible(_replayed(draft, evaluation)).all():
            return _Chosen(draft=draft, evaluation=evaluation)
    return None


def _replayed(draft: Draft, evaluation: Evaluation) -> dict[Figure, Floats]:
    """Return the figures of a plan by the replay and the whole bill."""
    prediction, cost = evaluation.prediction, evaluation.cost
    figures = {
        Figure.ITERATION_S: prediction.iteration_s_replay,
        Figure.DURATION_S: math.inf if prediction.duration_s is None else prediction.duration_s,
        Figure.TOTAL_USD: math.inf if cost.total_usd is None else cost.total_usd,
        Figure.USD_PER_ITERATION: cost.usd_per_iteration,
        Figure.USD_PER_HOUR: cost.usd_per_hour,
        Figure.NODES: draft.figures[Figure.NODES],
    }
    return {figure: np.array(value) for figure, value in figures.items()}


def _document(
    space: Space,
    target: Target,
    chosen: _Chosen,
    answer: Answer,
    rejected: tuple[Rejected, ...],
    seconds: float,
) -> PlanDocument:
    scenario, evaluation = space.scenario, chosen.evaluation
    plan = to_plan(space, chosen.draft)
    value = chosen.draft.figures[target.goal]
    gap = None if answer.bound is None else max(0.0, value - answer.bound) / value
    proven = gap is not None and gap <= OPTIMAL_GAP
    offers = {node.offer for node in plan.nodes}
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        created_at=scenario.as_of,
        as_of=scenario.as_of,
        job=scenario.job,
        inputs=Inputs(
            offers=tuple(scenario.offers[offer] for offer in sorted(offers)),
            links=evaluation.links,
            compute_profiles=evaluation.profiles,
        ),
        objective=_objective(scenario.job, target, value),
        constraints=scenario.job.constraints,
        optimality_gap=gap,
        bound=None if answer.bound is None else _shown(scenario.job, answer.bound),
        search=Search(seconds=seconds, columns=answer.columns, nodes=answer.nodes),
        plan=plan,
        prediction=evaluation.prediction,
        cost=evaluation.cost,
        ttl_s=ttl_s(scenario.job.constraints, evaluation.cost),
        infeasibility=None,
        alternatives=(),
        rejected=rejected,
    )


def _infeasible(
    scenario: Scenario, why: Infeasibility, rejected: tuple[Rejected, ...], answer: Answer, seconds: float
) -> PlanDocument:
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.INFEASIBLE,
        created_at=scenario.as_of,
        as_of=scenario.as_of,
        job=scenario.job,
        inputs=Inputs(offers=(), links=(), compute_profiles=()),
        objective=None,
        constraints=scenario.job.constraints,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=seconds, columns=answer.columns, nodes=answer.nodes),
        plan=None,
        prediction=None,
        cost=None,
        ttl_s=None,
        infeasibility=why,
        alternatives=(),
        rejected=rejected,
    )


def _objective(job: Job, target: Target, value: float) -> Objective:
    units = {
        Figure.ITERATION_S: "s",
        Figure.DURATION_S: "s",
        Figure.TOTAL_USD: "USD",
        Figure.USD_PER_ITERATION: "USD/iteration",
    }
    unit = "iterations/s" if job.goal is Goal.MAXIMIZE_THROUGHPUT else units[target.goal]
    return Objective(goal=job.goal, value=_shown(job, value), unit=unit)


def _shown(job: Job, figure: float) -> float:
    """Return a minimised figure as the goal counts it: seconds of an iteration as iterations per second."""
    return 1.0 / figure if job.goal is Goal.MAXIMIZE_THROUGHPUT else figure
