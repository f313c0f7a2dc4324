"""The bill of a run, line by line, expected and worst case."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sailor_cloud.catalog import Service, ServicePrice, Services, providers
from sailor_cloud.catalog.prices.doubts import is_stale
from sailor_cloud.model.document import Cost, CostKind, CostLine
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import MINIMUM_BILLED_S, Offer, Provider
from sailor_cloud.model.parts import checkpoint_traffic_part, node_part, traffic_part
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.shown import Rows
from sailor_cloud.network import EgressPrice
from sailor_cloud.simulator import money
from sailor_cloud.simulator.layout import Layout
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.simulator.timing.sync import Traffic, islands
from sailor_cloud.units import GB, GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR, duration_text


def cost_line(
    kind: CostKind,
    what: str,
    price: ServicePrice | EgressPrice,
    *,
    expected: float,
    worst: float,
    unit: str | None = None,
    usd_per_unit: float | None = None,
    part: str = "",
) -> CostLine:
    """Return a line for an expected and a worst quantity, at the price's own unit unless another is given.

    part: its name in the ledger, if that differs from the text.
    """
    if isinstance(price, EgressPrice):
        own_unit, usd = "GB", price.usd_per_gb
    else:
        own_unit, usd = price.unit, price.usd_per_unit
    usd = usd if usd_per_unit is None else usd_per_unit
    return CostLine(
        kind=kind,
        what=what,
        quantity=expected,
        unit=unit or own_unit,
        usd_per_unit=usd,
        usd=expected * usd,
        worst_usd=worst * usd,
        price_source=price.source,
        price_as_of=price.as_of_from,
        # Prices of services and traffic show their age and never expire.
        stale=False,
        part=part or what,
    )


# The download of a node's setup. torch 2.7.1 with its CUDA 12.6 libraries is 2.98 GB of wheels (pip's log of an
# installation from PyPI, 2025-07); deepspeed and the rest are a few MB. Assumption: later releases are as large. A node
# with a prepared image downloads nothing.
SETUP_BYTES = 3.0e9

# A node that exists for less than a minute is charged for one.
UNUSED = ", up to the minimum charge"

# Provider and region; for a bucket also a zone of the region.
Place = tuple[Provider, str]
BucketPlace = tuple[Provider, str, str]


def gateways(
    offers: Iterable[Offer], services: Services, network: NetworkAccess
) -> tuple[tuple[ServicePrice, float], ...]:
    """Return the hourly prices of the nodes' gateways: for each region a gateway and its address.

    Empty if nodes have addresses of their own. Raises MissingPriceError.
    """
    places = sorted({(offer.provider, offer.region) for offer in offers})
    return tuple(
        (price, price.usd_per_unit)
        for place in places
        if _has_gateway(place, network)
        for service in (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS)
        for price in (services.price(*place, service),)
    )


def setup_lines(
    offers: Mapping[Offer, int], services: Services, network: NetworkAccess, *, starts: tuple[float, float]
) -> list[CostLine]:
    """Return the NAT cost of the packages of nodes.

    offers: the number of nodes by offer. starts: how often each node is set up, expected and worst. Left out: the job's
    data, whose size is unknown, and traffic through the tunnels to the nodes. Raises MissingPriceError.
    """
    nodes = Counter[Place]()
    for offer, count in offers.items():
        nodes[offer.provider, offer.region] += count
    sizes = {
        place: (count * SETUP_BYTES * starts[0], count * SETUP_BYTES * starts[1]) for place, count in nodes.items()
    }
    return _lines(CostKind.ADDRESS, "packages", sizes, services, network)


def checkpoint_nat_lines(
    sizes: Mapping[Place, float], bucket: Place, services: Services, network: NetworkAccess
) -> list[CostLine]:
    """Return the NAT cost of checkpoints; `sizes` are bytes by the nodes' region.

    Traffic to buckets of the same cloud bypasses NAT: in the same region, on some clouds in every region.
    """
    passing = {
        place: (nbytes, nbytes)
        for place, nbytes in sizes.items()
        if place[0] is not bucket[0] or (place != bucket and not providers.of(place[0]).nat_free_buckets)
    }
    return _lines(CostKind.CHECKPOINT, "checkpoints", passing, services, network)


def _lines(
    kind: CostKind,
    what: str,
    sizes: Mapping[Place, tuple[float, float]],
    services: Services,
    network: NetworkAccess,
) -> list[CostLine]:
    """Return a line per region; `sizes` are bytes, expected and worst."""
    lines = []
    for place, (expected, worst) in sorted(sizes.items()):
        if _has_gateway(place, network):
            price = services.price(*place, Service.NAT_DATA)
            unit = GIB if price.unit == "GiB" else GB
            label = f"{what} through NAT in {place[1]}"
            lines.append(cost_line(kind, label, price, expected=expected / unit, worst=worst / unit))
    return lines


def _has_gateway(place: Place, network: NetworkAccess) -> bool:
    return network is NetworkAccess.PRIVATE and providers.of(place[0]).bills_services


# Weights and two moments in fp32; with islands, also the last meeting point and a momentum, both in fp32.
CHECKPOINT_BYTES_PER_PARAMETER = 12
_MEETING_BYTES_PER_PARAMETER = 8
# Large objects are written in parts, one request each; assumption: obstore's default size.
PART_BYTES = 5.0 * 2**20


def checkpoint_lines(layout: Layout, *, training_hours: float, kept_hours: tuple[float, float]) -> list[CostLine]:
    """Return the cost lines of a run's checkpoints; empty if they are in a folder, whose disk is on the bill.

    kept_hours: how long the newest ones are kept, expected and worst. The first pipeline of every island writes them,
    the first island also the shared state. The bucket counts as being in the region of the first node of its cloud,
    also a user's bucket, whose region is unknown here. Traffic between clouds has the price between their first zones.
    Left out: reading back (below 10 % of the writes' price), and traffic from local nodes, which no cloud bills.
    """
    scenario = layout.scenario
    store = checkpoint_store(scenario, [scenario.offer(node.offer) for node in layout.plan.nodes])
    if store is None:
        return []
    provider, region, zone = store
    job = layout.scenario.job
    services = layout.scenario.catalog.services
    sizes = _bytes_by_zone(layout)
    saved, saves = sum(sizes.values()), max(1.0, training_hours * SECONDS_PER_HOUR / job.checkpoint.every)
    storage = services.price(provider, region, Service.OBJECT_STORAGE)
    kept = job.checkpoint.keep * saved / GIB
    files = sum(stage.tp for number, _ in _writers(layout) for stage in layout.plan.pipelines[number].stages)
    writes = saves * (saved / PART_BYTES + files) / 1000.0
    months, worst_months = (hours / HOURS_PER_MONTH for hours in kept_hours)
    kind, what = CostKind.CHECKPOINT, f"{job.checkpoint.keep} checkpoints kept in {provider} {region}"
    requests = services.price(provider, region, Service.OBJECT_WRITES)
    lines = [
        cost_line(kind, what, storage, expected=kept * months, worst=kept * worst_months),
        cost_line(kind, "writing checkpoints", requests, expected=writes, worst=writes),
    ]
    catalog = layout.scenario.catalog
    for src, nbytes in sorted(sizes.items()):
        if not providers.of(catalog.zone(src).provider).bills_services or catalog.region_of(src) == region:
            continue
        moved = saves * nbytes / GB
        for price in layout.scenario.network.egress(src, zone):
            part = checkpoint_traffic_part(src, region, price.payer_zone)
            lines.append(cost_line(kind, part, price, expected=moved, worst=moved))
    by_region: dict[tuple[Provider, str], float] = defaultdict(float)
    for src, nbytes in sizes.items():
        by_region[catalog.zone(src).provider, catalog.region_of(src)] += saves * nbytes
    return lines + checkpoint_nat_lines(by_region, (provider, region), services, job.cloud.network)


def checkpoint_store(scenario: Scenario, offers: Sequence[Offer]) -> BucketPlace | None:
    """Return the place of a plan's checkpoints, by its first node; None for a folder."""
    catalog = scenario.catalog

    def first_of(provider: Provider) -> tuple[str, str]:
        zone = min(zone for zone in catalog.zones() if catalog.zone(zone).provider is provider)
        return catalog.region_of(zone), zone

    return bucket_place(offers, scenario.job.checkpoint.to, first_of)


def bucket_place(
    offers: Sequence[Offer], to: str | None, first_of: Callable[[Provider], tuple[str, str]]
) -> BucketPlace | None:
    """Return the assumed place of the checkpoints' bucket; None if they go to a folder.

    It is in the region of the first node of its cloud; the run's own bucket is in that of the first node of all.
    `first_of` returns region and zone if the cloud of the job's bucket has no node.
    """
    scheme, separator, _ = (to or "").partition("://")
    provider = offers[0].provider if to is None else providers.of_buckets(scheme) if separator else None
    if provider is None or not providers.of(provider).bucket_scheme:
        return None
    near = next((offer for offer in offers if offer.provider is provider), None)
    return (provider, *first_of(provider)) if near is None else (provider, near.region, near.zone)


def _writers(layout: Layout) -> list[tuple[int, int]]:
    """Return the pipelines that write checkpoints, the first of each island, and their bytes per parameter."""
    first = sorted(min(island) for island in islands(layout))
    shared = _MEETING_BYTES_PER_PARAMETER if len(first) > 1 else 0
    return [
        (number, CHECKPOINT_BYTES_PER_PARAMETER + (0 if position else shared)) for position, number in enumerate(first)
    ]


def _bytes_by_zone(layout: Layout) -> dict[str, float]:
    sizes: dict[str, float] = defaultdict(float)
    for number, per_parameter in _writers(layout):
        for seat in layout.pipelines[number]:
            parameters = float(seat.table.parameters(seat.stage.first_layer, seat.stage.end_layer)) * seat.tp
            sizes[seat.place.zone] += parameters * per_parameter
    return dict(sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Hours for which nodes are paid: training, stalls for checkpoints, preemptions, start-up and teardown.

    `lost` and `worst_lost` are the expected and the worst time lost to preemptions. `waiting` comes before all that and
    is free. Without a number of steps, training is one hour and there is no start-up or teardown.
    """

    training: float
    saving: float
    lost: float
    worst_lost: float
    startup: float
    teardown: float
    waiting: float = 0.0

    @property
    def duration(self) -> float:
        return self.total + self.waiting

    @property
    def unused(self) -> float:
        """What is missing to the minimum charge; the bill of a single hour has none."""
        return max(0.0, MINIMUM_BILLED_S / SECONDS_PER_HOUR - self.total)

    @property
    def worst_unused(self) -> float:
        return max(0.0, MINIMUM_BILLED_S / SECONDS_PER_HOUR - self.worst_total)

    @property
    def total(self) -> float:
        return self.training + self.saving + self.lost + self.startup + self.teardown

    @property
    def worst_total(self) -> float:
        return self.total - self.lost + self.worst_lost


def hours(layout: Layout, iteration_s: float) -> Hours:
    """Return how long a plan's nodes are paid for; nodes without a price exist before and after."""
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
        waiting=0.0 if steps is None else money.wait_s(offers, layout.scenario.as_of) / SECONDS_PER_HOUR,
    )


def _start(layout: Layout) -> money.Start:
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes] if layout.priced else []
    return money.start(layout.scenario, (offer.provider for offer in offers), len(offers))


