"""The cost of a plan: whole instances with their services, traffic, start-up, teardown, and loss to preemption."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sailor_cloud.catalog import BOOT_DISKS, Catalog, Service, ServicePrice, providers
from sailor_cloud.catalog.machine_types import machine_type
from sailor_cloud.catalog.prices.doubts import is_stale
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.job import Job, NetworkAccess
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.units import GB, HOURS_PER_MONTH, SECONDS_PER_HOUR
from sailor_cloud.workload import parameter_count

# Assumption: a disk image with driver, CUDA and torch needs about 50 GiB; the rest is room for logs and checkpoints.
BOOT_DISK_GIB = 100.0

# The worst case has this many times the expected preemptions; judgement.
WORST_PREEMPTION_FACTOR = 3.0
# The possible rise of a price past its date; judgement: GCP and AWS list prices moved less in any year since 2019.
STALE_MARGIN = 0.2
# Steps that a run first trains in float64, to compare them with those of one process.
CHECKED_STEPS = 5
# With more operations this process would take minutes, so a narrow copy of the model is compared.
MOST_REFERENCE_FLOPS = 1e12
# Training stalls while a checkpoint is copied: 1.21 GB in 5 processes took 0.45 s (2 cores, torch 2.13, 2026-11).
CHECKPOINT_BYTES_PER_S = 1.21e9 / 5 / 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRate:
    """USD per hour of one node with its disk and its network access."""

    expected: float
    worst: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The paid time before the first step: seconds, and iterations of the check and the calibration.

    On clouds the seconds include everything, and the traffic of these iterations is left out.
    """

    fixed_s: float
    iterations: float


def start(scenario: Scenario, used: Iterable[Provider], nodes: int) -> Start:
    """Return the paid time of some providers' nodes before the first step; 0 without nodes.

    On a cloud, nodes are created as fast as its rate limits allow; the first of them are paid for until the last
    exists. Local nodes share the cores of the scenario's machine while they start, and so does the process that
    computes the reference steps in float64.
    """
    names = set(used)
    if not names or scenario.machine is None or not all(providers.of(name).on_this_machine for name in names):
        return Start(fixed_s=max((startup_s(name, nodes) for name in names), default=0.0), iterations=0.0)
    costs = scenario.profiles.local
    # For a larger model, a narrow copy or nothing is compared.
    reference_s = (
        min(reference_flops(scenario.job, scenario.decoder), MOST_REFERENCE_FLOPS) / costs.reference_flops_per_s
    )
    cores, speed = scenario.profiles.free_cores(nodes), scenario.machine.speed
    working_s = nodes * costs.start_core_s / cores + reference_s / min(cores, costs.reference_cores)
    return Start(fixed_s=costs.start_s + working_s / speed, iterations=costs.check_iterations)


def reference_flops(job: Job, decoder: Decoder) -> float:
    """Return the operations of the checked steps in one process: six for each parameter and token."""
    tokens = CHECKED_STEPS * job.training.global_batch_size * job.training.sequence_length
    return 6.0 * parameter_count(decoder) * tokens


