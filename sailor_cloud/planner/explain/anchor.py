"""Anchors: on-demand pipelines in a spot plan that keep training during an outage of spot capacity.

If an outage is likely within the run, the planner assumes one in each zone, without on-demand capacity for sale at that
moment. The loss has three parts: half a checkpoint interval; two restarts, to shrink and to grow again; and the
throughput of spot nodes during the outage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sailor_cloud.model.document import Anchor, Objective, PlanDocument, Status
from sailor_cloud.model.job import Goal
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.explain.decision import with_chosen
from sailor_cloud.planner.space.answer import share_above
from sailor_cloud.planner.space.candidates import Candidates
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.quotas import used
from sailor_cloud.simulator import Evaluation, Scenario, evaluate, preemptions_per_hour, startup_s
from sailor_cloud.simulator.lifetime import ttl_s
from sailor_cloud.units import SECONDS_PER_HOUR, probability_text, usd_text

# Nine of ten outages of spot capacity are shorter. Source: 1,044 outages in six traces of V100 on AWS, 2022-10 to
# 2023-08 (skypilot-org/spot-traces, 221da1a); mean 1.9 h, median 0.5 h.
OUTAGE_S = 4.2 * SECONDS_PER_HOUR
# A less likely outage is ignored, unless the job asks for a higher probability.
LEAST_RISK = 0.05
# What the plan that is taken keeps, as the reason for it.
_KEPT = "with time for an outage of spot capacity"
# How often a plan that ends sooner is searched for.
_SEARCHES = 2


@dataclass(frozen=True, slots=True)
class _Unit:
    """Pipelines that share nodes and so are anchored together. `extra_usd_per_hour`: on-demand minus spot."""

    nodes: frozenset[str]
    share: float
    extra_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class _Late:
    """A plan that misses its deadline if spot capacity is lost once, with a probability of `risk`.

    `usd`: the cost of the run without an outage. `lost_s`: what an outage costs. `alone_s`: the duration with one.
    """

    plan: Plan
    usd: float
    deadline_s: float
    risk: float
    lost_s: float
    alone_s: float

    @classmethod
    def of(cls, document: PlanDocument, scenario: Scenario) -> _Late | None:
        """Return a plan that is late; None if an outage is unlikely or harmless, or the job has no such goal."""
        limits, plan = document.constraints, document.plan
        prediction, cost = document.prediction, document.cost
        if document.job.goal is not Goal.MINIMIZE_COST or limits.deadline is None or plan is None:
            return None
        if prediction is None or prediction.duration_s is None or cost is None or cost.total_usd is None:
            return None
        risk, lost_s = _risk(plan, scenario, prediction.duration_s), _lost_s(plan, scenario)
        alone_s = prediction.duration_s + lost_s
        likely = risk >= (LEAST_RISK if limits.probability is None else 1.0 - limits.probability)
        late = cls(plan, cost.total_usd, limits.deadline, risk, lost_s, alone_s)
        return late if likely and lost_s > 0.0 and alone_s > limits.deadline else None


def anchored(
    document: PlanDocument, scenario: Scenario, candidates: Candidates, sooner: Callable[[float], Plan | None]
) -> PlanDocument:
    """Return the cheapest plan that meets the deadline if spot capacity is lost once.

    It has as many on-demand pipelines as the deadline needs, or it is another choice, or a plan from `sooner`: that
    searches with a deadline that is earlier by some seconds. Returns the same document if the goal is not the least
    money by a deadline, if an outage is unlikely or harmless, or if no plan helps.
    """
    late = _Late.of(document, scenario)
    if late is None:
        return document
    found = _with_anchor(document, late, scenario, candidates)
    best = min(_in_time(document, late, scenario, sooner), key=_usd, default=None)
    if best is None:
        return found or document
    return _told(best, late) if found is None or _usd(best) < _usd(found) else found


def earlier(target: Target, seconds: float) -> Target | None:
    """Return a target whose run ends earlier by some seconds; None if no time is left."""
    if any(limit.figure is Figure.DURATION_S and limit.at_most <= seconds for limit in target.limits):
        return None
    limits = (
        replace(limit, at_most=limit.at_most - seconds) if limit.figure is Figure.DURATION_S else limit
        for limit in target.limits
    )
    return replace(target, limits=tuple(limits))


def _in_time(
    document: PlanDocument, late: _Late, scenario: Scenario, sooner: Callable[[float], Plan | None]
) -> Iterator[PlanDocument]:
    """Yield the document with other plans that are in time: those from `sooner`, and the other choices."""
    lost_s = late.lost_s
    for _ in range(_SEARCHES):
        plan = sooner(lost_s)
        if plan is None:
            break
        found = _document(document, plan, scenario, evaluate(plan, scenario))
        still = _Late.of(found, scenario)
        if still is None:
            yield found
            break
        # With more nodes on spot, an outage costs more.
        lost_s = still.lost_s
    # A time limit may have left no time for a search.
    for choice in () if document.decision is None else document.decision.choices:
        if not choice.chosen:
            found = _document(document, choice.plan, scenario, evaluate(choice.plan, scenario))
            if _Late.of(found, scenario) is None:
                yield found


def _told(found: PlanDocument, late: _Late) -> PlanDocument:
    """Return a document that says why its plan isn't the cheapest one."""
    if found.decision is None or late.usd >= _usd(found):
        return found
    note = (
        f"a plan for {usd_text(late.usd)} USD would miss the deadline if spot capacity is lost once, which has a "
        f"probability of {probability_text(late.risk)}"
    )
    return replace(found, decision=replace(found.decision, notes=(*found.decision.notes, note)))


