"""The explanation of a plan: where its time goes, which limits bind, and what was ruled out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import Decision, Ground, LeftOut, PlanDocument
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows, Shown
from sailor_cloud.planner.explain.decision import Deciding, draft_of, goal_pick
from sailor_cloud.planner.improvement import evaluated
from sailor_cloud.planner.improvement.choice import Chosen
from sailor_cloud.planner.marginal import Gain
from sailor_cloud.planner.search import Problem
from sailor_cloud.planner.seeds.homogeneous import homogeneous
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.restrictions import zero_stages
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator.resimulate import simulate_document, without_search_results
from sailor_cloud.units import GIB, MIB, duration_text, pace_text, usd_difference_text, usd_text


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """See model.document.Rejected."""

    what: str
    why: str
    ground: Ground
    subject: str = ""
    zone: str = ""
    market: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Shown):
    """The explanation of a plan.

    `left_out`: what the job names and the plan does not use, with the price of insisting on it. `gains`: the benefit of
    more devices, money, time or zones, each from a search.
    """

    job: str
    feasible: bool
    verdict: str
    reasons: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    ruled_out: tuple[RuledOut, ...]
    gains: tuple[Gain, ...]

    def shown_facts(self) -> list[tuple[str, str]]:
        return [("explanation", self.job), ("verdict", self.verdict), *(("reason", reason) for reason in self.reasons)]

    def shown_rows(self) -> list[tuple[str, Rows[Any]]]:
        return [("ruled out", Rows(self.ruled_out)), ("what more would bring", Rows(self.gains))]

    def __repr__(self) -> str:
        counts = f"{len(self.reasons)} reasons, {len(self.ruled_out)} ruled out, {len(self.gains)} changes tried"
        return f"<Explanation {self.job}: {self.verdict}, {counts}>"


def recomputed(document: PlanDocument, problem: Problem) -> PlanDocument:
    """Return the plan of a file with figures computed here, without claims that need a search.

    Prices and day are those of the file. The other plans in the file are only a start for the price of insisting; their
    figures are dropped.
    """
    if document.plan is None:
        return document
    space, target = problem.space, problem.target
    scenario = space.scenario
    simulated = simulate_document(
        document,
        catalog=scenario.catalog,
        network=scenario.network,
        profiles=scenario.profiles,
        decoder=scenario.decoder,
        as_of=scenario.as_of,
    )
    found = replace(without_search_results(simulated.document), rejected=problem.rejected)
    draft = draft_of(document.plan, space, target)
    if draft is None:
        return found
    asked = None if document.decision is None else document.decision.asked
    deciding = Deciding(space, target, problem.rejected, asked)
    named = [other.plan for other in document.alternatives]
    if document.decision is not None:
        named += [choice.plan for choice in document.decision.choices]
        named += [row.plan for row in document.decision.left_out if row.plan is not None]
    sound = [plan for plan in named if _is_sound(plan, space)]
    others = [other for plan in sound if (other := draft_of(plan, space, target)) is not None]
    deciding.add([draft, *evaluated(space, target, others, NORMAL)])
    deciding.add(homogeneous(space, target))
    deciding.explore(NORMAL)
    given = Chosen(draft=draft, evaluation=simulated.evaluation)
    deciding.look_near(given)
    left_out = deciding.prices_of_insisting(given)
    chosen = asked or goal_pick(document.job.goal)
    return replace(found, decision=Decision(chosen=chosen, asked=asked, choices=(), left_out=left_out))


def _is_sound(plan: Plan, space: Space) -> bool:
    try:
        plan.check(layers=space.layers, global_batch_size=space.batch)
    except RequestError:
        return False
    return True


def reasons(document: PlanDocument) -> tuple[str, ...]:
    """Return where an iteration's time goes, which limits are used up, and the results of other spaces."""
    if document.prediction is None or document.cost is None or document.plan is None:
        return () if document.infeasibility is None else (document.infeasibility.message,)
    waits = document.prediction.waits
    parts = {
        "computing": waits.compute_s,
        "transfers between stages": waits.transfer_s,
        "pipeline bubbles": waits.bubble_s,
        "all-reduces of gradients": waits.sync_s,
    }
    total = sum(parts.values())
    shares = ", ".join(f"{100 * seconds / total:.0f} % {name}" for name, seconds in parts.items())
    lines = [f"the busiest stage spends {shares}", *_used_up(document)]
    if (anchor := document.anchor) is not None:
        costs, saves, chance = usd_text(anchor.costs_usd), usd_text(anchor.saves_usd), 100 * anchor.risk
        ends = f"{duration_text(anchor.duration_s)}, without the anchor after {duration_text(anchor.without_s)}"
        lines.append(
            f"an anchor of {len(anchor.nodes)} nodes on demand costs {costs} USD more than all on spot and saves "
            f"{saves} USD against all on demand; spot capacity goes within the run with a chance of {chance:.0f} %, "
            f"and with an outage of {duration_text(anchor.outage_s)} the run ends after {ends}"
        )
    lines += [
        f"a plan with {other.label} is {pace_text(other.iteration_s / document.prediction.iteration_s_replay)}"
        f"{_more_usd(document, other.total_usd)}"
        for other in document.alternatives
    ]
    lines += [f"{row.what}: {row.why}" for row in document.rejected if row.restrictions]
    return tuple(lines)


