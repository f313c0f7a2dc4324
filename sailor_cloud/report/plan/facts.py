"""A plan's goal, limits and predictions, as short sentences that every format shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from sailor_cloud.catalog import providers
from sailor_cloud.catalog.prices.doubts import explained
from sailor_cloud.model.document import Cost, CostKind, PlanDocument, Prediction, StageMemory, Status, TotalsQuantile
from sailor_cloud.model.offer import Confidence, ZoneConfidence
from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.report import text
from sailor_cloud.report.decision.elsewhere import elsewhere_line
from sailor_cloud.report.plan.groups import plan_hardware
from sailor_cloud.report.plan.money import unlimited_usd, until_shutdown_usd
from sailor_cloud.simulator.lifetime import below_least, lifetime_of
from sailor_cloud.simulator.resimulate import broken_limits
from sailor_cloud.units import counted, probability_text

SMALLEST_GAP_SHOWN = 0.0005
# A gap of at least this size is explained, by parts of at least this share of the goal.
SMALLEST_GAP_EXPLAINED = 0.03
SMALLEST_PART_SHOWN = 0.005
# As a share of the variance.
SMALLEST_SHARE_SHOWN = 0.01
# From this share of an hour's price on, egress is named.
_MUCH_EGRESS = 0.1
# The engine that `up` runs; others are simulated only.
OURS = "sailor"
_ZERO = {
    1: "ZeRO-1: every pipeline keeps and steps a share of its state",
    2: "ZeRO-2: every pipeline keeps a share of its state and of the gradients",
    3: "ZeRO-3: every pipeline keeps a share of the state, the gradients and the weights",
}
_SCHEDULES = {
    PipelineSchedule.ONE_F_ONE_B: "1F1B",
    PipelineSchedule.ZERO_BUBBLE: "zero-bubble (ZB-H1)",
    PipelineSchedule.INTERLEAVED: "interleaved 1F1B",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    name: str
    value: str


def request_facts(document: PlanDocument) -> tuple[Fact, ...]:
    """Return goal, limits and TTL."""
    training = document.job.training
    steps = f"{training.steps} steps" if training.steps else "no number of steps"
    what = f"{steps}, {training.global_batch_size} samples of {training.sequence_length} tokens each"
    facts = []
    if document.job.run is not None:
        facts.append(Fact(name="run", value=document.job.run.strip().partition("\n")[0]))
    elif document.engine != OURS:
        facts.append(Fact(name="engine", value=f"{document.engine}, which 'up' does not run"))
    if document.job.model is None:
        facts.append(Fact(name="training", value=steps))
    else:
        goal = f"{document.job.goal.value} of {model_name(document)} in {training.precision.value}"
        facts += [Fact(name="goal", value=goal), Fact(name="training", value=what)]
    facts += [
        Fact(name="constraints", value="; ".join(limits(document)) or "none"),
    ]
    if document.ttl_s is not None:
        facts.append(
            Fact(
                name="TTL",
                value=f"a safety limit: every node shuts itself down {text.seconds(document.ttl_s)} after its start, "
                f"even if the controller dies{_lifetime(document, document.ttl_s)}",
            )
        )
    machine = document.inputs.machine
    if machine is not None:
        cores = f"{machine.cores} core{'s' if machine.cores > 1 else ''} for all local nodes"
        speed = f"each {machine.speed:.2f} times as fast as the one that was timed"
        facts.append(Fact(name="machine", value=f"{cores}, {speed}"))
    return tuple(facts)


def _lifetime(document: PlanDocument, ttl_s: float) -> str:
    """Return what sets the TTL; empty if the document's own figures give another one."""
    if document.cost is None:
        return ""
    life = lifetime_of(document)
    same = life is not None and math.isclose(life.seconds, ttl_s, rel_tol=1e-6)
    return f"; that is {life.why}" if life is not None and same else ""


def model_name(document: PlanDocument) -> str:
    model = document.job.model
    assert model is not None, "a command without a model has no name"
    if model.preset or model.config:
        return str(model.preset or model.config)
    kind = model.module or model.model_type
    return f"{kind} with {model.num_hidden_layers} blocks of {model.hidden_size}"


