"""The plan of a job without a model: the cheapest zone that sells what its resources name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.catalog import Catalog, Service, providers
from sailor_cloud.catalog.prices.doubts import is_stale
from sailor_cloud.clock import Clock
from sailor_cloud.model.document import (
    SCHEMA_VERSION,
    Cost,
    CostKind,
    CostLine,
    Infeasibility,
    Inputs,
    PlanDocument,
    Rejected,
    Search,
    Status,
)
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import MINIMUM_BILLED_S, Market, Offer
from sailor_cloud.model.parts import node_part
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.space.candidates import Candidates, Pool, collect
from sailor_cloud.planner.space.goals import limit_text
from sailor_cloud.simulator import money
from sailor_cloud.simulator.bill import UNUSED, cost_line, gateways, setup_lines
from sailor_cloud.simulator.lifetime import ttl_s
from sailor_cloud.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class _Bought:
    """Several equal nodes of one offer."""

    offer: Offer
    count: int


def purchase(
    job: Job, *, catalog: Catalog, clock: Clock, refused: Callable[[Offer], bool] = lambda offer: False
) -> PlanDocument:
    """Return the cheapest purchase of everything that the job's resources name, each entry in one zone.

    An accelerator's nodes are equal, so each starts the same number of processes. `refused` offers are left out.
    Traffic between zones is unknown here, so if it costs money, all nodes share one zone. Raises MissingPriceError.
    """
    candidates = collect(job, catalog)
    as_of = clock.now()

    def out(offer: Offer) -> bool:
        return refused(offer) or (offer.terms is not None and offer.terms.over(as_of, offer.market))

    bought: list[_Bought] = []
    for entry in range(len(job.resources)):
        chosen = _cheapest(job, entry, candidates, catalog, out)
        if chosen is None:
            return _infeasible(job, as_of, _why(job, entry, candidates, out), candidates.rejected)
        bought += chosen
    cost = _cost(job, bought, catalog, as_of)
    duration_s = _hours(job, bought, catalog)[-1] * SECONDS_PER_HOUR if cost.total_usd is not None else None
    if broken := _broken(job, bought, cost, duration_s):
        return _infeasible(job, as_of, broken, candidates.rejected)
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.OPTIMAL,
        created_at=as_of,
        as_of=as_of,
        job=job,
        inputs=Inputs(
            offers=Rows(sorted({one.offer.id: one.offer for one in bought}.values(), key=lambda offer: offer.id)),
            links=(),
            compute_profiles=(),
        ),
        objective=None,
        constraints=job.constraints,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=0.0),
        plan=_plan(job, bought),
        prediction=None,
        cost=cost,
        ttl_s=ttl_s(
            job.constraints,
            cost,
            duration_s=duration_s,
            offers=[one.offer for one in bought],
            as_of=as_of,
        ),
        infeasibility=None,
        alternatives=Rows(),
        rejected=candidates.rejected,
    )


def _cheapest(
    job: Job, entry: int, candidates: Candidates, catalog: Catalog, refused: Callable[[Offer], bool]
) -> list[_Bought] | None:
    """Return the cheapest way to buy an entry's accelerators in one of its zones, or None if there is none."""
    ways: list[tuple[float, str, list[_Bought]]] = []
    for zone in sorted(set(job.resources[entry].zones)):
        way: list[_Bought] = []
        for name, wanted in sorted(job.resources[entry].accelerators.items()):
            fitting = [
                _Bought(pool.offer, wanted // pool.devices)
                for pool in _pools(candidates, entry, zone, name)
                if not refused(pool.offer) and wanted % pool.devices == 0 and wanted // pool.devices <= pool.max_nodes
            ]
            if not fitting:
                break
            way.append(min(fitting, key=lambda one: (_usd_per_hour(one, job, catalog), one.offer.id)))
        else:
            ways.append((sum(_usd_per_hour(one, job, catalog) for one in way), zone, way))
    return min(ways, key=lambda way: way[:2])[2] if ways else None


def _pools(candidates: Candidates, entry: int, zone: str, accelerator: str) -> Iterator[Pool]:
    for pool in candidates.pools:
        row = candidates.rows[pool.row]
        if (row.entry, row.zone, row.accelerator) == (entry, zone, accelerator):
            yield pool


def _usd_per_hour(one: _Bought, job: Job, catalog: Catalog) -> float:
    services = money.services_with(one.offer, catalog, job.cloud.network)
    return one.count * (one.offer.usd_per_hour + sum(usd for _, usd in services))


def _plan(job: Job, bought: list[_Bought]) -> Plan:
    """Return the plan: every device is a process, and shares of the batch are as equal as whole samples allow."""
    nodes: list[Node] = []
    for one in bought:
        stem = f"{one.offer.zone}-{one.offer.accelerator.lower()}"
        taken = sum(node.id.startswith(f"{stem}-") for node in nodes)
        nodes += [
            Node(id=f"{stem}-{taken + index}", offer=one.offer.id, devices=one.offer.accelerator_count)
            for index in range(one.count)
        ]
    devices = [(node.id, device) for node in nodes for device in range(node.devices)]
    batch = max(job.training.global_batch_size, len(devices))
    pipelines = tuple(
        Pipeline(
            id=index,
            microbatch_size=batch // len(devices) + (index < batch % len(devices)),
            microbatches=1,
            stages=(Stage(first_layer=0, end_layer=1, node=node, devices=(device,)),),
        )
        for index, (node, device) in enumerate(devices)
    )
    return Plan(zero_stage=0, precision=job.training.precision, nodes=tuple(nodes), pipelines=pipelines)


def _hours(job: Job, bought: list[_Bought], catalog: Catalog) -> tuple[float, float, float, float, float, float]:
    """Return hours of training, expected and worst loss to preemption, start-up, teardown, and their sum.

    Without a rate or a number of steps, training is one hour and the others are 0.
    """
    iteration_s = job.iteration_s
    if iteration_s is None or job.training.steps is None:
        return 1.0, 0.0, 0.0, 0.0, 0.0, 1.0
    training = job.training.steps * iteration_s / SECONDS_PER_HOUR
    start = max(money.startup_s(one.offer.provider) for one in bought)
    end = max(money.teardown_s(one.offer.provider) for one in bought) / SECONDS_PER_HOUR
    rate = sum(one.count * money.preemptions_per_hour(one.offer, catalog) for one in bought)
    lost, worst = (
        training
        * float(money.lost_fraction(rate * factor, interval_s=job.checkpoint.every, checkpoint_s=0.0, restart_s=start))
        for factor in (1.0, money.WORST_PREEMPTION_FACTOR)
    )
    return training, lost, worst, start / SECONDS_PER_HOUR, end, training + lost + start / SECONDS_PER_HOUR + end


def _cost(job: Job, bought: list[_Bought], catalog: Catalog, as_of: datetime) -> Cost:
    training, lost, worst_lost, start, end, total = _hours(job, bought, catalog)
    worst_total, least = total - lost + worst_lost, MINIMUM_BILLED_S / SECONDS_PER_HOUR
    lines: list[CostLine] = []
    expected_rate = worst_rate = 0.0
    for one in bought:
        offer = one.offer
        worst = offer.usd_per_hour
        if offer.market is Market.SPOT:
            worst = max(worst, catalog.on_demand_usd_per_hour(offer) or 0.0)
        stale = is_stale(offer, as_of.date())
        worst *= 1.0 + money.STALE_MARGIN if stale else 1.0
        expected_rate += one.count * offer.usd_per_hour
        worst_rate += one.count * worst
        part = node_part(offer.instance_type, offer.market, offer.zone)
        for kind, meanwhile, hours, worst_hours in (
            (CostKind.COMPUTE, "", training, training),
            (CostKind.STARTUP, ", start-up", start, start),
            (CostKind.TEARDOWN, ", teardown", end, end),
            (CostKind.RECOVERY, ", lost to preemption", lost, worst_lost),
            (CostKind.TEARDOWN, UNUSED, max(0.0, least - total), max(0.0, least - worst_total)),
        ):
            if max(hours, worst_hours) > 0.0:
                lines.append(
                    CostLine(
                        kind=kind,
                        what=f"{one.count} x {part}{meanwhile}",
                        quantity=one.count * hours,
                        unit="unused hour" if meanwhile == UNUSED else "hour",
                        usd_per_unit=offer.usd_per_hour,
                        usd=one.count * hours * offer.usd_per_hour,
                        worst_usd=one.count * worst_hours * worst,
                        price_source=offer.source,
                        price_as_of=offer.as_of_from,
                        stale=stale,
                        part=part,
                    )
                )
    with_nodes = [
        (price, usd, one.count)
        for one in bought
        for price, usd in money.services_with(one.offer, catalog, job.cloud.network)
    ]
    shared = gateways((one.offer for one in bought), catalog.services, job.cloud.network)
    for price, usd, count in (*with_nodes, *((price, usd, 1) for price, usd in shared)):
        expected_rate, worst_rate = expected_rate + count * usd, worst_rate + count * usd
        part = money.service_part(price.service)
        lines.append(
            cost_line(
                money.service_kind(price.service),
                f"{count} x {part}",
                price,
                expected=count * total,
                worst=count * worst_total,
                unit="hour",
                usd_per_unit=usd,
                part=part,
            )
        )
    counts = {one.offer: one.count for one in bought}
    lines += setup_lines(counts, catalog.services, job.cloud.network, starts=(1.0, 1.0))
    lines += _bucket_lines(job, bought[0].offer, catalog)
    known = job.training.steps is not None and job.iteration_s is not None
    lines.sort(key=lambda line: (list(CostKind).index(line.kind), line.what))
    return Cost(
        usd_per_iteration=None if job.iteration_s is None else expected_rate * job.iteration_s / SECONDS_PER_HOUR,
        usd_per_hour=expected_rate,
        worst_case_usd_per_hour=worst_rate,
        total_usd=sum(line.usd for line in lines) if known else None,
        worst_case_usd=sum(line.worst_usd for line in lines) if known else None,
        lines=Rows(lines),
    )


def _bucket_lines(job: Job, home: Offer, catalog: Catalog) -> list[CostLine]:
    """Return the bucket prices of checkpoints; their size is unknown until the run measures it."""
    if not providers.of(home.provider).bills_services or (job.checkpoint.to or "gs://").startswith("/"):
        return []
    prices = (
        ("checkpoints kept", Service.OBJECT_STORAGE),
        ("writing checkpoints", Service.OBJECT_WRITES),
    )
    return [
        cost_line(
            CostKind.CHECKPOINT,
            f"{what}, metered",
            catalog.services.price(home.provider, home.region, service),
            expected=0.0,
            worst=0.0,
        )
        for what, service in prices
    ]


def _broken(job: Job, bought: list[_Bought], cost: Cost, duration_s: float | None) -> Infeasibility | None:
    """Return the first limit that the purchase exceeds."""
    limits = job.constraints
    zones = {one.offer.zone for one in bought if providers.of(one.offer.provider).bills_services}
    if len(zones) > 1:
        message = (
            f"the nodes would stand in {', '.join(sorted(zones))}, and what the command sends between zones can't be "
            "foreseen; name one zone that all entries of resources share, or give a model"
        )
        return Infeasibility(constraint="resources", limit=1, needed=len(zones), unit="zones", message=message)
    nodes = sum(one.count for one in bought)
    figures = (
        ("max_nodes", limits.max_nodes, nodes, "nodes"),
        ("max_usd_per_hour", limits.max_usd_per_hour, cost.usd_per_hour, "USD/h"),
        ("max_usd_per_iteration", limits.max_usd_per_iteration, cost.usd_per_iteration, "USD/iteration"),
        ("budget_usd", limits.budget_usd, cost.total_usd, "USD"),
        ("deadline", limits.deadline, duration_s, "s"),
    )
    for name, limit, needed, unit in figures:
        if limit is not None and needed is not None and needed > limit * (1 + 1e-9):
            least, most = limit_text(name, needed), limit_text(name, limit)
            message = f"what the resources name needs {least}, and {name} is {most}"
            return Infeasibility(constraint=name, limit=limit, needed=needed, unit=unit, message=message)
    rate = None if job.iteration_s is None else 1.0 / job.iteration_s
    if limits.min_throughput is not None and rate is not None and rate < limits.min_throughput:
        message = f"throughput is {rate:g} steps/s, and min_throughput is {limits.min_throughput:g}"
        return Infeasibility(
            constraint="min_throughput", limit=limits.min_throughput, needed=rate, unit="steps/s", message=message
        )
    return None


def _why(job: Job, entry: int, candidates: Candidates, refused: Callable[[Offer], bool]) -> Infeasibility:
    """Return why no zone has a suitable offer for an entry, by accelerator."""
    wanted = job.resources[entry].accelerators
    reasons = []
    for name, count in sorted(wanted.items()):
        pools = [pool for zone in job.resources[entry].zones for pool in _pools(candidates, entry, zone, name)]
        free = [pool for pool in pools if not refused(pool.offer)]
        sizes = sorted({pool.devices for pool in free})
        if not pools:
            reasons.append(f"no offer of {name} is known there")
        elif not free:
            reasons.append(f"every offer of {name} was refused lately or has ended")
        elif not any(count % size == 0 for size in sizes):
            nodes = " or ".join(map(str, sizes))
            reasons.append(f"{count} {name} don't divide into equal nodes, which carry {nodes}")
        elif not any(count % pool.devices == 0 and count // pool.devices <= pool.max_nodes for pool in free):
            reasons.append(f"{count} {name} are more than a quota or max_nodes allows")
    reason = "; ".join(reasons) or "its accelerators are not sold in one zone"
    message = f"resources[{entry}] ({', '.join(job.resources[entry].zones)}): {reason}"
    return Infeasibility(constraint="resources", limit=None, needed=None, unit="", message=message)


def _infeasible(job: Job, as_of: datetime, why: Infeasibility, rejected: tuple[Rejected, ...]) -> PlanDocument:
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.INFEASIBLE,
        created_at=as_of,
        as_of=as_of,
        job=job,
        inputs=Inputs(offers=Rows(), links=(), compute_profiles=()),
        objective=None,
        constraints=job.constraints,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=0.0),
        plan=None,
        prediction=None,
        cost=None,
        ttl_s=None,
        infeasibility=why,
        alternatives=Rows(),
        rejected=rejected,
    )