def _usd(document: PlanDocument) -> float:
    assert document.cost is not None
    assert document.cost.total_usd is not None
    return document.cost.total_usd


def _with_anchor(
    document: PlanDocument, late: _Late, scenario: Scenario, candidates: Candidates
) -> PlanDocument | None:
    """Return a plan with as many on-demand pipelines as the deadline needs; None if they don't help."""
    plan, budget_usd = late.plan, document.constraints.budget_usd
    on_demand_of = _on_demand(plan, scenario)
    units = _units(plan, scenario, on_demand_of)
    for count in range(1, len(units) + 1):
        chosen = frozenset[str]().union(*(unit.nodes for unit in units[:count]))
        moved = _moved(plan, chosen, on_demand_of)
        if not _allowed(moved, candidates):
            return None
        evaluation = evaluate(moved, scenario)
        duration_s, usd = evaluation.prediction.duration_s, evaluation.cost.total_usd
        assert duration_s is not None
        assert usd is not None
        late_s = duration_s + _lost_s(moved, scenario)
        if late_s <= late.deadline_s and (budget_usd is None or usd <= budget_usd):
            break
    else:
        return None
    found = _document(document, moved, scenario, evaluation)
    if count == len(units):
        return found
    every = frozenset[str]().union(*(unit.nodes for unit in units))
    everything = evaluate(_moved(plan, every, on_demand_of), scenario).cost.total_usd
    assert everything is not None
    if everything <= usd:
        return None
    anchor = Anchor(
        nodes=tuple(node.id for node in plan.nodes if node.id in chosen),
        costs_usd=usd - late.usd,
        saves_usd=everything - usd,
        outage_s=OUTAGE_S,
        risk=late.risk,
        duration_s=late_s,
        without_s=late.alone_s,
    )
    return replace(found, anchor=anchor)


def _on_demand(plan: Plan, scenario: Scenario) -> dict[str, str]:
    """Return the on-demand offer for each spot offer of a plan that has one."""
    by_kind = {_kind(offer): name for name, offer in scenario.offers.items() if offer.market is Market.ON_DEMAND}
    spot = {node.offer for node in plan.nodes if scenario.offers[node.offer].market is Market.SPOT}
    kinds = {name: _kind(scenario.offers[name]) for name in spot}
    return {name: by_kind[kind] for name, kind in kinds.items() if kind in by_kind}


def _kind(offer: Offer) -> tuple[object, ...]:
    return offer.zone, offer.instance_type, offer.accelerator, offer.accelerator_count