def limits(document: PlanDocument) -> tuple[str, ...]:
    """Return the constraints that are set."""
    given = document.constraints
    shown = (
        ("budget", given.budget_usd, lambda v: f"{text.usd(v)} USD"),
        ("deadline", given.deadline, text.seconds),
        ("at most", given.max_usd_per_hour, lambda v: f"{text.usd(v)} USD/h"),
        ("at least", given.min_throughput, lambda v: f"{v:g} iterations/s"),
        ("at most", given.max_usd_per_iteration, lambda v: f"{text.usd(v)} USD/iteration"),
        ("at most", given.max_nodes, lambda v: f"{v} nodes"),
    )
    return tuple(f"{name} {form(value)}" for name, value, form in shown if value is not None)


def proof(document: PlanDocument) -> str:
    """Return the proven quality of the plan: status, gap to the bound, effort."""
    if document.status is Status.GIVEN:
        return "plan as given, not searched"
    if document.job.model is None and document.plan is not None:
        return "the cheapest place that the job allows for its command"
    ended = ", ended by the time limit" if document.search.cut_short else ""
    effort = f"searched {text.seconds(document.search.seconds)}{ended}"
    run = document.search.strategy
    if run is not None and document.status is Status.FEASIBLE:
        whose = "our simulator's choice among its plans" if run.oracle else "its own choice"
        return f"by {run.name}: {whose}, {run.out_of_memory} plans before it out of memory; {effort}"
    gap = document.optimality_gap
    if document.status is Status.INFEASIBLE:
        return f"infeasible; {effort}"
    if document.status is Status.OPTIMAL:
        close = not gap or gap < SMALLEST_GAP_SHOWN
        best = "best" if document.engine == OURS else "best with equal pipelines"
        proven = f"proven {best}" if close else f"proven within {text.share(gap or 0)} of the {best}"
        return f"optimal: {proven}; {effort}"
    decision = document.decision
    if gap is None and decision is not None and decision.asked is not None:
        return f"feasible: the {decision.asked.value} one of the plans found; {effort}"
    if gap is None:
        return f"feasible: no bound on what a longer search could find; {effort}"
    possible = "the best possible" if document.engine == OURS else "the best possible with equal pipelines"
    branch = document.search.weakest_branch
    held = f" (the bound is that of {branch})" if branch else ""
    return f"feasible: at most {text.share(gap)} from {possible}{held}; {effort}"


def outcome_facts(document: PlanDocument) -> tuple[Fact, ...]:
    """Return the predictions, with their error, and the money; () for an infeasible document."""
    prediction, cost = document.prediction, document.cost
    if prediction is None:
        return () if cost is None else _command_facts(document, cost)
    seconds = prediction.iteration_s_replay
    facts = []
    if document.plan is not None and document.plan.zero_stage:
        facts.append(Fact(name="optimizer", value=_ZERO[document.plan.zero_stage]))
    if document.plan is not None and prediction.iteration_s_1f1b is not None:
        saved = 1.0 - seconds / prediction.iteration_s_1f1b
        change = f"{text.share(abs(saved))} {'less' if saved >= 0.0 else 'more'} time per iteration"
        usual = text.seconds(prediction.iteration_s_1f1b)
        value = f"{_SCHEDULES[document.plan.pipeline_schedule]}: {change} than the same plan in 1F1B ({usual})"
        facts.append(Fact(name="schedule", value=value))
    facts += [
        Fact(
            name="iteration",
            value=f"{text.seconds(seconds)} ± {text.share(prediction.error_p50)} (9 of 10 within "
            f"{text.share(prediction.error_p90)}; {text.seconds(prediction.iteration_s)} by the simpler formula of the "
            f"search){_unmeasured(prediction)}",
        ),
        *_largest_error(prediction),
        Fact(
            name="throughput",
            value=f"{text.amount(prediction.throughput_iterations_per_s)} iterations/s, "
            f"{text.amount(prediction.samples_per_s)} samples/s, "
            f"{prediction.samples_per_s * document.job.training.sequence_length:,.0f} tokens/s",
        ),
    ]
    if prediction.duration_s is not None:
        facts.append(Fact(name="time", value=_duration(document, prediction.duration_s)))
    if cost is not None:
        facts += [
            Fact(name="rate", value=_rate(document, cost)),
            Fact(name="total", value=_total(document)),
            *_at_most(document),
        ]
    if line := elsewhere_line(document):
        facts.append(Fact(name="elsewhere", value=line))
    facts += _chance(document)
    if beyond := _beyond_the_bound(document):
        facts.append(Fact(name="gap", value=beyond))
    return tuple(facts)


