"""Turns a job's resources into pools of nodes for sale, and reports what was ruled out and why."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.catalog import Catalog, providers
from sailor_cloud.catalog.account.quotas import QuotaLimit
from sailor_cloud.catalog.capacity import capacity_offers
from sailor_cloud.catalog.machine_types import machine_type
from sailor_cloud.model.document import Ground, Rejected
from sailor_cloud.model.job import Job, Resource
from sailor_cloud.model.offer import Accelerator, Offer, Precision, Provider
from sailor_cloud.planner.space.quotas import binding, most_nodes, too_small, within

# Oldest architecture in the CUDA 12.6 builds of torch (sm_50, sm_60, sm_70, ...), the oldest current builds; source:
# architecture lists of the conda packages pytorch-2.7.0 cuda12.6, 2025-04.
MIN_COMPUTE_CAPABILITY = 5.0
# The oldest architecture in torch's CUDA builds for Arm: pytorch 2.9.1, .ci/aarch64_linux/aarch64_ci_build.sh; a T4G
# fails with the build of CUDA 12.6 (github.com/pytorch/pytorch/issues/147953).
MIN_ARM_COMPUTE_CAPABILITY = 8.0
_ARM_IMAGE = "aws-arm64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A limit of the job: at most `devices` of an accelerator in a zone, over all instance types and markets."""

    entry: int
    zone: str
    accelerator: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal nodes of one offer; `row` is the index of the limit that they share with other pools.

    `max_nodes`: the most that the row, quotas, the offer's terms and the job allow, at least 1.
    """

    offer: Offer
    accelerator: Accelerator
    row: int
    max_nodes: int

    @property
    def devices(self) -> int:
        return self.offer.accelerator_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may be bought, in the order of offer ids within each entry of the job.

    `quotas` are the account's limits that the pools together could exceed; see `planner.space.quotas`.
    """

    pools: tuple[Pool, ...]
    rows: tuple[Row, ...]
    rejected: tuple[Rejected, ...]
    quotas: tuple[QuotaLimit, ...] = ()


def collect(job: Job, catalog: Catalog, *, quotas: tuple[QuotaLimit, ...] | None = None) -> Candidates:
    """Return the pools that a job allows, and what its resources name but the job can't use.

    quotas: replace those of the account in the catalog.
    """
    known = catalog.quotas(job.cloud) if quotas is None else quotas
    rows: list[Row] = []
    pools: list[Pool] = []
    rejected: list[Rejected] = []
    for index, resource in enumerate(job.resources):
        for name in sorted(resource.accelerators):
            accelerator = catalog.accelerator(name)
            reason = unusable(accelerator, resource.provider, job.training.precision)
            if reason is not None:
                ground, why = reason
                rejected.append(Rejected(what=name, why=why, ground=ground))
                continue
            limit = resource.accelerators[name]
            for zone in sorted(set(resource.zones)):
                listed = catalog.offers(
                    provider=resource.provider,
                    zones=(zone,),
                    accelerators=(name,),
                    markets=resource.markets,
                    instance_types=resource.instance_types,
                )
                found = (*listed, *capacity_offers(job, resource, zone, name, catalog))
                rejected += _missing_markets(found, resource, name, zone, catalog)
                rows.append(Row(entry=index, zone=zone, accelerator=name, devices=within(limit, found, known)))
                for offer in found:
                    unsold = catalog.why_not_sold(offer)
                    if unsold is not None:
                        rejected.append(rejected_offer(offer, unsold, Ground.PRICE))
                        continue
                    if job.run is None and (why_not := _lacks_kernels(offer, accelerator)) is not None:
                        rejected.append(rejected_offer(offer, why_not, Ground.TORCH))
                        continue
                    excess = _too_large(offer, limit, known)
                    if excess is not None:
                        rejected.append(excess)
                        continue
                    most = most_nodes(offer, limit, known)
                    if offer.terms is not None:
                        most = min(most, offer.terms.nodes)
                    if job.constraints.max_nodes is not None:
                        most = min(most, job.constraints.max_nodes)
                    pools.append(Pool(offer=offer, accelerator=accelerator, row=len(rows) - 1, max_nodes=most))
    return Candidates(
        pools=tuple(pools),
        rows=tuple(rows),
        rejected=tuple(dict.fromkeys(rejected)),
        quotas=binding(known, pools, rows),
    )


def _too_large(offer: Offer, limit: int, quotas: tuple[QuotaLimit, ...]) -> Rejected | None:
    """Return why not even one node of an offer may be bought, or None if it may."""
    if offer.accelerator_count > limit:
        why = f"carries {offer.accelerator_count} devices, the job allows {limit} per zone"
        return rejected_offer(offer, why, Ground.QUOTA)
    for quota in quotas:
        text = too_small(quota, offer)
        if text is not None:
            what = f"{offer.instance_type} ({offer.accelerator}, {offer.market.value}) in {offer.region}"
            return Rejected(what=what, why=text, ground=Ground.QUOTA)
    return None


def rejected_offer(offer: Offer, why: str, ground: Ground) -> Rejected:
    subject = f"{offer.instance_type} ({offer.accelerator_count} {offer.accelerator})"
    return Rejected(what=offer.id, why=why, ground=ground, subject=subject, zone=offer.zone, market=offer.market.value)


def unusable(accelerator: Accelerator, provider: Provider, precision: Precision) -> tuple[Ground, str] | None:
    """Return why an accelerator can't run a job at a precision with the pinned torch, or None if it can."""
    if accelerator.peak_tflops(precision) is None:
        known = [p.value for p in Precision if accelerator.peak_tflops(p) is not None]
        return Ground.PRECISION, f"has no {precision.value}; it runs {', '.join(known)}"
    if providers.of(provider).on_this_machine:
        return None
    capability = accelerator.compute_capability
    if capability is None:
        return Ground.TORCH, f"is no CUDA device (vendor {accelerator.vendor}); the training runtime needs one"
    if capability < MIN_COMPUTE_CAPABILITY:
        why = f"has compute capability {capability}; torch is built for {MIN_COMPUTE_CAPABILITY} and newer"
        return Ground.TORCH, why
    return None


def _lacks_kernels(offer: Offer, accelerator: Accelerator) -> str | None:
    """Return that torch for an offer's processor is not built for its accelerator, or None if it is."""
    known, capability = machine_type(offer), accelerator.compute_capability
    if known is None or known.image != _ARM_IMAGE or capability is None or capability >= MIN_ARM_COMPUTE_CAPABILITY:
        return None
    return (
        f"has compute capability {capability} and an Arm processor, for which torch is built for "
        f"{MIN_ARM_COMPUTE_CAPABILITY} and newer"
    )


def _missing_markets(
    found: tuple[Offer, ...], resource: Resource, accelerator: str, zone: str, catalog: Catalog
) -> list[Rejected]:
    """Return a row for every market of a zone without a known price of an accelerator."""
    known = {offer.market for offer in found}
    rows = []
    for market in resource.markets:
        if market in known:
            continue
        if market.has_terms:
            why = "no entry of cloud.capacity has it for that start; 'sailor-cloud import capacity JOB' finds some"
        else:
            nearest = catalog.nearest_sold(zone, accelerator, market, instance_types=resource.instance_types)
            where = f"the nearest zone with one is {nearest}" if nearest else f"no zone of {resource.provider} has one"
            why = f"has no known price; {where}"
        rows.append(
            Rejected(
                what=f"{accelerator} {market.value} in {zone}",
                why=why,
                ground=Ground.PRICE,
                subject=accelerator,
                zone=zone,
                market=market.value,
            )
        )
    return rows
