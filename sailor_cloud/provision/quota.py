"""The numbers behind a quota that was hit: its limit, what is in use, and what the plan has under it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sailor_cloud.catalog.quotas import Counted, QuotaRule, load_rules
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision.errors.causes import Fault
from sailor_cloud.provision.live_resources import Scopes, named
from sailor_cloud.provision.outcomes import Refused
from sailor_cloud.provision.providers.aws.sweep import boto_client
from sailor_cloud.provision.providers.gcp import sweep
from sailor_cloud.provision.rendering.root import PlacedNode

# Which instances a quota of EC2 counts, by how their types begin (docs.aws.amazon.com/ec2/latest/instancetypes,
# "Amazon EC2 instance type quotas", and the names of these quotas in Service Quotas).
_FAMILIES = {"L-417A185B": ("p",), "L-7212CCBC": ("p",), "L-DB2E81BA": ("g", "vt"), "L-3819A6DF": ("g", "vt")}
# What EC2 says when a quota on instances is hit; its other quotas, as on networks, are named by the error itself.
_ON_INSTANCES = ("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")
_COUNTING = ("pending", "running", "shutting-down", "stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNumbers:
    """Limit, usage and need as far as they are known, in the quota's own unit; `fault` names the quota itself."""

    fault: Fault
    limit: float | None
    usage: float | None
    need: float | None


def quota_numbers(
    fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[Refused], scopes: Scopes
) -> QuotaNumbers:
    """Return what is known of the quota that the cloud says was hit.

    Quotas of Google Cloud on accelerators count devices, and its message names them with their limit. AWS names the
    limit for instances on demand only, so Service Quotas is asked; what is in use is counted over the instances there
    are, in vCPUs.
    """
    regions = {group.region for group in refused}
    instance_types = {group.instance_type for group in refused}
    markets = {group.market for group in refused}
    limit = float(fault.limit) if fault.limit else None
    if fault.provider is Provider.GCP:
        mine = [p for p in nodes if p.offer.region in regions and p.offer.instance_type in instance_types]
        need = float(sum(p.offer.accelerator_count for p in mine)) if "GPUS" in fault.quota else None
        return QuotaNumbers(fault=fault, limit=limit, usage=_usage_gcp(fault, regions, scopes), need=need)
    rule = _rule(nodes, refused) if fault.quota in _ON_INSTANCES else None
    if rule is None or len(regions) != 1 or len(markets) != 1:
        return QuotaNumbers(fault=fault, limit=limit, usage=None, need=None)
    (region,), (market,) = regions, markets
    same = {known.accelerator for known in load_rules() if known.quota == rule.quota}
    mine = [
        p
        for p in nodes
        if (p.offer.provider, p.offer.region, p.offer.market) == (Provider.AWS, region, market)
        and p.offer.accelerator in same
    ]
    told = _limit_aws(rule.quota, region)
    limit = limit if told is None else told
    return QuotaNumbers(
        fault=replace(fault, quota=rule.quota, region=region, limit="" if limit is None else f"{limit:g}"),
        limit=limit,
        usage=_usage_aws(rule.quota, region, market),
        need=float(sum(p.offer.vcpus for p in mine)),
    )


def _rule(nodes: Sequence[PlacedNode], refused: Sequence[Refused]) -> QuotaRule | None:
    """Return the quota of AWS under which the refused nodes fall, if all of them fall under one."""
    offers = {placed.offer.id: placed.offer for placed in nodes}
    bought = {(offers[group.offer].accelerator, group.market) for group in refused}
    found = [
        rule
        for rule in load_rules()
        if rule.provider is Provider.AWS
        and rule.counts is Counted.VCPUS
        and any(accelerator == rule.accelerator and rule.market in (None, market) for accelerator, market in bought)
    ]
    return found[0] if len({rule.quota for rule in found}) == 1 else None


def _usage_gcp(fault: Fault, regions: set[str], scopes: Scopes) -> float | None:
    """Return what is in use of a quota, or None where that can't be found out: the quota was hit all the same."""
    region = fault.region or (next(iter(regions)) if len(regions) == 1 else "")
    projects = named(scopes, sweep.PROJECT)
    if not region or len(projects) != 1:
        return None
    try:
        client = sweep.google_client("RegionsClient")
        told = client.get(project=projects[0], region=region)
        return next((float(quota.usage) for quota in told.quotas if quota.metric == fault.quota), None)
    except Exception:
        return None


def _limit_aws(code: str, region: str) -> float | None:
    try:
        told = boto_client(region, "service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
        return float(told["Quota"]["Value"])
    except Exception:
        return None


def _usage_aws(code: str, region: str, market: Market) -> float | None:
    """Return the vCPUs of the account's instances that a quota counts; None where nobody tells."""
    families = _FAMILIES.get(code)
    if families is None:
        return None
    try:
        pages = boto_client(region).get_paginator("describe_instances").paginate()
        instances = [i for page in pages for group in page["Reservations"] for i in group["Instances"]]
    except Exception:
        return None
    return float(sum(_vcpus(i) for i in instances if _counts(i, families, market)))


def _counts(instance: dict[str, Any], families: tuple[str, ...], market: Market) -> bool:
    family = re.match(r"[a-z]+", instance["InstanceType"])
    spot = instance.get("InstanceLifecycle") == "spot"
    return (
        family is not None
        and family[0] in families
        and spot == (market is Market.SPOT)
        and instance["State"]["Name"] in _COUNTING
    )


def _vcpus(instance: dict[str, Any]) -> int:
    options = instance.get("CpuOptions", {})
    return int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 1))