def ruled_out(problem: Problem, document: PlanDocument) -> tuple[RuledOut, ...]:
    """Return what was ruled out before the search, and what lacks memory."""
    found = [
        RuledOut(what=row.what, why=row.why, ground=row.ground, subject=row.subject, zone=row.zone, market=row.market)
        for row in document.rejected
        if row.ground is not None
    ]
    return (*found, *_by_memory(problem.space))


def _used_up(document: PlanDocument) -> list[str]:
    assert document.plan is not None
    assert document.cost is not None
    assert document.prediction is not None
    lines = []
    offers = {offer.id: offer for offer in document.inputs.offers}
    bought: Counter[tuple[str, str]] = Counter()
    for node in document.plan.nodes:
        bought[offers[node.offer].accelerator, offers[node.offer].zone] += node.devices
    for resource in document.job.resources:
        for name, most in sorted(resource.accelerators.items()):
            for zone in resource.zones:
                count = bought.get((name, zone), 0)
                if count:
                    state = "all" if count == most else f"{count}"
                    lines.append(f"{name} in {zone}: {state} of {most} bought")
    limits = document.constraints
    if limits.budget_usd is not None and document.cost.total_usd is not None:
        share = document.cost.total_usd / limits.budget_usd
        spent = f"{usd_text(document.cost.total_usd)} of {usd_text(limits.budget_usd)} USD"
        lines.append(f"budget: {spent} ({100 * share:.0f} %)")
    if limits.deadline is not None and document.prediction.duration_s is not None:
        share = document.prediction.duration_s / limits.deadline
        needed = f"{duration_text(document.prediction.duration_s)} of {duration_text(limits.deadline)}"
        lines.append(f"deadline: {needed} ({100 * share:.0f} %)")
    return lines


def _more_usd(document: PlanDocument, total_usd: float | None) -> str:
    assert document.cost is not None
    if total_usd is None or document.cost.total_usd is None:
        return ""
    return f", {usd_difference_text(total_usd, document.cost.total_usd)}"


def _by_memory(space: Space) -> list[RuledOut]:
    """Return a row for each accelerator that can't hold the whole model on one device."""
    found = []
    seen: set[str] = set()
    stages = range(max(zero_stages(space)[-1], space.scenario.job.training.max_zero_stage or 0) + 1)
    for index, pool in enumerate(space.pools):
        name = pool.accelerator.name
        if name in seen:
            continue
        seen.add(name)
        # With ZeRO, more pipelines need less memory per device; there are at most as many as samples.
        tables = [space.at(zero_stage).table(index, 1, 1) for zero_stage in stages]
        table, most = tables[0], space.batch
        used = min(int(each.memory_bytes(0, each.layers, in_flight=1, replicas=most)) for each in tables)
        if used > table.limit_bytes:
            unit, unit_name = (GIB, "GiB") if table.limit_bytes >= GIB else (MIB, "MiB")
            why = (
                f"takes {used / unit:.3g} of {table.limit_bytes / unit:.3g} {unit_name}, even with one sample at a "
                f"time and ZeRO-{stages[-1]}; with stages or tp it may fit"
            )
            found.append(RuledOut(what=f"the whole model on one {name}", why=why, ground=Ground.MEMORY))
    return found
