"""What to do when nodes are gone or can't be had: replace them, plan anew, or go on with what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count

from sailor_cloud.launch import egress
from sailor_cloud.launch.lifetime import usd_per_hour
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Goal, Job, Resource
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Node, Plan
from sailor_cloud.simulator import startup_s, teardown_s
from sailor_cloud.units import SECONDS_PER_HOUR

Search = Callable[[Job], PlanDocument]


class Policy(StrEnum):
    """`best` weighs money and time to finish; the others are there to compare with."""

    BEST = "best"
    NEVER = "never-replan"
    ALWAYS = "always-replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What remains of a run: iterations after the newest checkpoint, money and time; None means without limit."""

    steps: int
    usd: float | None
    seconds: float | None
    # Until the nodes end themselves; this much money must last until then should the controller die.
    life_s: float = 0.0
    usd_alone: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to go on. `seconds` and `usd` are until the last step, start-up of new nodes included."""

    label: str
    document: PlanDocument
    seconds: float
    usd: float

    def fits(self, left: Left) -> bool:
        """Whether the run can be finished this way, and would not cost more than is left without a controller."""
        if left.seconds is not None and self.seconds > left.seconds:
            return False
        if left.usd is not None and self.usd > left.usd:
            return False
        alone_usd = usd_per_hour(self.document) * left.life_s / SECONDS_PER_HOUR
        return left.usd_alone is None or alone_usd <= left.usd_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What there is to decide about. `survivors` run now; `blocked` offers can't be bought for the time being.

    `taken` are names that earlier nodes of the run had; a new node never gets one of them.
    """

    job: Job
    document: PlanDocument
    survivors: tuple[Node, ...]
    blocked: frozenset[str]
    taken: frozenset[str]
    left: Left
    offers: Mapping[str, Offer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The option chosen; without one `shortfall` says what is lacking, of money or (`of_time`) of time."""

    option: Option | None
    shortfall: str = ""
    of_time: bool = False


def decide(situation: Situation, search: Search, *, policy: Policy = Policy.BEST) -> Decision:
    """Return how to go on, by time to finish or by money as the job's goal has it, within what is left of both."""
    options = _options(situation, search, policy)
    fitting = [option for option in options if option.fits(situation.left)]
    if fitting:
        return Decision(option=min(fitting, key=lambda option: _rank(option, situation.job.goal)))
    if options:
        nearest = min(options, key=lambda option: option.usd)
        seconds = situation.left.seconds
        of_time = seconds is not None and nearest.seconds > seconds
        return Decision(option=None, shortfall=_shortfall(nearest, situation.left), of_time=of_time)
    return Decision(option=None)


def growth(situation: Situation, search: Search, *, least_gain_s: float) -> Option | None:
    """Return a plan that finishes sooner although it has to be switched to, or None where none is worth it."""
    document = _searched(situation, search, only_survivors=False)
    if document is None:
        return None
    bigger = _option("grow", document, situation)
    current = _option("stay", situation.document, situation)
    if not bigger.fits(situation.left):
        return None
    if situation.job.goal is Goal.MINIMIZE_COST:
        return bigger if bigger.usd < current.usd else None
    return bigger if bigger.seconds + least_gain_s < current.seconds else None


def fresh_names(plan: Plan, survivors: Sequence[Node], taken: Collection[str], offers: Mapping[str, Offer]) -> Plan:
    """Return the plan with the survivors' names on nodes of equal offers, and unused names on the others."""
    free = Counter(node.offer for node in survivors)
    names: dict[str, str] = {}
    used = set(taken) | {node.id for node in survivors}
    by_offer: dict[str, list[str]] = {}
    for node in survivors:
        by_offer.setdefault(node.offer, []).append(node.id)
    for node in plan.nodes:
        if free[node.offer]:
            free[node.offer] -= 1
            names[node.id] = by_offer[node.offer].pop(0)
            continue
        offer = offers[node.offer]
        stem = f"{offer.zone}-{offer.accelerator.lower()}"
        names[node.id] = next(name for number in count() if (name := f"{stem}-{number}") not in used)
        used.add(names[node.id])
    return renamed(plan, names)


def renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    return replace(
        plan,
        nodes=tuple(replace(node, id=names[node.id]) for node in plan.nodes),
        pipelines=tuple(
            replace(pipeline, stages=tuple(replace(stage, node=names[stage.node]) for stage in pipeline.stages))
            for pipeline in plan.pipelines
        ),
    )


def same_shape(a: Plan, b: Plan) -> bool:
    """Whether two plans compute the same way, whatever their nodes are called."""

    def shape(plan: Plan) -> object:
        offers = {node.id: node.offer for node in plan.nodes}
        return [
            (
                pipeline.microbatch_size,
                pipeline.microbatches,
                [(s.first_layer, s.end_layer, offers[s.node], s.devices, s.recompute) for s in pipeline.stages],
            )
            for pipeline in plan.pipelines
        ]

    return a.zero_stage == b.zero_stage and a.precision == b.precision and shape(a) == shape(b)


def remaining_job(situation: Situation, *, only_survivors: bool, limits: bool = True) -> Job | None:
    """Return the job that is left: its steps, its limits, and the devices that can be had; None where there are none.

    Devices of a blocked offer count as far as they run already.
    """
    job, left = situation.job, situation.left
    held: Counter[tuple[str, str, Market]] = Counter()
    for node in situation.survivors:
        offer = situation.offers[node.offer]
        held[offer.zone, offer.accelerator, offer.market] += node.devices
    blocked = {
        (closed.zone, closed.accelerator, closed.market)
        for name in situation.blocked
        if (closed := situation.offers.get(name)) is not None
    }
    entries: list[Resource] = []
    for entry in job.resources:
        for zone in entry.zones:
            for name, devices in entry.accelerators.items():
                shut = [m for m in entry.markets if only_survivors or (zone, name, m) in blocked]
                opened = tuple(m for m in entry.markets if m not in shut)
                kept = {m: min(held[zone, name, m], devices) for m in shut}
                rest = devices - sum(kept.values())
                if opened and rest > 0:
                    entries.append(_entry(entry, zone, name, rest, opened))
                entries.extend(_entry(entry, zone, name, number, (m,)) for m, number in kept.items() if number)
    if not entries:
        return None
    changes = {"budget_usd": left.usd if limits else None, "deadline": left.seconds if limits else None}
    constraints = job.constraints.model_copy(update=changes)
    training = job.training.model_copy(update={"steps": left.steps})
    goal = job.goal if limits else Goal.MINIMIZE_COST
    return job.model_copy(
        update={"resources": tuple(entries), "constraints": constraints, "training": training, "goal": goal}
    )


def _entry(entry: Resource, zone: str, accelerator: str, devices: int, markets: tuple[Market, ...]) -> Resource:
    return entry.model_copy(update={"zones": (zone,), "accelerators": {accelerator: devices}, "markets": markets})


def _options(situation: Situation, search: Search, policy: Policy) -> list[Option]:
    options = []
    same = _replaced(situation)
    if same is not None and policy is not Policy.ALWAYS:
        options.append(_option("replace", same, situation))
    if policy is Policy.NEVER:
        return options
    anew = _searched(situation, search, only_survivors=False)
    if anew is not None:
        options.append(_option("re-plan", anew, situation))
    if situation.survivors and policy is Policy.BEST:
        smaller = _searched(situation, search, only_survivors=True)
        if smaller is not None:
            options.append(_option("go on with what is left", smaller, situation))
    return options


def _replaced(situation: Situation) -> PlanDocument | None:
    """Return the same plan with new nodes for the lost ones; None where such nodes can't be had."""
    document, plan = situation.document, situation.document.plan
    assert plan is not None
    alive = {node.id for node in situation.survivors}
    if any(node.offer in situation.blocked for node in plan.nodes if node.id not in alive):
        return None
    return replace(
        _for_rest(document, situation),
        plan=fresh_names(plan, situation.survivors, situation.taken, situation.offers),
    )


def _for_rest(document: PlanDocument, situation: Situation) -> PlanDocument:
    """Return a document whose job and traffic are those of the iterations that are left."""
    steps = document.job.training.steps
    training = document.job.training.model_copy(update={"steps": situation.left.steps})
    job = document.job.model_copy(update={"training": training})
    if document.cost is None or not steps:
        return replace(document, job=job)
    share = situation.left.steps / steps
    lines = tuple(
        replace(line, quantity=line.quantity * share, usd=line.usd * share, worst_usd=line.worst_usd * share)
        for line in document.cost.lines
    )
    return replace(document, job=job, cost=replace(document.cost, lines=lines))


def _searched(situation: Situation, search: Search, *, only_survivors: bool) -> PlanDocument | None:
    for limits in (True, False):
        job = remaining_job(situation, only_survivors=only_survivors, limits=limits)
        if job is None:
            return None
        document = search(job)
        if document.plan is not None:
            offers = {**situation.offers, **{offer.id: offer for offer in document.inputs.offers}}
            plan = fresh_names(document.plan, situation.survivors, situation.taken, offers)
            return replace(document, plan=plan)
        if situation.left.usd is None and situation.left.seconds is None:
            return None
    return None


def _option(label: str, document: PlanDocument, situation: Situation) -> Option:
    assert document.plan is not None
    assert document.prediction is not None
    assert document.cost is not None
    offers = {offer.id: offer for offer in document.inputs.offers}
    alive = {node.id for node in situation.survivors}
    providers = {offers[node.offer].provider for node in document.plan.nodes}
    new = {offers[node.offer].provider for node in document.plan.nodes if node.id not in alive}
    seconds = max((startup_s(provider) for provider in new), default=0.0)
    seconds += document.prediction.iteration_s_replay * situation.left.steps
    paid_s = seconds + max(teardown_s(provider) for provider in providers)
    usd = document.cost.usd_per_hour * paid_s / SECONDS_PER_HOUR
    return Option(
        label=label,
        document=document,
        seconds=seconds,
        usd=usd + egress.usd_per_step(document) * situation.left.steps,
    )


def _rank(option: Option, goal: Goal) -> tuple[float, float, str]:
    order = (option.usd, option.seconds) if goal is Goal.MINIMIZE_COST else (option.seconds, option.usd)
    return (*order, option.label)


def _shortfall(option: Option, left: Left) -> str:
    lacks = []
    if left.usd is not None and option.usd > left.usd:
        lacks.append(f"{option.usd:.2f} USD where {max(left.usd, 0.0):.2f} are left of the budget")
    if left.seconds is not None and option.seconds > left.seconds:
        lacks.append(f"{option.seconds:.0f} s where {max(left.seconds, 0.0):.0f} are left until the deadline")
    if not lacks:
        return f"no plan for the {left.steps} iterations that are left is within the budget should it run until its TTL"
    return f"the {left.steps} iterations that are left need at least {' and '.join(lacks)}"
