"""Turns the result of a search into a PlanDocument."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.model.document import (
    SCHEMA_VERSION,
    Alternative,
    Decision,
    FrontierPoint,
    GapPart,
    Infeasibility,
    Inputs,
    Objective,
    PlanDocument,
    Rejected,
    Search,
    Status,
)
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.explain.decision import goal_pick
from sailor_cloud.planner.improvement.choice import Chosen
from sailor_cloud.planner.space.answer import OPTIMAL_GAP, Answer
from sailor_cloud.planner.space.draft import to_plan
from sailor_cloud.planner.space.goals import Figure, Target, target_of
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, Scenario
from sailor_cloud.simulator.engines import SAILOR
from sailor_cloud.simulator.lifetime import ttl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a document holds besides the plan. `limited`: the search had a time limit, so nothing is proven."""

    rejected: tuple[Rejected, ...]
    alternatives: tuple[Alternative, ...] = ()
    frontier: tuple[FrontierPoint, ...] = ()
    gap_parts: tuple[GapPart, ...] = ()
    limited: bool = False
    decision: Decision | None = None


def plan_document(
    space: Space, target: Target, chosen: Chosen, answer: Answer, around: Surroundings, search: Search
) -> PlanDocument:
    """Return the document of a plan with its proof."""
    scenario, evaluation = space.scenario, chosen.evaluation
    plan = to_plan(space, chosen.draft)
    value = float(replayed(chosen.draft, evaluation)[target.goal])
    # The bound applies to the goal, so it says nothing about a plan that was chosen for another reason.
    off_goal = around.decision is not None and around.decision.chosen is not goal_pick(scenario.job.goal)
    gap = None if off_goal else answer.gap(value)
    proven = gap is not None and gap <= OPTIMAL_GAP and not around.limited
    offers = {node.offer for node in plan.nodes}
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.OPTIMAL if proven else Status.FEASIBLE,
        created_at=scenario.as_of,
        as_of=scenario.as_of,
        job=scenario.job,
        inputs=Inputs(
            offers=Rows(scenario.offers[offer] for offer in sorted(offers)),
            links=evaluation.links,
            compute_profiles=evaluation.profiles,
            machine=scenario.machine,
            corrections=evaluation.corrections,
        ),
        objective=_objective(scenario.job, value),
        constraints=scenario.job.constraints,
        optimality_gap=gap,
        bound=None if answer.bound is None or off_goal else _shown(scenario.job, answer.bound),
        search=search,
        plan=plan,
        prediction=evaluation.prediction,
        cost=evaluation.cost,
        ttl_s=_ttl_s(scenario, plan, evaluation),
        infeasibility=None,
        alternatives=Rows(around.alternatives),
        rejected=around.rejected,
        frontier=Rows(around.frontier),
        gap_parts=() if proven or off_goal else around.gap_parts,
        engine=scenario.engine.name,
        totals=evaluation.totals,
        decision=around.decision,
    )


def given_document(scenario: Scenario, plan: Plan, evaluation: Evaluation) -> PlanDocument:
    """Return the document of a plan that a user stated; it may use everything that the scenario offers."""
    runnable = evaluation.bill is not None and scenario.engine.name == SAILOR.name
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.GIVEN,
        created_at=scenario.as_of,
        as_of=scenario.as_of,
        job=scenario.job,
        inputs=Inputs(
            offers=Rows(scenario.offers[name] for name in sorted(scenario.offers)),
            links=evaluation.links,
            compute_profiles=evaluation.profiles,
            machine=scenario.machine,
            unpriced=tuple(scenario.unpriced[name] for name in sorted(scenario.unpriced)),
            corrections=evaluation.corrections,
        ),
        objective=None,
        constraints=scenario.job.constraints,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=0.0),
        plan=plan,
        prediction=evaluation.prediction,
        cost=evaluation.bill,
        ttl_s=_ttl_s(scenario, plan, evaluation) if runnable else None,
        infeasibility=None,
        alternatives=Rows(),
        rejected=(),
        engine=scenario.engine.name,
        totals=evaluation.totals,
    )


def infeasible_document(
    scenario: Scenario, why: Infeasibility, rejected: tuple[Rejected, ...], search: Search
) -> PlanDocument:
    """Return the document of a job without a plan."""
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.INFEASIBLE,
        created_at=scenario.as_of,
        as_of=scenario.as_of,
        job=scenario.job,
        inputs=Inputs(offers=Rows(), links=(), compute_profiles=(), machine=scenario.machine),
        objective=None,
        constraints=scenario.job.constraints,
        optimality_gap=None,
        bound=None,
        search=search,
        plan=None,
        prediction=None,
        cost=None,
        ttl_s=None,
        infeasibility=why,
        alternatives=Rows(),
        rejected=rejected,
        engine=scenario.engine.name,
    )


def _ttl_s(scenario: Scenario, plan: Plan, evaluation: Evaluation) -> float | None:
    offers = [scenario.offers[name] for name in sorted({node.offer for node in plan.nodes})]
    duration_s = evaluation.prediction.duration_s
    limits, as_of = scenario.job.constraints, scenario.as_of
    return ttl_s(limits, evaluation.cost, duration_s=duration_s, offers=offers, as_of=as_of)


def _objective(job: Job, value: float) -> Objective:
    return Objective(goal=job.goal, value=_shown(job, value), unit=objective_unit(job))


def objective_unit(job: Job) -> str:
    """Return the unit in which a job's goal is shown."""
    units = {
        Figure.ITERATION_S: "s",
        Figure.DURATION_S: "s",
        Figure.TOTAL_USD: "USD",
        Figure.USD_PER_ITERATION: "USD/iteration",
    }
    return "iterations/s" if job.goal is Goal.MAXIMIZE_THROUGHPUT else units[target_of(job).goal]


def _shown(job: Job, figure: float) -> float:
    """Return a minimised figure as the goal shows it: seconds per iteration become iterations per second."""
    return 1.0 / figure if job.goal is Goal.MAXIMIZE_THROUGHPUT else figure
