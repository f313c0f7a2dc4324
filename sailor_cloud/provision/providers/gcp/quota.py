"""Figures of an exceeded Compute Engine quota: its limit, its use, and the plan's use of it."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
from sailor_cloud.provision.live_resources import Scopes, scope_names
from sailor_cloud.provision.outcomes import RefusedNodes
from sailor_cloud.provision.providers.gcp.sweep import PROJECT, google_client
from sailor_cloud.provision.rendering.root import PlacedNode


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
    )


def _usage(fault: Fault, regions: set[str], scopes: Scopes) -> float | None:
    """Return a quota's use, or None if it can't be determined; the quota was exceeded anyway."""
    region = fault.region or (next(iter(regions)) if len(regions) == 1 else "")
    projects = scope_names(scopes, PROJECT)
    if not region or len(projects) != 1:
        return None
    try:
        client = google_client("RegionsClient")
        response = client.get(project=projects[0], region=region)
        return next((float(quota.usage) for quota in response.quotas if quota.metric == fault.quota), None)
    except Exception:
        return None