def _rate(document: PlanDocument, cost: Cost) -> str:
    """Return what an hour of training costs; the share of egress in the whole bill where it is large."""
    egress = sum(line.usd for line in cost.lines if line.kind is CostKind.EGRESS)
    share = egress / (sum(line.usd for line in cost.lines) or 1.0)
    of_it = f" (egress is {100 * share:.0f} % of the total)" if share >= _MUCH_EGRESS else ""
    return f"{text.usd(cost.usd_per_hour)} USD/h{of_it}, worst case {text.usd(cost.worst_case_usd_per_hour)} USD/h"


def _command_facts(document: PlanDocument, cost: Cost) -> tuple[Fact, ...]:
    """Return the facts of a command without a model: its price per hour, and with a stated rate the rest."""
    rate = _rate(document, cost)
    seconds, steps = document.iteration_s, document.job.training.steps
    line = elsewhere_line(document)
    elsewhere = (Fact(name="elsewhere", value=line),) if line else ()
    if seconds is None or cost.usd_per_iteration is None:
        if document.job.throughput == "measured":
            after = "known once 20 steps are measured" if steps else "give training.steps to know it after 20 steps"
        else:
            after = f"give throughput{'' if steps else ' and training.steps'} to know it"
        total = Fact(name="total", value=f"unknown without a rate; {after}")
        return (Fact(name="rate", value=rate), total, *_at_most(document), *elsewhere)
    step = f"{text.seconds(seconds)} as stated, {text.usd(cost.usd_per_iteration)} USD"
    if steps is None:
        total = Fact(name="total", value="unknown without a number of steps; give training.steps to know it")
        return (Fact(name="step", value=step), Fact(name="rate", value=rate), total, *_at_most(document), *elsewhere)
    time = f"{text.seconds(seconds * steps)} from the first step to the last"
    total = Fact(name="total", value=_total(document))
    return (
        Fact(name="step", value=step),
        Fact(name="time", value=time),
        Fact(name="rate", value=rate),
        total,
        *_at_most(document),
        *elsewhere,
    )


def _beyond_the_bound(document: PlanDocument) -> str:
    """Return the distance to the bound and the parts of the plan's goal; empty if the gap is small."""
    parts, gap = document.gap_parts, document.optimality_gap
    if not parts or gap is None or gap < SMALLEST_GAP_EXPLAINED:
        return ""
    whole, unit = sum(part.amount for part in parts), parts[0].unit
    rest = sorted(parts[1:], key=lambda part: -part.amount)
    shown = [part for part in rest if abs(part.amount) >= SMALLEST_PART_SHOWN * whole]
    work, least = text.measure(parts[0].amount, unit), text.measure(whole * (1.0 - gap), unit)
    begin = f"{text.measure(whole, unit)} here, at least {least} for any plan"
    named = ", ".join(f"{text.measure(part.amount, unit)} for {part.what}" for part in shown)
    if work == least:
        return f"{begin} ({parts[0].what}); the difference: {named}"
    return f"{begin}; here: {work} for {parts[0].what}, {named}"


def _unmeasured(prediction: Prediction) -> str:
    """Name the estimated inputs of the iteration time."""
    named = [each.what for each in prediction.error_shares if not each.measured and each.share >= SMALLEST_SHARE_SHOWN]
    return f"; estimated, not measured: {', '.join(named)}" if named else ""


def _largest_error(prediction: Prediction) -> tuple[Fact, ...]:
    """Return the largest part of the ±, and the measurement that would reduce it."""
    if not prediction.error_shares:
        return ()
    most = prediction.error_shares[0]
    value = f"{text.share(most.share)} of the ± comes from {most.what}; {most.measurement} would narrow it"
    return (Fact(name="error", value=value),)


