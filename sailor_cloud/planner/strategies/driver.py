"""Carries a published planner out: walks its ranking, discards what does not fit, scores the first plan that does."""

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

# Plans of a ranking that are looked at before a strategy counts as without a plan, and that an oracle judges.
MOST_LOOKED_AT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a strategy comes to. `out_of_memory` plans stood before the chosen one and did not fit, `over_limits` ones
    broke a limit of the job.

    `inexpressible`: our plans could not state these. `oracle`: our simulator chose among its plans. `cut_short`: the
    clock ended the search.
    """

    strategy: Strategy
    oracle: bool
    plan: Plan | None
    evaluation: Evaluation | None
    estimate_s: float | None
    proposals: int
    out_of_memory: int
    over_limits: int
    inexpressible: int
    cut_short: bool


def iteration_s(evaluation: Evaluation) -> float:
    return evaluation.prediction.iteration_s_replay


def best_of(
    strategy: Strategy,
    clusters: Sequence[Cluster],
    *,
    oracle: bool = False,
    allowed: Callable[[Evaluation], bool] = lambda evaluation: True,
    score: Callable[[Evaluation], float] = iteration_s,
    expired: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Return what a strategy comes to on the cluster, of several, that suits it best by `score`; less is better."""
    outcomes: list[Outcome] = []
    for cluster in clusters:
        if not outcomes or not expired():
            outcomes.append(
                carried_out(strategy, cluster, oracle=oracle, allowed=allowed, score=score, expired=expired)
            )
    best = min(outcomes, key=lambda each: math.inf if each.evaluation is None else score(each.evaluation))
    cut_short = len(outcomes) < len(clusters) or any(each.cut_short for each in outcomes)
    return replace(best, cut_short=cut_short)


def carried_out(
    strategy: Strategy,
    cluster: Cluster,
    *,
    oracle: bool = False,
    allowed: Callable[[Evaluation], bool] = lambda evaluation: True,
    score: Callable[[Evaluation], float] = iteration_s,
    expired: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Return what a user of the strategy would get: the first plan of its own ranking that fits and is allowed.

    With `oracle` it is the best by `score` among the first `MOST_LOOKED_AT` plans of its ranking. `allowed` stands
    for limits of the job, which most strategies know nothing of.
    """
    ranking, cut_short = _ranking(strategy, cluster, expired)
    lost, broken, unlike = 0, 0, 0
    best: tuple[float, Proposal, Plan, Evaluation] | None = None
    for proposal in islice(ranking, MOST_LOOKED_AT):
        # What was proposed in time is looked at until one fits.
        if best is not None and expired():
            cut_short = True
            break
        try:
            plan = proposal.build()
            evaluation = evaluate(plan, cluster.scenario)
        except RequestError:
            unlike += 1
            continue
        if not evaluation.fits:
            lost += best is None
            continue
        if not allowed(evaluation):
            broken += best is None
            continue
        value = score(evaluation)
        if best is None or value < best[0]:
            best = (value, proposal, plan, evaluation)
            if not oracle:
                break
    return Outcome(
        strategy=strategy,
        oracle=oracle,
        plan=best[2] if best else None,
        evaluation=best[3] if best else None,
        estimate_s=best[1].estimate_s if best else None,
        proposals=len(ranking),
        out_of_memory=lost,
        over_limits=broken,
        inexpressible=unlike,
        cut_short=cut_short,
    )


def _ranking(strategy: Strategy, cluster: Cluster, expired: Callable[[], bool]) -> tuple[list[Proposal], bool]:
    """Return the proposals, best estimate first; equal ones in the order in which they came."""
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