def _risk(plan: Plan, scenario: Scenario, duration_s: float) -> float:
    """Return the probability that the spot capacity of some zone and type is lost within the run.

    Each type in a zone counts once, since its instances are lost together.
    """
    offers = (scenario.offers[node.offer] for node in plan.nodes)
    spot = {_kind(offer): offer for offer in offers if offer.market is Market.SPOT}
    rate = sum(preemptions_per_hour(offer, scenario.catalog) for offer in spot.values())
    return 1.0 - math.exp(-rate * duration_s / SECONDS_PER_HOUR)


def _units(plan: Plan, scenario: Scenario, on_demand_of: dict[str, str]) -> list[_Unit]:
    """Return the spot pipelines that could be on demand, the cheapest per sample first."""
    joined: list[tuple[set[str], float]] = []
    for pipeline in plan.pipelines:
        nodes, samples = {stage.node for stage in pipeline.stages}, float(pipeline.samples)
        for other in [other for other in joined if other[0] & nodes]:
            joined.remove(other)
            nodes, samples = nodes | other[0], samples + other[1]
        joined.append((nodes, samples))
    offers = {node.id: node.offer for node in plan.nodes}
    whole = float(plan.global_batch_size)
    found = []
    for nodes, samples in joined:
        spot = [name for name in nodes if scenario.offers[offers[name]].market is Market.SPOT]
        if not spot or any(offers[name] not in on_demand_of for name in spot):
            continue
        extra = sum(
            scenario.offers[on_demand_of[offers[name]]].usd_per_hour - scenario.offers[offers[name]].usd_per_hour
            for name in spot
        )
        found.append(_Unit(frozenset(spot), samples / whole, extra))
    return sorted(found, key=lambda unit: (unit.extra_usd_per_hour / unit.share, min(unit.nodes)))


def _lost_s(plan: Plan, scenario: Scenario) -> float:
    """Return the seconds that a run loses to an outage of all its spot nodes."""
    spot = {node.id for node in plan.nodes if scenario.offers[node.offer].market is Market.SPOT}
    stopped = sum(line.samples for line in plan.pipelines if any(stage.node in spot for stage in line.stages))
    if not stopped:
        return 0.0
    share = stopped / plan.global_batch_size
    restart = max(startup_s(scenario.offers[node.offer].provider) for node in plan.nodes)
    restarts = 2.0 if share < 1.0 else 1.0
    return scenario.job.checkpoint.every / 2.0 + restarts * restart + OUTAGE_S * share


def _moved(plan: Plan, names: frozenset[str], on_demand_of: dict[str, str]) -> Plan:
    nodes = (replace(node, offer=on_demand_of[node.offer]) if node.id in names else node for node in plan.nodes)
    return replace(plan, nodes=tuple(nodes))


def _allowed(plan: Plan, candidates: Candidates) -> bool:
    """Return whether a plan keeps the account's quotas; the job's limits cover both markets together."""
    pools = {pool.offer.id: index for index, pool in enumerate(candidates.pools)}
    nodes = Counter(pools[node.offer] for node in plan.nodes)
    return all(used(quota, candidates, nodes) <= quota.remaining for quota in candidates.quotas)


def _document(document: PlanDocument, plan: Plan, scenario: Scenario, evaluation: Evaluation) -> PlanDocument:
    """Return the document with another plan; the search's bound holds for both."""
    cost, prediction, totals = evaluation.cost, evaluation.prediction, evaluation.totals
    assert cost.total_usd is not None
    offers = tuple(scenario.offers[name] for name in sorted({node.offer for node in plan.nodes}))
    bound, decision = document.bound, document.decision
    gap = None if bound is None else share_above(cost.total_usd, bound)
    limits = document.constraints
    return replace(
        document,
        status=Status.FEASIBLE,
        inputs=replace(document.inputs, offers=Rows(offers), links=evaluation.links),
        objective=Objective(goal=document.job.goal, value=cost.total_usd, unit="USD"),
        optimality_gap=gap,
        gap_parts=(),
        plan=plan,
        prediction=prediction,
        cost=cost,
        ttl_s=ttl_s(limits, cost, duration_s=prediction.duration_s, offers=offers, as_of=scenario.as_of),
        totals=totals,
        decision=None if decision is None else with_chosen(decision, plan, evaluation, scenario, _KEPT),
    )
