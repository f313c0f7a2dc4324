"""Runs a published planner: takes its ranking, skips plans that do not fit, and evaluates the first that does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from sailor_cloud.errors import RequestError
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy
from sailor_cloud.simulator import Evaluation, evaluate

# The number of plans of a ranking that are checked before a strategy counts as without a plan, and that an oracle
# judges.
MOST_LOOKED_AT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a strategy. `out_of_memory` plans ranked before the chosen one did not fit, `over_limits` ones
    broke a limit of the job.

    `inexpressible`: plans that our format can't state. `oracle`: our simulator chose among its plans. `cut_short`: the
    time limit ended the search.
    """

    strategy: Strategy
    proposals: int
    cut_short: bool
    oracle: bool = False
    plan: Plan | None = None
    evaluation: Evaluation | None = None
    estimate_s: float | None = None
    out_of_memory: int = 0
    over_limits: int = 0
    inexpressible: int = 0


def iteration_s(evaluation: Evaluation) -> float:
    return evaluation.prediction.iteration_s_replay


def computing_s(plan: Plan, cluster: Cluster) -> float:
    """Return the compute seconds of the busiest stage in an iteration, a lower bound of the iteration."""
    accelerators = {node.id: cluster.scenario.offers[node.offer].accelerator for node in plan.nodes}
    stages = {
        (
            pipeline.microbatches,
            (stage.first_layer, stage.end_layer),
            (accelerators[stage.node], len(stage.devices), pipeline.microbatch_size, stage.recompute, plan.zero_stage),
        )
        for pipeline in plan.pipelines
        for stage in pipeline.stages
    }
    known = [(count, layers, cluster.table(*of)) for count, layers, of in stages]
    return max(count * float(table.compute_s(*layers)) for count, layers, table in known if table is not None)


def best_of(
    strategy: Strategy,
    clusters: Sequence[Cluster],
    *,
    allowed: Callable[[Evaluation], bool] = lambda evaluation: True,
    score: Callable[[Evaluation], float] = iteration_s,
    expired: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Yield the best by `score` of the first results of all clusters, then of their second results."""
    walks: list[Iterator[Outcome]] = []
    own: list[Outcome] = []
    for cluster in clusters:
        if not own or not expired():
            walks.append(carried_out(strategy, cluster, allowed=allowed, score=score, expired=expired))
            own.append(next(walks[-1]))
    left_out = len(own) < len(clusters)
    yield _best(own, score, left_out)
    yield _best([next(walk) for walk in walks], score, left_out)


def _best(outcomes: Sequence[Outcome], score: Callable[[Evaluation], float], left_out: bool) -> Outcome:
    best = min(outcomes, key=lambda each: math.inf if each.evaluation is None else score(each.evaluation))
    return replace(best, cut_short=left_out or any(each.cut_short for each in outcomes))


def carried_out(
    strategy: Strategy,
    cluster: Cluster,
    *,
    allowed: Callable[[Evaluation], bool] = lambda evaluation: True,
    score: Callable[[Evaluation], float] = iteration_s,
    expired: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Yield what a user of the strategy would get: the first plan of its ranking that fits and is allowed.

    Then yield the oracle's plan: the best by `score` of the first `MOST_LOOKED_AT` plans of that ranking. `allowed`
    checks the limits of the job, which most strategies ignore.
    """
    ranking, cut_short = _ranking(strategy, cluster, expired)
    best = Outcome(strategy=strategy, proposals=len(ranking), cut_short=cut_short)
    least, bounded = math.inf, score is iteration_s and cluster.scenario.engine.formulas is None
    for proposal in islice(ranking, MOST_LOOKED_AT):
        # The time limit must not hide a proposal that was made in time, so the check continues until one fits.
        if best.plan is not None and expired():
            best = replace(best, cut_short=True)
            break
        try:
            plan = proposal.build()
            if bounded and computing_s(plan, cluster) >= least:
                continue
            evaluation = evaluate(plan, cluster.scenario)
        except RequestError:
            best = replace(best, inexpressible=best.inexpressible + 1)
            continue
        value = score(evaluation)
        if not evaluation.fits:
            best = replace(best, out_of_memory=best.out_of_memory + (best.plan is None))
        elif not allowed(evaluation):
            best = replace(best, over_limits=best.over_limits + (best.plan is None))
        elif value < least:
            first, least = best.plan is None, value
            best = replace(best, plan=plan, evaluation=evaluation, estimate_s=proposal.estimate_s)
            if first:
                yield best
    if best.plan is None:
        yield best
    yield replace(best, oracle=True)


def _ranking(strategy: Strategy, cluster: Cluster, expired: Callable[[], bool]) -> tuple[list[Proposal], bool]:
    """Return the proposals, best estimate first; ties keep their order."""
    found: list[Proposal] = []
    for proposal in _until(strategy.propose(cluster) if cluster.machines else (), expired):
        if proposal is None:
            return sorted(found, key=lambda each: each.order), True
        found.append(proposal)
    return sorted(found, key=lambda each: each.order), False


def _until(proposals: Iterable[Proposal], expired: Callable[[], bool]) -> Iterator[Proposal | None]:
    for proposal in proposals:
        if expired():
            yield None
            return
        yield proposal
