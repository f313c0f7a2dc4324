"""The numbers behind a quota that was hit: its limit, what is in use, and what the plan has under it."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import sweep_gcp
from sailor_cloud.provision.error_table import Fault
from sailor_cloud.provision.outcomes import Refused
from sailor_cloud.provision.places import Places
from sailor_cloud.provision.render import PlacedNode


def quota_numbers(
    fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[Refused], places: Places
) -> tuple[float | None, float | None, float | None]:
    """Return limit, usage and need as far as they are known, in the quota's own unit.

    Limits stand in the provider's message. Google Cloud tells what is in use; AWS does not. Quotas of Google Cloud on
    accelerators count devices, those of AWS on instances count vCPUs.
    """
    limit = float(fault.limit) if fault.limit else None
    regions = {group.region for group in refused}
    instance_types = {group.instance_type for group in refused}
    mine = [p for p in nodes if p.offer.region in regions and p.offer.instance_type in instance_types]
    if fault.provider is Provider.AWS:
        return limit, None, float(sum(p.offer.vcpus for p in mine)) if fault.quota == "VcpuLimitExceeded" else None
    need = float(sum(p.offer.accelerator_count for p in mine)) if "GPUS" in fault.quota else None
    return limit, _usage(fault, regions, places), need


def _usage(fault: Fault, regions: set[str], places: Places) -> float | None:
    """Return what is in use of a quota, or None where that can't be found out: the quota was hit all the same."""
    region = fault.region or (next(iter(regions)) if len(regions) == 1 else "")
    if not region or len(places.gcp_projects) != 1:
        return None
    try:
        client = sweep_gcp.google_client("RegionsClient")
        told = client.get(project=places.gcp_projects[0], region=region)
        return next((float(quota.usage) for quota in told.quotas if quota.metric == fault.quota), None)
    except Exception:
        return None