def checkpoint_s(layout: Layout) -> float:
    """Return the stall for one checkpoint: the largest share of a device, at the measured copy rate."""
    shares: dict[tuple[int, int], float] = defaultdict(float)
    for number, per_parameter in _writers(layout):
        for seat in layout.pipelines[number]:
            parameters = float(seat.table.parameters(seat.stage.first_layer, seat.stage.end_layer))
            shares[seat.device] += parameters * per_parameter
    return max(shares.values()) / money.CHECKPOINT_BYTES_PER_S


def bill(layout: Layout, traffic: Traffic, iteration_s: float, *, error_p90: float = 0.0) -> Cost:
    """Return the cost of a run, or of one hour of it if the job has no number of steps (totals are then None).

    On this machine the worst case also has iterations longer by `error_p90`. Raises MissingPriceError if any price is
    unknown.
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
        committed = offer.committed_usd(count) if layout.scenario.job.training.steps is not None else 0.0
        if committed >= count * paid.total * offer.usd_per_hour > 0.0:
            hours = max(committed / offer.usd_per_hour, count * paid.worst_total)
            stale = is_stale(offer, layout.scenario.as_of.date())
            lines.append(_committed_line(offer, committed, part, worst_usd=hours * worst, stale=stale))
            continue
        reserve = ", lost to preemption" + _interval_note(layout, paid)
        for kind, meanwhile, spent, worst_spent in (
            (CostKind.COMPUTE, "", paid.training, paid.training),
            (CostKind.CHECKPOINT, ", stalled for checkpoints", paid.saving, paid.saving),
            (CostKind.STARTUP, ", start-up", paid.startup, paid.startup),
            (CostKind.TEARDOWN, ", teardown", paid.teardown, paid.teardown),
            (CostKind.RECOVERY, reserve, paid.lost, paid.worst_lost),
            (CostKind.TEARDOWN, UNUSED, paid.unused, paid.worst_unused),
        ):
            if max(spent, worst_spent) <= 0.0:
                continue
            lines.append(
                CostLine(
                    kind=kind,
                    what=f"{count} x {part}{meanwhile}",
                    quantity=count * spent,
                    # The cost of hours grows with the duration, that of unused ones does not.
                    unit="unused hour" if meanwhile == UNUSED else "hour",
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


def _committed_line(offer: Offer, usd: float, part: str, *, worst_usd: float, stale: bool) -> CostLine:
    """Return the line of capacity that is paid in full, whatever the run uses of it."""
    return CostLine(
        kind=CostKind.COMPUTE,
        what=f"{part}, paid for whole",
        quantity=usd / offer.usd_per_hour,
        unit="reserved hour",
        usd_per_unit=offer.usd_per_hour,
        usd=usd,
        worst_usd=worst_usd,
        price_source=offer.source,
        price_as_of=offer.as_of_from,
        stale=stale,
        part=part,
    )


def _interval_note(layout: Layout, paid: Hours) -> str:
    """Return the job's checkpoint interval and the one that costs least; empty without preemptions."""
    offers = [layout.scenario.offer(node.offer) for node in layout.plan.nodes]
    rate = sum(money.preemptions_per_hour(offer, layout.scenario.catalog) for offer in offers)
    best = money.young_daly_s(checkpoint_s(layout), rate)
    if best is None:
        return ""
    training_s = paid.training * SECONDS_PER_HOUR
    beyond = layout.scenario.job.training.steps is not None and best > training_s
    note = "the best interval is longer than the run" if beyond else f"best {duration_text(best)}"
    return f" (checkpoint every {duration_text(layout.scenario.job.checkpoint.every)}, {note})"


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
    """Return the mean number of setups per node, expected and worst: one, plus one per preemption."""
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