def startup_s(provider: Provider, nodes: int = 1) -> float:
    """Return the seconds that a node is paid for before the first step, if this many are created."""
    sold = providers.of(provider)
    return sold.startup_s + sold.creation_s * ((nodes - 1) // sold.nodes_at_once)


def teardown_s(provider: Provider) -> float:
    """Return the seconds that a node is paid for after the last step."""
    return providers.of(provider).teardown_s


def wait_s(offers: Iterable[Offer], now: datetime) -> float:
    """Return the seconds until the last of some nodes exists; before, only committed capacity is paid."""
    return max((offer.terms.start_s(now) for offer in offers if offer.terms is not None), default=0.0)


def preemptions_per_hour(offer: Offer, catalog: Catalog) -> float:
    """Return the expected preemptions of one node of an offer per hour.

    This is the upper end of the provider's band for the region and type, a share of instances in a month of 730 hours.
    For an open band (above 20 %) it is twice the lower end, by judgement; without a band, the provider's average.
    """
    if offer.market is not Market.SPOT:
        return 0.0
    stated = catalog.interruptions.of(offer)
    if stated is None:
        return providers.of(offer.provider).preemptions_per_hour
    share = stated.high if stated.high < 1.0 else 2.0 * stated.low
    return share / HOURS_PER_MONTH


def worst_instance_usd_per_hour(offer: Offer, scenario: Scenario) -> float:
    """Return the worst price of an instance: a spot price may rise to on-demand, a stale one by STALE_MARGIN."""
    worst = offer.usd_per_hour
    if offer.market is Market.SPOT:
        worst = max(worst, scenario.catalog.on_demand_usd_per_hour(offer) or 0.0)
    return worst * (1.0 + STALE_MARGIN) if is_stale(offer, scenario.as_of.date()) else worst


def node_services(offer: Offer, scenario: Scenario) -> tuple[tuple[ServicePrice, float], ...]:
    """Return the services of every node, each with its USD per hour. Raises MissingPriceError."""
    return services_with(offer, scenario.catalog, scenario.job.cloud.network)


def services_with(offer: Offer, catalog: Catalog, network: NetworkAccess) -> tuple[tuple[ServicePrice, float], ...]:
    """Return the services of a node of an offer, each with its USD per hour. Raises MissingPriceError.

    These are a boot disk, and a public address or the data path of a NAT gateway. Local nodes are processes and have
    neither.
    """
    if not providers.of(offer.provider).bills_services:
        return ()
    services = catalog.services
    known = machine_type(offer)
    kind = BOOT_DISKS.get(known.boot_disk if known is not None else "", Service.DISK_BALANCED)
    disk = services.price(offer.provider, offer.region, kind)
    found = [(disk, disk.usd_per_unit * BOOT_DISK_GIB / HOURS_PER_MONTH)]
    if network is NetworkAccess.PUBLIC_SSH:
        address = services.price(offer.provider, offer.region, Service.PUBLIC_ADDRESS)
        found.append((address, address.usd_per_unit))
    return tuple(found)


def service_kind(service: Service) -> CostKind:
    """Return the kind of bill lines of an hourly service."""
    return CostKind.DISK if service in BOOT_DISKS.values() else CostKind.ADDRESS


def service_part(service: Service) -> str:
    """Return the name of an hourly service in a plan's bill and in a ledger."""
    return f"{service} of {BOOT_DISK_GIB:.0f} GiB" if service in BOOT_DISKS.values() else str(service)


def node_usd_per_hour(offer: Offer, scenario: Scenario) -> NodeRate:
    """Return the hourly price of one node, without traffic and shared gateways. Raises MissingPriceError."""
    services = sum(usd_per_hour for _, usd_per_hour in node_services(offer, scenario))
    return NodeRate(
        expected=offer.usd_per_hour + services, worst=worst_instance_usd_per_hour(offer, scenario) + services
    )


def egress_usd_per_byte(src_zone: str, dst_zone: str, scenario: Scenario) -> float:
    """Return the price of one byte for all payers together. Raises MissingPriceError."""
    if src_zone == dst_zone:
        return 0.0
    return sum(price.usd_per_gb for price in scenario.network.egress(src_zone, dst_zone)) / GB


def young_daly_s(checkpoint_s: float, preemptions_per_hour: float) -> float | None:
    """Return the optimal checkpoint interval: sqrt(2 * checkpoint time * mean time between preemptions)."""
    if preemptions_per_hour <= 0.0:
        return None
    return float((2.0 * checkpoint_s * SECONDS_PER_HOUR / preemptions_per_hour) ** 0.5)


def lost_fraction(preemptions_per_hour: Any, *, interval_s: float, checkpoint_s: float, restart_s: float) -> Any:
    """Return the extra time per second of training: checkpoints, half an interval per preemption, and restarts.

    Runs without preemptions save as well. First-order Young/Daly; valid while preemptions are rare within interval plus
    restart.
    """
    rate = np.asarray(preemptions_per_hour, dtype=np.float64) / SECONDS_PER_HOUR
    return saving_fraction(interval_s=interval_s, checkpoint_s=checkpoint_s) + rate * (interval_s / 2.0 + restart_s)


def saving_fraction(*, interval_s: float, checkpoint_s: float) -> float:
    """Return the checkpoint stall per second of training."""
    return checkpoint_s / interval_s


def run_usd(
    *,
    usd_per_hour: ArrayLike,
    worst_usd_per_hour: ArrayLike,
    iteration_s: ArrayLike,
    egress_usd_per_iteration: ArrayLike,
    steps: int,
    provider: Provider,
    preemptions_per_hour: ArrayLike = 0.0,
    interval_s: float = 600.0,
    checkpoint_s: float = 0.0,
) -> tuple[Any, Any]:
    """Return expected and worst-case USD of a run, without checkpoint storage; shapes of the inputs broadcast."""
    training_s = np.asarray(iteration_s) * steps
    fixed_s = startup_s(provider) + teardown_s(provider)
    egress = np.asarray(egress_usd_per_iteration) * steps
    costs = []
    for rate, factor in ((usd_per_hour, 1.0), (worst_usd_per_hour, WORST_PREEMPTION_FACTOR)):
        lost = lost_fraction(
            np.asarray(preemptions_per_hour) * factor,
            interval_s=interval_s,
            checkpoint_s=checkpoint_s,
            restart_s=startup_s(provider),
        )
        seconds = training_s * (1.0 + lost) + fixed_s
        costs.append(seconds / SECONDS_PER_HOUR * np.asarray(rate) + egress)
    return costs[0], costs[1]
