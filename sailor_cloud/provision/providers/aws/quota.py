"""Figures of an exceeded EC2 quota: its limit, its use, and the plan's use of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sailor_cloud.catalog.account.quotas import Counted, QuotaRule, load_rules
from sailor_cloud.model.offer import Market
from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
from sailor_cloud.provision.outcomes import RefusedNodes
from sailor_cloud.provision.providers.aws.sweep import AWS, boto_client
from sailor_cloud.provision.rendering.root import PlacedNode

# The instances that a quota of EC2 counts, by the beginning of their types
# (docs.aws.amazon.com/ec2/latest/instancetypes, "Amazon EC2 instance type quotas", and the names of these quotas in
# Service Quotas).
_FAMILIES = {
    "L-417A185B": r"p\d",
    "L-7212CCBC": r"p[234]",
    "L-C4BD4855": r"p5",
    "L-DB2E81BA": r"(gr?|vt)\d",
    "L-3819A6DF": r"(gr?|vt)\d",
}
# EC2's code for an exceeded quota on instances; the error itself names other quotas, as on networks.
_ON_INSTANCES = ("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")
# EC2's quota on elastic IP addresses of a region, and its default
# (docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html, looked up 2026-11-24).
ADDRESS_QUOTA = "L-0263D0A3"
_FEWEST_ADDRESSES = 5.0
# VPC's quota on rules of a security group in one direction, and its default (the same page, looked up 2026-11-26).
RULES_QUOTA = "L-0EA8095F"
_FEWEST_RULES = 60.0
_COUNTING = ("pending", "running", "shutting-down", "stopping")


def quota_numbers(fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[RefusedNodes]) -> QuotaNumbers:
    """Return the known figures of the quota that AWS says was exceeded.

    Its error names the limit only for on-demand instances, so Service Quotas is asked. Use is counted over all existing
    instances, in vCPUs.
    """
    regions, markets = {group.region for group in refused}, {group.market for group in refused}
    limit = float(fault.limit) if fault.limit else None
    rule = _rule(nodes, refused) if fault.quota in _ON_INSTANCES else None
    if rule is None or len(regions) != 1 or len(markets) != 1:
        return QuotaNumbers(fault=fault, limit=limit, usage=None, need=None)
    (region,), (market,) = regions, markets
    same = {known.accelerator for known in load_rules() if known.quota == rule.quota}
    mine = [
        p
        for p in nodes
        if (p.offer.provider, p.offer.region, p.offer.market) == (AWS, region, market) and p.offer.accelerator in same
    ]
    reported = _limit_aws(rule.quota, region)
    limit = limit if reported is None else reported
    return QuotaNumbers(
        fault=replace(fault, quota=rule.quota, region=region, limit="" if limit is None else f"{limit:g}"),
        limit=limit,
        usage=_usage_aws(rule.quota, region, market),
        need=float(sum(p.offer.vcpus for p in mine)),
    )


def addresses(region: str) -> tuple[float, int]:
    """Return the limit of elastic IP addresses in a region, and the number in use.

    If AWS can't be asked, these are the default limit and 0.
    """
    try:
        used = len(boto_client(region).describe_addresses()["Addresses"])
    except Exception:
        used = 0
    limit = _limit_aws(ADDRESS_QUOTA, region)
    return _FEWEST_ADDRESSES if limit is None else limit, used


def rules_per_group(region: str) -> float:
    """Return the limit of ingress rules in a security group; if AWS can't be asked, the default."""
    limit = _limit_aws(RULES_QUOTA, region, service="vpc")
    return _FEWEST_RULES if limit is None else limit


def _rule(nodes: Sequence[PlacedNode], refused: Sequence[RefusedNodes]) -> QuotaRule | None:
    """Return the AWS quota that counts all of the refused nodes; None if there is none."""
    offers = {placed.offer.id: placed.offer for placed in nodes}
    bought = {(offers[group.offer].accelerator, group.market.quota) for group in refused}
    found = [
        rule
        for rule in load_rules()
        if rule.provider is AWS
        and rule.counts is Counted.VCPUS
        and any(accelerator == rule.accelerator and rule.market in (None, market) for accelerator, market in bought)
    ]
    return found[0] if len({rule.quota for rule in found}) == 1 else None


def _limit_aws(code: str, region: str, *, service: str = "ec2") -> float | None:
    try:
        response = boto_client(region, "service-quotas").get_service_quota(ServiceCode=service, QuotaCode=code)
        return float(response["Quota"]["Value"])
    except Exception:
        return None


def _usage_aws(code: str, region: str, market: Market) -> float | None:
    """Return the vCPUs of the account's instances that a quota counts; None if unknown."""
    families = _FAMILIES.get(code)
    if families is None:
        return None
    try:
        pages = boto_client(region).get_paginator("describe_instances").paginate()
        instances = [i for page in pages for group in page["Reservations"] for i in group["Instances"]]
    except Exception:
        return None
    return float(sum(_vcpus(i) for i in instances if _counts(i, families, market)))


def _counts(instance: dict[str, Any], families: str, market: Market) -> bool:
    spot = instance.get("InstanceLifecycle") == "spot"
    return (
        re.match(families, instance["InstanceType"]) is not None
        and spot == (market is Market.SPOT)
        and instance["State"]["Name"] in _COUNTING
    )


def _vcpus(instance: dict[str, Any]) -> int:
    options = instance.get("CpuOptions", {})
    return int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 1))
