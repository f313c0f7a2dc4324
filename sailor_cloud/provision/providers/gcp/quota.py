"""Quotas of Compute Engine besides those on accelerators, and the figures of an exceeded one."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from sailor_cloud.catalog.machine_types import machine_type
from sailor_cloud.errors import Problem
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
from sailor_cloud.provision.live_resources import Scopes, scope_names
from sailor_cloud.provision.outcomes import RefusedNodes
from sailor_cloud.provision.providers.gcp.errors import ERRORS
from sailor_cloud.provision.providers.gcp.sweep import PROJECT, google_client
from sailor_cloud.provision.rendering.root import PlacedNode
from sailor_cloud.simulator.money import BOOT_DISK_GIB

_LOG = logging.getLogger(__name__)
# The quotas of a region by what they count (cloud.google.com/compute/resource-usage, looked up 2026-11-30). vCPUs of
# newer machine types count against CPUS_PER_VM_FAMILY, whose limits Compute Engine does not report. Spot VMs count
# against PREEMPTIBLE_CPUS only in projects that have it, so they are not checked.
_DISKS = {"pd-balanced": "SSD_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
_ADDRESSES = "IN_USE_ADDRESSES"
_CPUS = {"n1-": "CPUS", "a2-": "A2_CPUS"}
# Quotas on some instance types only.
_OF_TYPES = re.compile(r"GPUS|CPUS")


def shortfalls(document: PlanDocument, nodes: Sequence[PlacedNode]) -> list[Problem]:
    """Return the regional quotas on disks, addresses and vCPUs that do not allow all nodes of a plan.

    Those that can't be read are left out.
    """
    account = document.job.cloud.gcp
    if account is None:
        return []
    public = document.job.cloud.network is not NetworkAccess.PRIVATE
    found = []
    for region in sorted({placed.offer.region for placed in nodes}):
        needs: Counter[str] = Counter()
        for placed in nodes:
            if placed.offer.region == region:
                needs.update(dict(_needs(placed.offer, public=public)))
        known = _region_quotas(account.project, region)
        for name, need in sorted(needs.items()):
            limit, used = known.get(name, (float("inf"), 0.0))
            if used + need > limit:
                message = f"need {need:g} of quota {name} in {region}; the project may use {limit:g} and uses {used:g}"
                hint = f"ask for more at {ERRORS.quota_page(name, region)}, or name other regions under 'resources'"
                found.append(Problem(path="plan.nodes", message=message, hint=hint))
    return found


def _needs(offer: Offer, *, public: bool) -> Iterator[tuple[str, int]]:
    """Yield the quotas that a node counts against, each with the amount."""
    known = machine_type(offer)
    disk = _DISKS.get("pd-balanced" if known is None else known.boot_disk)
    if disk is not None:
        yield disk, int(BOOT_DISK_GIB)
    if public:
        yield _ADDRESSES, 1
    reserved = offer.terms is not None and offer.terms.held
    if offer.market.quota is Market.ON_DEMAND and not reserved:
        yield from ((name, offer.vcpus) for prefix, name in _CPUS.items() if offer.instance_type.startswith(prefix))


def _region_quotas(project: str, region: str) -> Mapping[str, tuple[float, float]]:
    """Return limit and use of a region's quotas; none if they can't be read."""
    try:
        quotas = google_client("RegionsClient").get(project=project, region=region).quotas
        return {quota.metric: (float(quota.limit), float(quota.usage)) for quota in quotas}
    except Exception as error:
        _LOG.debug("the quotas of %s in %s can't be read: %s", project, region, error)
        return {}


def quota_numbers(
    fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[RefusedNodes], scopes: Scopes
) -> QuotaNumbers:
    """Return the known figures of the quota that Google Cloud says was exceeded; its message names the limit.

    Quotas on accelerators count devices.
    """
    regions, instance_types = {group.region for group in refused}, {group.instance_type for group in refused}
    mine = [p for p in nodes if p.offer.region in regions and p.offer.instance_type in instance_types]
    return QuotaNumbers(
        fault=fault,
        limit=float(fault.limit) if fault.limit else None,
        usage=_usage(fault, regions, scopes),
        need=float(sum(p.offer.accelerator_count for p in mine)) if "GPUS" in fault.quota else None,
        whole_region=bool(fault.quota and fault.region) and _OF_TYPES.search(fault.quota) is None,
    )


def _usage(fault: Fault, regions: set[str], scopes: Scopes) -> float | None:
    """Return a quota's use, or None if it can't be determined; the quota was exceeded anyway."""
    region = fault.region or (next(iter(regions)) if len(regions) == 1 else "")
    projects = scope_names(scopes, PROJECT)
    if not region or len(projects) != 1:
        return None
    known = _region_quotas(projects[0], region).get(fault.quota)
    return None if known is None else known[1]