def _chance(document: PlanDocument) -> tuple[Fact, ...]:
    """Return the probability that the run ends within its limits."""
    totals = document.totals
    if totals is None or totals.within_limits is None:
        return ()
    given = (("budget", totals.within_budget), ("deadline", totals.within_deadline))
    known = [(limit, probability) for limit, probability in given if probability is not None]
    if totals.within_limits < min((probability for _, probability in known), default=1.0):
        known.append(("TTL", totals.within_limits))
    chances = [f"{probability_text(probability)} within the {limit}" for limit, probability in known]
    asked = document.constraints.probability
    wanted = "" if asked is None else f"; the job asks for {probability_text(asked)}"
    return (Fact(name="probability", value=f"{', '.join(chances)}{wanted}"),)


def nine_in_ten(document: PlanDocument) -> tuple[TotalsQuantile, TotalsQuantile] | None:
    """Return the range of nine in ten runs; None if the document has no distribution of totals."""
    if document.totals is None:
        return None
    found = {round(each.probability, 4): each for each in document.totals.quantiles}
    return (found[0.05], found[0.95]) if 0.05 in found and 0.95 in found else None


def _duration(document: PlanDocument, duration_s: float) -> str:
    assert document.prediction is not None
    spread, between = document.prediction.error_p90 * duration_s, nine_in_ten(document)
    low, high = max(0.0, duration_s - spread), duration_s + spread
    if between is not None:
        low, high = (each.duration_s for each in between)
    deadline = document.constraints.deadline
    limit = f"; deadline {text.seconds(deadline)}" if deadline else ""
    span = "from first start to last teardown" if document.cost is not None else "from the first step to the last"
    between_s = f"(9 of 10 within {text.seconds(low)} to {text.seconds(high)})"
    waiting_s = max((o.terms.start_s(document.as_of) for o in document.inputs.offers if o.terms), default=0.0)
    if waiting_s > 0.0:
        span = f"from now to last teardown, {text.seconds(waiting_s)} of it before the capacity begins"
    return f"{text.seconds(duration_s)} {span} {between_s}{limit}"


def _total(document: PlanDocument) -> str:
    cost = document.cost
    assert cost is not None
    if cost.total_usd is None:
        per_iteration = f"{text.usd(cost.usd_per_iteration)} USD per iteration for nodes and egress"
        on_top = "start-up, checkpoints, recovery and teardown come on top"
        return f"unknown without a number of steps; {per_iteration}; {on_top}"
    budget = document.constraints.budget_usd
    limit = f"budget {text.usd(budget)} USD" if budget else "no budget"
    return f"{text.usd(cost.total_usd)} USD{_within(document)}, worst case {text.usd(cost.worst_case_usd)} USD; {limit}"


def _at_most(document: PlanDocument) -> tuple[Fact, ...]:
    """Return the nodes' cost if nothing ends them before their TTL; empty if the total or the budget says enough."""
    cost, budget, most = document.cost, document.constraints.budget_usd, until_shutdown_usd(document)
    broken = document.status is Status.GIVEN and any(broken_limits(document))
    if cost is None or most is None or document.ttl_s is None or broken:
        return ()
    if unlimited_usd(document) is not None:
        value = (
            f"{text.usd(most)} USD at worst-case prices if nothing stops the nodes before their TTL; the controller "
            f"stops the run before it passes the budget of {text.usd(budget or 0.0)} USD"
        )
        return (Fact(name="unattended", value=value),)
    if cost.total_usd is None:
        end = f"the nodes shut themselves down {text.seconds(document.ttl_s)} after their start"
        return (Fact(name="at most", value=f"{text.usd(most)} USD, since {end}"),)
    return ()


def _within(document: PlanDocument) -> str:
    """Return the cost range of nine in ten runs; iteration times make hours uncertain, not traffic."""
    between = nine_in_ten(document)
    if between is None:
        return ""
    low, high = (text.usd(each.total_usd) for each in between)
    return f" (9 of 10 within {low} to {high})"


