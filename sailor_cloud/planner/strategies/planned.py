"""A PlanDocument from a published planner instead of our search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sailor_cloud.model.document import Infeasibility, PlanDocument, Search, Status, StrategyRun
from sailor_cloud.planner.documents import given_document, infeasible_document
from sailor_cloud.planner.space.candidates import Candidates
from sailor_cloud.planner.space.goals import Figure, Target, figures_of, target_of
from sailor_cloud.planner.strategies.cluster import clusters_of
from sailor_cloud.planner.strategies.driver import Outcome, best_of, iteration_s
from sailor_cloud.planner.strategies.strategy import Strategy
from sailor_cloud.simulator import Evaluation, Scenario


def plans_by(
    strategy: Strategy,
    scenario: Scenario,
    candidates: Candidates,
    *,
    elapsed_s: Callable[[], float],
    time_limit_s: float | None = None,
) -> Iterator[PlanDocument]:
    """Yield the document of a strategy's plan, then of the plan that our simulator chooses among the strategy's.

    They are at most feasible, never proven. `elapsed_s` returns the time since the start; both share the time limit.
    """
    target = target_of(scenario.job)
    for outcome in best_of(
        strategy,
        clusters_of(scenario, candidates),
        allowed=lambda evaluation: keeps(target, evaluation, scenario.job.constraints.probability),
        score=iteration_s
        if target.goal is Figure.ITERATION_S
        else lambda evaluation: float(figures_of(evaluation)[target.goal]),
        expired=lambda: time_limit_s is not None and elapsed_s() >= time_limit_s,
    ):
        yield _document(outcome, scenario, candidates, elapsed_s())


def _document(outcome: Outcome, scenario: Scenario, candidates: Candidates, seconds: float) -> PlanDocument:
    search = Search(seconds=seconds, cut_short=outcome.cut_short, strategy=_run(outcome))
    if outcome.plan is None or outcome.evaluation is None:
        message = _why(outcome) if candidates.pools else "no node of the job's resources can be used"
        why = Infeasibility(constraint="strategy", limit=None, needed=None, unit="", message=message)
        return infeasible_document(scenario, why, candidates.rejected, search)
    used = {node.offer for node in outcome.plan.nodes}
    own = replace(scenario, offers={name: offer for name, offer in scenario.offers.items() if name in used})
    document = given_document(own, outcome.plan, outcome.evaluation)
    return replace(document, status=Status.FEASIBLE, rejected=candidates.rejected, search=search)


def keeps(target: Target, evaluation: Evaluation, probability: float | None = None) -> bool:
    """Return whether a plan keeps every limit of the job, with its `probability` if given."""
    within = None if evaluation.totals is None else evaluation.totals.within_limits
    likely = probability is None or within is None or within >= probability
    return likely and bool(target.feasible(figures_of(evaluation)))


def _run(outcome: Outcome) -> StrategyRun:
    return StrategyRun(
        name=outcome.strategy.name,
        oracle=outcome.oracle,
        estimate_s=outcome.estimate_s,
        proposals=outcome.proposals,
        out_of_memory=outcome.out_of_memory,
        over_limits=outcome.over_limits,
        inexpressible=outcome.inexpressible,
    )


def _why(outcome: Outcome) -> str:
    name = outcome.strategy.name
    if outcome.cut_short:
        return f"the time limit ended {name} before it found a plan that fits"
    if not outcome.proposals:
        return f"{name} has no plan for these nodes; docs/strategies.md says what it can't express"
    counted = (
        (outcome.out_of_memory, "do not fit in memory"),
        (outcome.over_limits, "break a limit of the job"),
        (outcome.inexpressible, "can't be stated in whole microbatches or nodes"),
    )
    lost = ", ".join(f"{count} {what}" for count, what in counted if count)
    return f"{name} proposes {outcome.proposals} plans" + (f"; of those looked at {lost}" if lost else "")
