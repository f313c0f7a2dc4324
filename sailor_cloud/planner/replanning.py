"""How to go on with a run that lost nodes or can have new ones: ways to finish it, each with its time and money."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sailor_cloud.catalog import Catalog
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Network
from sailor_cloud.planner.candidates import Candidates, Pool, Row
from sailor_cloud.planner.draft import Draft, to_plan
from sailor_cloud.planner.goals import Figure, Limit, Target, target_of
from sailor_cloud.planner.moving import Moving, moving
from sailor_cloud.planner.quotas import binding
from sailor_cloud.planner.solving import solve
from sailor_cloud.planner.space import Space, build
from sailor_cloud.simulator import Scenario, evaluate, node_usd_per_hour, startup_s, teardown_s
from sailor_cloud.units import SECONDS_PER_HOUR
from sailor_cloud.workload import ComputeProfiles

# Drafts beside the best ones of a search that are judged under the replay.
MOST_JUDGED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What there is: how many nodes of each offer still run, and where the newest checkpoint lies.

    `plan` is what ran last, None if it can't be told. `store_zone` is as in `moving`.
    """

    kept: Mapping[str, int]
    plan: Plan | None = None
    store_zone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of a run: iterations after the newest checkpoint, money and seconds; None means without limit."""

    steps: int
    usd: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A plan to go on with. `seconds` until the last step and `usd` until all nodes are gone.

    Both count the start-up of new nodes, during which kept ones wait and are paid for, and the moving of state. `kept`
    and `bought` are nodes by offer; what runs and is in neither is given back.
    """

    label: str
    plan: Plan
    kept: Mapping[str, int]
    bought: Mapping[str, int]
    startup_s: float
    moving: Moving
    iteration_s: float
    seconds: float
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The data that plans are judged by."""

    catalog: Catalog
    network: Network
    profiles: ComputeProfiles
    decoder: Decoder
    as_of: datetime


def replan(job: Job, running: Running, available: Mapping[str, int], rest: Rest, market: Market) -> tuple[Way, ...]:
    """Return the ways to finish a run within what is left, best by the job's goal first.

    available: how many nodes of each offer can be had beside those that run. Looked at are the best plans over what
    runs, which wait for nobody; the best plans over everything; and the last plan with new nodes for the lost ones. Of
    equally good ways the one that keeps more nodes comes first. Raises DataError for an offer that is not known.
    """
    ways: list[Way] = []
    for label, counts in (("go on with what is left", dict(running.kept)), ("re-plan", _both(running, available))):
        space = _space(job, rest, counts, market, kept=running.kept)
        if space is None or not space.pools:
            continue
        waits = label == "re-plan"
        target = _target(space, rest, startup=waits)
        for draft in _drafts(space, target):
            ways.append(_way(label, to_plan(space, draft), space.scenario, running, rest))
    if running.plan is not None and _can_be_had(running.plan, running, available):
        scenario = _scenario(job, rest, _offers_of(running.plan), market)
        ways.append(_way("replace", running.plan, scenario, running, rest))
    fitting = [way for way in ways if _fits(way, rest)]
    return tuple(sorted(fitting, key=lambda way: _rank(way, job.goal)))


def _drafts(space: Space, target: Target) -> Sequence[Draft]:
    """Return the drafts worth judging with their whole time and money, best by the closed form first."""
    answer = solve(space, target)
    known = {draft.order(): draft for draft in (*answer.drafts, *answer.others)}
    others = [known[order] for order in sorted(known)]
    return tuple({draft.order(): draft for draft in (*answer.drafts, *others[:MOST_JUDGED])}.values())


def _both(running: Running, available: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(running.kept) + Counter(available))


def _offers_of(plan: Plan) -> dict[str, int]:
    return dict(Counter(node.offer for node in plan.nodes))


def _can_be_had(plan: Plan, running: Running, available: Mapping[str, int]) -> bool:
    there = _both(running, available)
    return all(count <= there.get(offer, 0) for offer, count in _offers_of(plan).items())


def _scenario(job: Job, rest: Rest, offers: Mapping[str, int], market: Market) -> Scenario:
    training = job.training.model_copy(update={"steps": rest.steps})
    return Scenario(
        job=job.model_copy(update={"training": training}),
        decoder=market.decoder,
        offers={offer: market.catalog.offer(offer) for offer in offers},
        catalog=market.catalog,
        network=market.network,
        profiles=market.profiles,
        as_of=market.as_of,
    )


def _space(job: Job, rest: Rest, counts: Mapping[str, int], market: Market, *, kept: Mapping[str, int]) -> Space | None:
    """Return the space of so many nodes of each offer, or None without any."""
    there = {offer: count for offer, count in sorted(counts.items()) if count > 0}
    if not there:
        return None
    scenario = _scenario(job, rest, there, market)
    numbers: dict[tuple[str, str], int] = {}
    devices: Counter[int] = Counter()
    pools = []
    for offer_id, count in there.items():
        offer = scenario.offers[offer_id]
        row = numbers.setdefault((offer.zone, offer.accelerator), len(numbers))
        devices[row] += count * offer.accelerator_count
        most = min(count, job.constraints.max_nodes or count)
        pools.append(
            Pool(offer=offer, accelerator=market.catalog.accelerator(offer.accelerator), row=row, max_nodes=most)
        )
    rows = tuple(
        Row(entry=0, zone=zone, accelerator=name, devices=devices[row]) for (zone, name), row in numbers.items()
    )
    project = job.cloud.gcp.project if job.cloud.gcp is not None else None
    # What runs is there whatever a quota says of it now.
    quotas = tuple(
        replace(quota, limit=max(quota.left, held), used=0.0)
        for quota in market.catalog.quotas(project=project)
        for held in [math.fsum(quota.units(market.catalog.offer(offer)) * count for offer, count in kept.items())]
    )
    candidates = Candidates(pools=tuple(pools), rows=rows, rejected=(), quotas=binding(quotas, pools, rows))
    return build(scenario, candidates)[0]


def _target(space: Space, rest: Rest, *, startup: bool) -> Target:
    """Return the job's target under what is left; nodes that run already need no time to start.

    The closed form counts a start-up with every plan; without one, limits are wider by the most that it may cost. What
    slips through is judged by its own figures.
    """
    job = space.scenario.job
    constraints = job.constraints.model_copy(update={"budget_usd": None, "deadline": None})
    target = target_of(job.model_copy(update={"constraints": constraints}))
    spare_s = 0.0 if startup else max(startup_s(pool.offer.provider) for pool in space.pools)
    rate = math.fsum(cost.expected * pool.max_nodes for cost, pool in zip(space.rates, space.pools, strict=True))
    limits = list(target.limits)
    last_s = max(teardown_s(pool.offer.provider) for pool in space.pools)
    if rest.seconds is not None:
        limits.append(Limit(name="deadline", figure=Figure.DURATION_S, at_most=rest.seconds + spare_s + last_s))
    if rest.usd is not None:
        spare_usd = rate * spare_s / SECONDS_PER_HOUR
        limits.append(Limit(name="budget_usd", figure=Figure.TOTAL_USD, at_most=rest.usd + spare_usd))
    return replace(target, limits=tuple(limits))


def _way(label: str, plan: Plan, scenario: Scenario, running: Running, rest: Rest) -> Way:
    """Judge a plan under the replay, with the time that new nodes and the state take before the first step.

    NAT gateways of private networks are charged as if nodes started with the run.
    """
    evaluation = evaluate(plan, scenario)
    wanted = _offers_of(plan)
    kept = {offer: min(count, running.kept.get(offer, 0)) for offer, count in wanted.items()}
    bought = {offer: count - kept[offer] for offer, count in wanted.items() if count > kept[offer]}
    providers = {scenario.offer(offer).provider for offer in wanted}
    counted = max(startup_s(provider) for provider in providers)
    starting = max((startup_s(scenario.offer(offer).provider) for offer in bought), default=0.0)
    state = moving(plan, scenario, store_zone=running.store_zone)
    prediction, cost = evaluation.prediction, evaluation.cost
    assert prediction.duration_s is not None, "what is left has a number of steps"
    assert cost.total_usd is not None
    extra_s = starting - counted + state.seconds
    rate = math.fsum(node_usd_per_hour(scenario.offer(node.offer), scenario).expected for node in plan.nodes)
    return Way(
        label=label,
        plan=plan,
        kept={offer: count for offer, count in kept.items() if count},
        bought=bought,
        startup_s=starting,
        moving=state,
        iteration_s=prediction.iteration_s_replay,
        seconds=prediction.duration_s + extra_s - max(teardown_s(provider) for provider in providers),
        usd=cost.total_usd + rate * extra_s / SECONDS_PER_HOUR + state.usd,
    )


def _fits(way: Way, rest: Rest) -> bool:
    return (rest.seconds is None or way.seconds <= rest.seconds) and (rest.usd is None or way.usd <= rest.usd)


def _rank(way: Way, goal: Goal) -> tuple[object, ...]:
    order = (way.usd, way.seconds) if goal is Goal.MINIMIZE_COST else (way.seconds, way.usd)
    rounded = tuple(float(f"{value:.9g}") for value in order)
    return (*rounded, -sum(way.kept.values()), way.label, str(way.plan))