def notes(document: PlanDocument) -> tuple[str, ...]:
    """Return warnings that the decision has not given.

    They are of stale, doubtful and example prices, unmeasured links, a worst case that may end a run, and a
    budget below what is billed at least.
    """
    cost = document.cost
    found = list(short_of_memory(document))
    broken = [f"it {fault}" for fault in broken_limits(document)] if document.status is Status.GIVEN else []
    if broken:
        found.append(f"the plan breaks the job's limits: {'; '.join(broken)}")
    unpriced = sorted({f"{hardware.instance_type} in {hardware.zone}" for hardware in document.inputs.unpriced})
    if unpriced:
        found.append(f"no price is known of {', '.join(unpriced)}; the report leaves money out")
    stale = sorted({line.price_as_of for line in cost.lines if line.stale}) if cost is not None else []
    # The notes of a decision say so before.
    if stale and (document.decision is None or not document.decision.choices):
        found.append(
            f"STALE: prices from {_span(stale)} are used; they widen the worst case, and 'up' on a cloud refuses them"
        )
    day = document.as_of.date()
    newer = [line.price_as_of for line in cost.lines if line.price_as_of > day] if cost is not None else []
    if newer:
        found.append(f"prices up to {max(newer).isoformat()} are newer than {day.isoformat()}: their age is negative")
    doubted = [explained(offer) for offer in document.inputs.offers if offer.listed is not None]
    if doubted:
        found.append(f"DOUBTFUL: {'; '.join(doubted)}; 'up' on a cloud refuses such prices without --allow-doubtful")
    unchecked = {
        f"{offer.instance_type} in {offer.zone}"
        for offer in document.inputs.offers
        if offer.zone_confidence is ZoneConfidence.UNCHECKED and providers.of(offer.provider).has_account
    }
    if unchecked:
        types = ", ".join(sorted(unchecked))
        found.append(f"UNCHECKED: no source has seen {types} on sale; 'up' asks the provider before it buys")
    if any(offer.confidence is Confidence.EXAMPLE for offer in document.inputs.offers):
        found.append("prices of the local provider are examples; nothing is billed")
    guessed = sorted({f"{use.src_zone} to {use.dst_zone}" for use in document.inputs.links if not use.measured})
    if guessed:
        found.append(f"bandwidth is estimated, not measured, between these zones: {', '.join(guessed)}")
    budget, worst = document.constraints.budget_usd, cost.worst_case_usd if cost is not None else None
    if budget is not None and worst is not None and worst > budget and not broken:
        found.append(
            f"the worst case of {text.usd(worst)} USD is over the budget of {text.usd(budget)} USD; "
            "the run would be stopped at the budget"
        )
    if too_little := below_least(document):
        found.append(f"{too_little}; 'up' refuses the plan")
    return tuple(found)


def short_of_memory(document: PlanDocument) -> Iterator[str]:
    """Yield where a plan that was not searched exceeds the memory."""
    memory = document.prediction.memory if document.prediction is not None else ()
    short = [stage for stage in memory if stage.total_bytes > stage.limit_bytes]
    if short:
        worst = max(short, key=lambda stage: stage.total_bytes / stage.limit_bytes)
        yield (
            f"does not fit: {len(short)} of {len(memory)} stages need too much memory, up to "
            f"{text.size(worst.total_bytes)} of {text.size(worst.limit_bytes)} (stage {worst.stage}"
            f"{'' if worst.measured else '; estimated, not measured'})"
        )


def assumptions(document: PlanDocument) -> tuple[str, ...]:
    """Return the assumptions behind the figures."""
    prediction = document.prediction
    if prediction is None:
        return ()
    profiles = ", ".join(ref.id for ref in document.inputs.compute_profiles) or "none"
    steps = document.job.training.steps
    schedule = "1F1B" if document.plan is None else _SCHEDULES[document.plan.pipeline_schedule]
    searched = "" if document.status is Status.GIVEN else ", and the search used a simpler formula"
    prices = (
        f"prices are judged as of {document.as_of.date().isoformat()}; on-demand prices count as stale after 90 days, "
        "spot prices after 7",
    )
    money = (
        "the total covers the whole run"
        if steps
        else "the job has no number of steps, so the cost is of one hour of training, without start-up and teardown",
        "the worst case takes stale prices higher, spot nodes at the on-demand price, and more preemptions",
        "amounts are estimates at list price, without taxes and discounts",
    )
    priced = document.cost is not None
    return (
        *(prices if priced else ()),
        f"layer times come from the compute profiles {profiles}",
        *(
            f"your {counted(each.runs, 'finished run')} {'used' if each.unit == 'bytes' else 'took'} "
            f"{each.factor:.3g} times the predicted {'memory' if each.unit == 'bytes' else 'time'} for {each.what}; "
            f"{text.share(each.error_left)} of the error is left after this correction"
            for each in document.inputs.corrections
        ),
        f"half of such iterations are off by less than {text.share(prediction.error_p50)}, nine in ten by less than "
        f"{text.share(prediction.error_p90)}{_shares(prediction)}",
        f"pipelines run the {schedule} schedule; the iteration is replayed operation by operation{searched}",
        "memory counts weights, gradients, optimizer, activations in flight, the allocator's cache, and a constant for "
        "the framework",
        *(money if priced else ()),
    )


