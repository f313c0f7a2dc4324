"""What to do when nodes are lost or unavailable: replace them, plan again, or continue with the remaining nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import count
from typing import Protocol

from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.remaining_job import Devices, remaining_job
from sailor_cloud.launch.replanning.spot import Continuation, Pool, SpotHistory, SpotOutlook
from sailor_cloud.launch.replanning.stated import allow_stated_settings, with_stated_settings
from sailor_cloud.launch.spend import egress
from sailor_cloud.launch.spend.lifetime import Remaining, usd_per_hour
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Node, Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.explain.decision import goal_pick
from sailor_cloud.provision.guards import two_clouds_problem
from sailor_cloud.simulator import startup_s, teardown_s
from sailor_cloud.simulator.money import wait_s as capacity_wait_s
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text


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
    """Whether two plans compute the same way, regardless of node names."""

    def shape(plan: Plan) -> object:
        offers = {node.id: node.offer for node in plan.nodes}
        return [
            (
                pipeline.microbatch_size,
                pipeline.microbatches,
                [(s.ranges, offers[s.node], s.devices, s.recompute) for s in pipeline.stages],
            )
            for pipeline in plan.pipelines
        ]

    settings_a, settings_b = ((plan.zero_stage, plan.precision, plan.pipeline_schedule) for plan in (a, b))
    return settings_a == settings_b and shape(a) == shape(b)


# Bytes/s from one zone to another.
Rates = Mapping[tuple[str, str], float]


class Search(Protocol):
    """The planner's interface for a run."""

    def __call__(self, job: Job, choose: Pick | None = None) -> PlanDocument:
        """Return the best plan of a job, by `choose` or else by its goal; without one, a document without a plan."""

    def offers(self, job: Job) -> tuple[Offer, ...]:
        """Return everything that a job may buy, at the newest known prices."""

    def update_link_speeds(self, rates: Rates) -> None:
        """Use these measured link speeds in all later plans."""

    def purchase(self, job: Job, refused: Callable[[Offer], bool]) -> PlanDocument:
        """Return the cheapest purchase for a job without a model, without refused offers; else one without a plan."""

    def predict(self, document: PlanDocument) -> PlanDocument:
        """Return the document with its plan's prediction and cost by current knowledge."""

    def migration_cost(self, document: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        """Return the seconds and USD to move the state of a running plan to the nodes of another one."""


class Policy(StrEnum):
    """`best` weighs money and time to finish; the others are for comparison."""

    BEST = "best"
    NEVER = "never-replan"
    ALWAYS = "always-replan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to continue. `seconds` and `usd` last until the final step, with start-up and moving of the state.

    `wait_s` of the seconds pass before any purchase; running nodes are paid meanwhile, and until capacity begins.
    `continuation` is the option as the spot policy sees it. `policy_disagrees`: it prefers another kind of continuation
    now. `deadline_safe`: on-demand could still finish in time if this option brought nothing.
    """

    label: str
    document: PlanDocument
    seconds: float
    usd: float
    continuation: Continuation
    wait_s: float = 0.0
    policy_disagrees: bool = False
    deadline_safe: bool = True

    def fits(self, left: Remaining) -> bool:
        """Whether the run can finish within the limits this way, and could afford its cost without a controller."""
        if left.seconds is not None and self.seconds > left.seconds:
            return False
        if left.usd is not None and self.usd > left.usd:
            return False
        alone_usd = usd_per_hour(self.document) * left.life_s / SECONDS_PER_HOUR
        return left.usd_alone is None or alone_usd <= left.usd_alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of a decision. `survivors` run now; `blocked` maps choices to seconds until they can be bought.

    `used_names` are those of the run's earlier nodes, which new nodes never get. `offers` are the known offers by id.
    `choose` is the user's choice between plans, if not left to the goal. `spot_history` has the
    run's observations of spot capacity. `margin_s` is the time that may be lost until the next look. Waits for later
    capacity count from `now`. `stated` is the run's first plan if a user gave its layout.
    """

    job: Job
    document: PlanDocument
    survivors: tuple[Node, ...]
    blocked: Mapping[Choice, float]
    used_names: frozenset[str]
    remaining: Remaining
    offers: Mapping[str, Offer] = field(default_factory=dict)
    choose: Pick | None = None
    spot_history: SpotHistory = field(default_factory=dict)
    margin_s: float = 0.0
    now: datetime | None = None
    stated: Plan | None = None

    @property
    def pick(self) -> Pick:
        """The criterion for options."""
        return self.choose or goal_pick(self.job.goal)

    @property
    def devices(self) -> Devices:
        return Devices(survivors=self.survivors, blocked=frozenset(self.blocked), offers=self.offers)

    @property
    def uses_spot_policy(self) -> bool:
        """Whether the run follows the policy for a deadline: least money, on spot and on demand."""
        markets = {market for entry in self.job.resources for market in entry.markets}
        return (
            self.pick is Pick.CHEAPEST
            and self.job.constraints.deadline is not None
            and None not in (self.document.iteration_s, self.remaining.steps, self.remaining.seconds)
            and {Market.SPOT, Market.ON_DEMAND} <= markets
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The chosen option; without one, `shortfall` says what is lacking: money or (`of_time`) time."""

    option: Option | None
    shortfall: str = ""
    of_time: bool = False


def decide(situation: Situation, search: Search, *, policy: Policy = Policy.BEST) -> Decision:
    """Return how to continue, by time or money as the job's goal says, within the limits of both."""
    options = _options(situation, search, policy)
    if policy is Policy.BEST and situation.uses_spot_policy:
        options = _judged_by_spot_policy(options, situation, search)
    fitting = [option for option in options if option.deadline_safe and option.fits(situation.remaining)]
    if fitting:
        return Decision(option=min(fitting, key=lambda option: _rank(option, situation.pick)))
    if options:
        nearest = min(options, key=lambda option: option.usd)
        seconds = situation.remaining.seconds
        deadline = situation.job.constraints.deadline is not None
        # Without a deadline, the budget set the TTL.
        of_time = deadline and seconds is not None and nearest.seconds > seconds
        end = "the deadline" if deadline else "the TTL"
        return Decision(option=None, shortfall=_shortfall(nearest, situation.remaining, end), of_time=of_time)
    return Decision(option=None)


def growth(
    situation: Situation, search: Search, *, least_gain_s: float, label: str = "grow", settled: bool = True
) -> Option | None:
    """Return a plan worth switching to, or None: a better one or, under a deadline, a safer one.

    If the run is not `settled`, the only alternative is on-demand.
    """
    document = _searched(situation, search, only_survivors=False) if settled else None
    options = [] if document is None else [_option(label, document, situation, search)]
    current = _option("stay", situation.document, situation, None)
    if situation.uses_spot_policy:
        current, *options = _judged_by_spot_policy([current, *options], situation, search)
    fitting = [
        option
        for option in options
        # Capacity that begins later can't be bought during training; it is considered again once it has begun.
        if option.deadline_safe
        and option.fits(situation.remaining)
        and not _begins_later(option.document, situation.now)
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda option: _rank(option, situation.pick))
    if situation.pick is Pick.FASTEST:
        return best if best.seconds + least_gain_s < current.seconds else None
    if current.deadline_safe and not current.fits(situation.remaining):
        # Too few nodes to end in time keep the place of spot nodes. Spot returns first, on-demand only when it must.
        waited = [option for option in fitting if option.continuation.pools] if situation.uses_spot_policy else fitting
        return min(waited, key=lambda option: _rank(option, situation.pick), default=None)
    better = _rank(best, situation.pick)[:2] < _rank(current, situation.pick)[:2]
    return best if better or not current.deadline_safe else None


def _begins_later(document: PlanDocument, now: datetime | None) -> bool:
    assert document.plan is not None
    offers = document.inputs.offers_by_id()
    terms = [offers[node.offer].terms for node in document.plan.nodes]
    starts = [one.starts_at for one in terms if one is not None and one.starts_at is not None]
    return now is not None and any(start > now for start in starts)


def _judged_by_spot_policy(options: Sequence[Option], situation: Situation, search: Search) -> list[Option]:
    """Return the options as the spot policy judges them, and on-demand as one more.

    They stay unchanged if no plan is on spot, or if on-demand alone can't finish.
    """
    now = _continuation(situation.document, situation)
    on_spot = now.pools or any(option.continuation.pools for option in options)
    on_demand = _on_demand(situation, search) if on_spot else None
    if on_demand is None or not on_demand.fits(situation.remaining):
        return [*options]
    assert situation.remaining.seconds is not None
    providers = {offer.provider for offer in situation.offers.values() if offer.market is Market.SPOT}
    outlook = SpotOutlook(
        spot_history=situation.spot_history,
        remaining_s=situation.remaining.seconds,
        change_over_s=max(startup_s(provider) for provider in providers) + situation.job.checkpoint.every / 2,
        on_demand=on_demand.continuation,
        on_demand_s=on_demand.seconds,
        margin_s=situation.margin_s,
        trains_on_demand=bool(situation.survivors) and not now.pools,
    )
    every = [*options, on_demand]
    chosen = outlook.chosen([option.continuation for option in every if option.fits(situation.remaining)])
    return [
        replace(
            option,
            policy_disagrees=option.continuation.kind is not chosen,
            deadline_safe=outlook.is_deadline_safe(option.continuation),
        )
        for option in every
    ]


def _on_demand(situation: Situation, search: Search) -> Option | None:
    """Return the way to continue without any spot node."""
    entries = [
        entry.model_copy(update={"markets": markets})
        for entry in situation.job.resources
        if (markets := tuple(market for market in entry.markets if market is not Market.SPOT))
    ]
    job = situation.job.model_copy(update={"resources": tuple(entries)})
    kept = [node for node in situation.survivors if situation.offers[node.offer].market is not Market.SPOT]
    alone = replace(situation, job=job, survivors=tuple(kept))
    document = _searched(alone, search, only_survivors=False)
    return None if document is None else _option("switch to on-demand", document, alone, search)


def _continuation(document: PlanDocument, situation: Situation, *, wait_s: float = 0.0) -> Continuation:
    assert document.plan is not None
    offers = {**situation.offers, **document.inputs.offers_by_id()}
    alive = {node.id for node in situation.survivors}
    used = {offers[node.offer] for node in document.plan.nodes}
    return Continuation(
        work_s=(document.iteration_s or 0.0) * (situation.remaining.steps or 0),
        usd_per_hour=_nodes_usd_per_hour(document),
        pools=frozenset(Pool.of(offer) for offer in used if offer.market is Market.SPOT),
        starts=any(node.id not in alive for node in document.plan.nodes),
        wait_s=wait_s,
    )


def _options(situation: Situation, search: Search, policy: Policy) -> list[Option]:
    """Return the ways to continue, those with the least change first.

    Waiting is an option only if the remaining nodes can't train. Otherwise they continue, and the plan grows once
    capacity returns.
    """
    options = []
    smaller: PlanDocument | None = None
    wait_s = _wait_s(situation)
    if policy is not Policy.ALWAYS and not wait_s:
        options.append(_option("replace", _replaced(situation), situation, search))
    if situation.survivors and policy is Policy.BEST and situation.job.model is not None:
        smaller = _searched(situation, search, only_survivors=True)
        if smaller is not None:
            options.append(_option("continue with the remaining nodes", smaller, situation, search))
    idle = not any(option.fits(situation.remaining) for option in options)
    if policy is Policy.BEST and wait_s and idle:
        waiting = _option("wait and replace", _replaced(situation), situation, search, wait_s=wait_s)
        options.append(waiting if smaller is None else _shrink_then_grow(waiting, smaller, situation, search))
    replanned = None if policy is Policy.NEVER else _searched(situation, search, only_survivors=False)
    if replanned is not None:
        options.append(_option("re-plan", replanned, situation, search))
    return options


def _shrink_then_grow(waiting: Option, smaller: PlanDocument, situation: Situation, search: Search) -> Option:
    """Return the option to continue with the remaining nodes, and to grow once capacity may be back.

    Steps trained meanwhile need not be repeated; both changes of the plan cost a start.
    """
    steps, full = situation.remaining.steps or 0, situation.document
    begun = _option("", smaller, situation, search)
    start_s = max(0.0, begun.seconds - (smaller.iteration_s or 0.0) * steps)
    done = min(float(steps), max(0.0, waiting.wait_s - start_s) / (smaller.iteration_s or math.inf))
    seconds = waiting.seconds - done * (full.iteration_s or 0.0)
    saved_usd = done * (full.iteration_s or 0.0) * _nodes_usd_per_hour(full) / SECONDS_PER_HOUR
    label = "continue with the remaining nodes until capacity is back"
    usd = waiting.usd - saved_usd
    return Option(label=label, document=smaller, seconds=seconds, usd=usd, continuation=waiting.continuation)


def _lost(situation: Situation) -> list[Node]:
    assert situation.document.plan is not None
    alive = {node.id for node in situation.survivors}
    return [node for node in situation.document.plan.nodes if node.id not in alive]


def _wait_s(situation: Situation) -> float:
    """Return the seconds until all lost nodes may be requested again; 0 if none is blocked."""
    choices = {Choice.of(situation.offers[node.offer]) for node in _lost(situation)}
    return max((situation.blocked[choice] for choice in choices & situation.blocked.keys()), default=0.0)


def _replaced(situation: Situation) -> PlanDocument:
    """Return the same plan with new nodes, at the newest prices, for the lost ones."""
    document, plan, offers = situation.document, situation.document.plan, situation.offers
    assert plan is not None
    new = _lost(situation)
    paid = document.inputs.offers_by_id()
    extra = math.fsum(offers[node.offer].usd_per_hour - paid[node.offer].usd_per_hour for node in new)
    rest = _for_remaining_steps(document, situation)
    if rest.cost is not None:
        rest = replace(rest, cost=replace(rest.cost, usd_per_hour=rest.cost.usd_per_hour + extra))
    newest = Rows(offers[offer.id] for offer in document.inputs.offers)
    return replace(
        rest,
        inputs=replace(document.inputs, offers=newest),
        plan=fresh_names(plan, situation.survivors, situation.used_names, offers),
    )


def _for_remaining_steps(document: PlanDocument, situation: Situation) -> PlanDocument:
    """Return a document whose job and traffic cover only the remaining iterations."""
    steps = document.job.training.steps
    training = document.job.training.model_copy(update={"steps": situation.remaining.steps})
    job = document.job.model_copy(update={"training": training})
    if document.cost is None or not steps or situation.remaining.steps is None:
        return replace(document, job=job)
    share = situation.remaining.steps / steps
    lines = Rows(
        replace(line, quantity=line.quantity * share, usd=line.usd * share, worst_usd=line.worst_usd * share)
        for line in document.cost.lines
    )
    return replace(document, job=job, cost=replace(document.cost, lines=lines))


def _searched(situation: Situation, search: Search, *, only_survivors: bool) -> PlanDocument | None:
    if situation.job.model is None:
        return _purchased(situation, search)
    for limits in (True, False):
        job = remaining_job(
            situation.job, situation.devices, situation.remaining, only_survivors=only_survivors, limits=limits
        )
        if job is None:
            return None
        document = _plan_to_buy(
            allow_stated_settings(job, situation.stated), situation, search, situation.choose if limits else None
        )
        if document is not None:
            return with_stated_settings(
                document,
                situation.stated,
                search,
                lambda found: _option("", found, situation, search).fits(situation.remaining),
            )
        if situation.remaining.usd is None and situation.remaining.seconds is None:
            return None
    return None


def _plan_to_buy(job: Job, situation: Situation, search: Search, choose: Pick | None) -> PlanDocument | None:
    """Return a job's plan, or its best plan on one cloud if one on several can't be bought; None without a plan."""
    document = search(job, choose)
    if document.plan is None or two_clouds_problem(document) is None:
        return _with_names(document, situation)
    apart = []
    for provider in sorted({entry.provider for entry in job.resources}):
        entries = tuple(entry for entry in job.resources if entry.provider == provider)
        found = _with_names(search(job.model_copy(update={"resources": entries}), choose), situation)
        if found is not None:
            apart.append(_option("", found, situation, search))
    best = min(apart, key=lambda option: _rank(option, choose or goal_pick(job.goal)), default=None)
    return None if best is None else best.document


def _with_names(document: PlanDocument, situation: Situation) -> PlanDocument | None:
    """Return a document with the survivors' names on its plan's nodes; None without a plan."""
    if document.plan is None:
        return None
    offers = {**situation.offers, **document.inputs.offers_by_id()}
    return replace(document, plan=fresh_names(document.plan, situation.survivors, situation.used_names, offers))


def _purchased(situation: Situation, search: Search) -> PlanDocument | None:
    """Return a purchase without blocked offers; running nodes keep their names as far as they are part of it.

    Budget and deadline apply to all options alike, so the search ignores them.
    """
    limits = {"budget_usd": None, "deadline": None}
    training = situation.job.training.model_copy(update={"steps": situation.remaining.steps})
    job = situation.job.model_copy(
        update={
            "constraints": situation.job.constraints.model_copy(update=limits),
            "training": training,
            "throughput": situation.document.job.throughput,
        }
    )
    document = search.purchase(job, lambda offer: Choice.of(offer) in situation.blocked)
    return _with_names(replace(document, constraints=situation.job.constraints), situation)


def _option(
    label: str, document: PlanDocument, situation: Situation, search: Search | None, *, wait_s: float = 0.0
) -> Option:
    """Return a way to continue; `search` computes the cost of moving the state, None if nothing moves."""
    assert document.plan is not None
    assert document.cost is not None
    offers = document.inputs.offers_by_id()
    alive = {node.id for node in situation.survivors}
    providers = {offers[node.offer].provider for node in document.plan.nodes}
    added = [offers[node.offer] for node in document.plan.nodes if node.id not in alive]
    new = {offer.provider for offer in added}
    begins_s = 0.0 if situation.now is None else capacity_wait_s(added, situation.now)
    moves = search is not None and situation.job.model is not None
    moved_s, moved_usd = (
        search.migration_cost(document, situation.document) if search is not None and moves else (0.0, 0.0)
    )
    seconds = max((startup_s(provider) for provider in new), default=0.0) + moved_s
    steps = situation.remaining.steps or 0
    # If the rate of a command is unknown, only what differs between the options counts.
    seconds += (document.iteration_s or 0.0) * steps
    paid_s = seconds + max(teardown_s(provider) for provider in providers)
    usd = _nodes_usd_per_hour(document) * paid_s / SECONDS_PER_HOUR
    idle_s = wait_s + begins_s
    idle_usd = math.fsum(situation.offers[node.offer].usd_per_hour for node in situation.survivors) * idle_s
    return Option(
        label=label,
        document=document,
        seconds=idle_s + seconds,
        usd=usd + moved_usd + egress.usd_per_step(document) * steps + idle_usd / SECONDS_PER_HOUR,
        continuation=_continuation(document, situation, wait_s=wait_s),
        wait_s=wait_s,
    )


def _nodes_usd_per_hour(document: PlanDocument) -> float:
    """Return the hourly cost of a plan's nodes: its rate without traffic."""
    per_step = egress.usd_per_step(document)
    traffic = per_step * SECONDS_PER_HOUR / document.iteration_s if document.iteration_s else 0.0
    return max(0.0, usd_per_hour(document) - traffic)


def _rank(option: Option, pick: Pick) -> tuple[bool, float, float]:
    """Return a sort key; of equal options the first wins, which changes least.

    Balanced is the product of time and money: a relative increase of one outweighs the same relative decrease of the
    other.
    """
    match pick:
        case Pick.CHEAPEST:
            return option.policy_disagrees, option.usd, option.seconds
        case Pick.BALANCED:
            return option.policy_disagrees, option.usd * option.seconds, option.seconds
        case Pick.FASTEST:
            return option.policy_disagrees, option.seconds, option.usd


def _shortfall(option: Option, left: Remaining, end: str) -> str:
    lacks = []
    if left.usd is not None and option.usd > left.usd:
        lacks.append(f"{usd_text(option.usd)} USD ({usd_text(max(left.usd, 0.0))} USD of the budget are left)")
    if left.seconds is not None and option.seconds > left.seconds:
        lacks.append(f"{option.seconds:.0f} s ({max(left.seconds, 0.0):.0f} s are left until {end})")
    rest = "what is left" if left.steps is None else f"the {left.steps} iterations that are left"
    if not lacks:
        return f"no plan for {rest} stays within the budget if it runs until its TTL"
    return f"{rest} need{'s' if left.steps is None else ''} at least {' and '.join(lacks)}"
