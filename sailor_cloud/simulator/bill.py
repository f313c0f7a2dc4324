"""The bill of a run, line by line, expected beside worst case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sailor_cloud.catalog import Service, ServicePrice
from sailor_cloud.catalog.trust import is_stale
from sailor_cloud.model.document import Cost, CostKind, CostLine
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.parts import node_part, traffic_part
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.simulator import money
from sailor_cloud.simulator.checkpoints import CHECKPOINT_BYTES_PER_PARAMETER, checkpoint_lines
from sailor_cloud.simulator.cost_lines import cost_line
from sailor_cloud.simulator.gateways import gateways, setup_lines
from sailor_cloud.simulator.layout import Layout
from sailor_cloud.simulator.sync import Traffic
from sailor_cloud.units import GB, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """How long nodes are paid for: training, standing still for checkpoints, what preemption adds (expected and worst),
    start-up and teardown.

    Without a number of steps, training is one hour and there is no start-up or teardown.
    """

    training: float
    saving: float
    lost: float
    worst_lost: float
    startup: float
    teardown: float

    @property
    def total(self) -> float:
        return self.training + self.saving + self.lost + self.startup + self.teardown

    @property
    def worst_total(self) -> float:
        return self.total - self.lost + self.worst_lost


def hours(layout: Layout, iteration_s: float) -> Hours:
    """Return how long the nodes of a plan are paid for, or used: those without a price are there before and after."""
    job = layout.scenario.job
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes] if layout.priced else []
    steps = job.training.steps
    training = 1.0 if steps is None else steps * iteration_s / SECONDS_PER_HOUR
    rate = sum(money.preemptions_per_hour(offer, layout.scenario.catalog) for offer in offers)
    restart = max((money.startup_s(offer.provider) for offer in offers), default=0.0)
    start = _start(layout)
    teardown = max((money.teardown_s(offer.provider) for offer in offers), default=0.0)
    every = job.checkpoint.every
    lost = [
        training * float(money.lost_fraction(rate * factor, interval_s=every, checkpoint_s=0.0, restart_s=restart))
        for factor in (1.0, money.WORST_PREEMPTION_FACTOR)
    ]
    return Hours(
        training=training,
        saving=training * money.saving_fraction(interval_s=every, checkpoint_s=checkpoint_s(layout)),
        lost=lost[0],
        worst_lost=lost[1],
        startup=0.0 if steps is None else (start.fixed_s + start.iterations * iteration_s) / SECONDS_PER_HOUR,
        teardown=0.0 if steps is None else teardown / SECONDS_PER_HOUR,
    )


def _start(layout: Layout) -> money.Start:
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes] if layout.priced else []
    return money.start(layout.scenario, (offer.provider for offer in offers), len(offers))


def checkpoint_s(layout: Layout) -> float:
    """Return how long training stalls for one checkpoint: the largest share of a device, at the measured copy rate."""
    shares = [
        float(seat.table.parameters(seat.stage.first_layer, seat.stage.end_layer)) for seat in layout.pipelines[0]
    ]
    return max(shares) * CHECKPOINT_BYTES_PER_PARAMETER / money.CHECKPOINT_BYTES_PER_S


def bill(layout: Layout, traffic: Traffic, iteration_s: float, *, error_p90: float = 0.0) -> Cost:
    """Return the cost of a run, or of one hour of it where the job has no number of steps (totals are then None).

    On this machine the worst case also takes an iteration longer by `error_p90`.

    Raises MissingPriceError where any price is unknown.
    """
    paid = hours(layout, iteration_s)
    steps = layout.scenario.job.training.steps
    iterations = steps + _start(layout).iterations if steps is not None else SECONDS_PER_HOUR / iteration_s
    lines = [
        *_instance_lines(layout, paid, error_p90),
        *_service_lines(layout, paid),
        *_egress_lines(layout, traffic, iterations),
        *checkpoint_lines(layout, training_hours=paid.training, kept_hours=(paid.total, paid.worst_total)),
    ]
    rates = [money.node_usd_per_hour(layout.scenario.offer(node.offer), layout.scenario) for node in layout.plan.nodes]
    shared = sum(usd for _, usd in _gateways(layout))
    per_hour = sum(rate.expected for rate in rates) + shared
    worst_per_hour = sum(rate.worst for rate in rates) + shared
    per_iteration = sum(
        nbytes * money.egress_usd_per_byte(*zones, layout.scenario) for zones, nbytes in traffic.items()
    )
    per_hour_egress = per_iteration * SECONDS_PER_HOUR / iteration_s
    return Cost(
        usd_per_iteration=per_hour * iteration_s / SECONDS_PER_HOUR + per_iteration,
        usd_per_hour=per_hour + per_hour_egress,
        worst_case_usd_per_hour=worst_per_hour + per_hour_egress,
        total_usd=None if steps is None else sum(line.usd for line in lines),
        worst_case_usd=None if steps is None else sum(line.worst_usd for line in lines),
        lines=Rows(lines),
    )


def _instance_lines(layout: Layout, paid: Hours, error_p90: float) -> list[CostLine]:
    lines = []
    for offer, count in _offers(layout.plan, layout):
        worst = money.worst_instance_usd_per_hour(offer, layout.scenario)
        if layout.on_machine:
            worst *= 1.0 + error_p90
        part = node_part(offer.instance_type, offer.market, offer.zone)
        reserve = ", lost to preemption" + _interval_note(layout)
        for kind, meanwhile, spent, worst_spent in (
            (CostKind.COMPUTE, "", paid.training, paid.training),
            (CostKind.CHECKPOINT, ", standing still for checkpoints", paid.saving, paid.saving),
            (CostKind.STARTUP, ", start-up", paid.startup, paid.startup),
            (CostKind.TEARDOWN, ", teardown", paid.teardown, paid.teardown),
            (CostKind.RECOVERY, reserve, paid.lost, paid.worst_lost),
        ):
            if worst_spent <= 0.0:
                continue
            lines.append(
                CostLine(
                    kind=kind,
                    what=f"{count} x {part}{meanwhile}",
                    quantity=count * spent,
                    unit="hour",
                    usd_per_unit=offer.usd_per_hour,
                    usd=count * spent * offer.usd_per_hour,
                    worst_usd=count * worst_spent * worst,
                    price_source=offer.source,
                    price_as_of=offer.as_of_from,
                    stale=is_stale(offer, layout.scenario.as_of.date()),
                    part=part,
                )
            )
    return sorted(lines, key=lambda line: list(CostKind).index(line.kind))


def _interval_note(layout: Layout) -> str:
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes]
    rate = sum(money.preemptions_per_hour(offer, layout.scenario.catalog) for offer in offers)
    best = money.young_daly_s(checkpoint_s(layout), rate)
    return (
        "" if best is None else f" (checkpoint every {layout.scenario.job.checkpoint.every:.0f} s, best {best:.0f} s)"
    )


def _service_lines(layout: Layout, paid: Hours) -> list[CostLine]:
    lines = []
    span, worst_span = paid.total, paid.worst_total
    priced: dict[tuple[Provider, str, Service], tuple[ServicePrice, float, int]] = {}
    for offer, count in _offers(layout.plan, layout):
        for price, per_hour in money.node_services(offer, layout.scenario):
            key = (offer.provider, offer.region, price.service)
            before = priced[key][2] if key in priced else 0
            priced[key] = (price, per_hour, before + count)
    entries = list(priced.values())
    entries += [(price, per_hour, 1) for price, per_hour in _gateways(layout)]
    for price, per_hour, count in entries:
        part = money.service_part(price.service)
        lines.append(
            cost_line(
                money.service_kind(price.service),
                f"{count} x {part}",
                price,
                expected=count * span,
                worst=count * worst_span,
                unit="hour",
                usd_per_unit=per_hour,
                part=part,
            )
        )
    services, network = layout.scenario.catalog.services, layout.scenario.job.cloud.network
    lines += setup_lines(Counter(dict(_offers(layout.plan, layout))), services, network, starts=_starts(layout, paid))
    return sorted(lines, key=lambda line: (list(CostKind).index(line.kind), line.what))


def _gateways(layout: Layout) -> tuple[tuple[ServicePrice, float], ...]:
    scenario = layout.scenario
    offers = [scenario.offer(node.offer) for node in layout.plan.nodes]
    return gateways(offers, scenario.catalog.services, scenario.job.cloud.network)


def _starts(layout: Layout, paid: Hours) -> tuple[float, float]:
    """Return how often a node is set up on average, expected and worst: once, and again for each that is taken away."""
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes]
    rate = sum(money.preemptions_per_hour(offer, layout.scenario.catalog) for offer in offers) / len(offers)
    return (1.0 + rate * paid.training, 1.0 + money.WORST_PREEMPTION_FACTOR * rate * paid.training)


def _egress_lines(layout: Layout, traffic: Traffic, iterations: float) -> list[CostLine]:
    lines = []
    for (src, dst), nbytes in traffic.items():
        moved = nbytes * iterations / GB
        for price in layout.scenario.network.egress(src, dst):
            part = traffic_part(src, dst, price.payer_zone)
            lines.append(cost_line(CostKind.EGRESS, part, price, expected=moved, worst=moved))
    return lines


def _offers(plan: Plan, layout: Layout) -> list[tuple[Offer, int]]:
    counts = Counter(node.offer for node in plan.nodes)
    return [(layout.scenario.offer(offer), counts[offer]) for offer in sorted(counts)]