def _shares(prediction: Prediction) -> str:
    """Return the parts of the ±, each with the error that it causes alone."""
    shown = [each for each in prediction.error_shares if each.share >= SMALLEST_SHARE_SHOWN]
    parts = ", ".join(
        f"{each.what} {text.share(each.error_p50)}{'' if each.measured else ' (estimated, not measured)'}"
        for each in shown
    )
    return f": {parts}" if parts else ""


def _span(days: list[date]) -> str:
    return days[0].isoformat() if len(days) == 1 else f"{days[0].isoformat()} to {days[-1].isoformat()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One stage of all pipelines in which it is equal."""

    pipelines: tuple[int, ...]
    accelerator: str
    memory: StageMemory

    @property
    def label(self) -> str:
        return f"{text.ranges(self.pipelines)} / stage {self.memory.stage}, {self.accelerator}"

    @property
    def basis(self) -> str:
        return "measured" if self.memory.measured else "estimated, not measured"

    @property
    def share(self) -> float:
        return self.memory.total_bytes / self.memory.limit_bytes


def peak_heading(document: PlanDocument) -> str:
    """Return the heading of a stage's memory: its peak and, unless there is none, the allocator's cache."""
    cached = any(row.memory.parts.get("allocator") for row in memory_rows(document))
    return "peak + cache" if cached else "peak"


def memory_rows(document: PlanDocument) -> tuple[MemoryRow, ...]:
    """Return the stages in the order of their first pipeline."""
    plan, prediction = document.plan, document.prediction
    if plan is None or prediction is None:
        return ()
    nodes = plan_hardware(document)
    alike: dict[tuple[object, ...], list[StageMemory]] = {}
    names: dict[tuple[object, ...], str] = {}
    for row in prediction.memory:
        accelerator = nodes[plan.pipelines[row.pipeline].stages[row.stage].node].accelerator
        key = (row.stage, accelerator, row.total_bytes, row.limit_bytes, row.measured, tuple(sorted(row.parts.items())))
        alike.setdefault(key, []).append(row)
        names[key] = accelerator
    return tuple(
        MemoryRow(
            pipelines=tuple(plan.pipelines[row.pipeline].id for row in rows), accelerator=names[key], memory=rows[0]
        )
        for key, rows in alike.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOutLine:
    what: str
    why: str


class Row(Protocol):
    """Something ruled out; see model.document.Rejected."""

    @property
    def what(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def market(self) -> str: ...


def ruled_out(document: PlanDocument) -> tuple[RuledOutLine, ...]:
    """Return what may not be bought or used, each with the reason."""
    return grouped(row for row in document.rejected if not row.restrictions)


def grouped(rows: Iterable[Row]) -> tuple[RuledOutLine, ...]:
    """Return a line for each thing and reason, in order of first appearance."""
    markets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        markets.setdefault((row.subject or row.what, row.why, row.zone), []).append(row.market)
    zones: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (subject, why, zone), found in markets.items():
        zones.setdefault((subject, why, tuple(found)), []).append(zone)
    return tuple(_line(*key, places) for key, places in zones.items())


def _line(subject: str, why: str, markets: tuple[str, ...], zones: list[str]) -> RuledOutLine:
    where = f" {', '.join(markets)} in {', '.join(zones)}" if zones[0] else ""
    return RuledOutLine(what=f"{subject}{where}", why=why)
