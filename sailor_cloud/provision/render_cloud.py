"""Turns a plan into the variables of the roots for Google Cloud and AWS: one root per region."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.provision.render import PlacedNode, placed_nodes
from sailor_cloud.run.folder import resource_prefix
from sailor_cloud.simulator.money import BOOT_DISK_GIB

# N1 machines take these; all other types that carry accelerators have them built in
# (cloud.google.com/compute/docs/gpus).
_ATTACHABLE = {
    "V100-16": "nvidia-tesla-v100",
    "T4-16": "nvidia-tesla-t4",
    "P100-16": "nvidia-tesla-p100",
    "P4-8": "nvidia-tesla-p4",
}
# Series with accelerators that may be placed compactly
# (cloud.google.com/compute/docs/instances/placement-policies-overview).
_COMPACT_SERIES = ("a2-", "a3-", "a4-", "g2-")
# CUDA and a driver that still runs Volta; the family name is used in many public repositories (looked up 2026-11-21).
DEFAULT_GCP_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"
# Each region of a run gets its own part of 10.64.0.0/10, so that networks of regions can be joined.
_FIRST_BLOCK = 64
_MOST_REGIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRoot:
    """The variables of one root; rendered anew from the same plan they are the same, byte for byte."""

    provider: Provider
    region: str
    variables: dict[str, Any]


def cloud_roots(
    document: PlanDocument,
    *,
    run_id: str,
    public_key: str,
    expires_at: datetime,
    ssh_from: str | None,
    terminate_role_arn: str | None = None,
) -> tuple[CloudRoot, ...]:
    """Return the roots of a plan's nodes on GCP and AWS, sorted by provider and region.

    ssh_from: the caller's address in CIDR form, as nodes with a public address need it. Raises RequestError with
    everything that the job lacks.
    """
    nodes = [placed for placed in placed_nodes(document) if placed.offer.provider is not Provider.LOCAL]
    nodes.sort(key=lambda placed: (_place(placed), placed.index))
    private = document.job.cloud.network is NetworkAccess.PRIVATE
    _check(document, nodes, ssh_from=ssh_from, private=private)
    groups = [(place, list(members)) for place, members in groupby(nodes, key=_place)]
    roots = []
    for number, ((provider, region), members) in enumerate(groups):
        common = {
            "name": resource_prefix(run_id),
            "labels": _labels(Provider(provider), document, run_id, expires_at),
            "region": region,
            "expires_at": f"{expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "public_key": public_key,
            "ssh_from": None if private else ssh_from,
            "disk_gib": int(BOOT_DISK_GIB),
            "nodes": {placed.node.id: _node(placed.offer, document) for placed in members},
        }
        # Networks are global on GCP, so the run's first region makes one; its name, hence its link, is known before.
        first = all(place[0] != provider for place, _ in groups[:number])
        network = None if first else f"{resource_prefix(run_id)}-net"
        own = (
            _gcp(document, number, network) if provider == Provider.GCP else _aws(document, number, terminate_role_arn)
        )
        roots.append(CloudRoot(provider=Provider(provider), region=region, variables={**common, **own}))
    return tuple(roots)


def _place(placed: PlacedNode) -> tuple[str, str]:
    return placed.offer.provider.value, placed.offer.region


def _gcp(document: PlanDocument, number: int, network: str | None) -> dict[str, Any]:
    account = document.job.cloud.gcp
    assert account is not None, "checked before"
    return {
        "project": account.project,
        "image": document.job.cloud.image or DEFAULT_GCP_IMAGE,
        "network": f"projects/{account.project}/global/networks/{network}" if network else None,
        "subnet_cidr": f"10.{_FIRST_BLOCK + number}.0.0/20",
    }


def _aws(document: PlanDocument, number: int, terminate_role_arn: str | None) -> dict[str, Any]:
    return {
        "image": document.job.cloud.image,
        "vpc_cidr": f"10.{_FIRST_BLOCK + number}.0.0/16",
        "terminate_role_arn": terminate_role_arn,
    }


def _node(offer: Offer, document: PlanDocument) -> dict[str, Any]:
    attached = _is_attached(offer)
    return {
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "accelerator_type": _ATTACHABLE[offer.accelerator] if attached else None,
        "accelerator_count": offer.accelerator_count if attached else 0,
        "spot": offer.market is Market.SPOT,
        "max_usd_per_hour": _most_usd_per_hour(offer, document),
        "compact": offer.provider is Provider.AWS or offer.instance_type.startswith(_COMPACT_SERIES),
    }


def _is_attached(offer: Offer) -> bool:
    return offer.provider is Provider.GCP and offer.instance_type.startswith("n1-")


def _most_usd_per_hour(offer: Offer, document: PlanDocument) -> float:
    """Return the price up to which the plan's worst case reckons with an offer."""
    cost = document.cost
    if offer.market is not Market.SPOT or cost is None or cost.usd_per_hour <= 0:
        return offer.usd_per_hour
    return round(offer.usd_per_hour * max(1.0, cost.worst_case_usd_per_hour / cost.usd_per_hour), 4)


def _labels(provider: Provider, document: PlanDocument, run_id: str, expires_at: datetime) -> dict[str, str]:
    owner = document.job.cloud.owner or ""
    if provider is Provider.GCP:
        # Values of labels: small letters, digits, hyphens and underscores, at most 63.
        owner = re.sub(r"[^a-z0-9_-]", "_", owner.lower())[:63]
    return {
        "sailor-cloud-run": run_id,
        "sailor-cloud-owner": owner,
        "sailor-cloud-expires": f"{expires_at.astimezone(UTC):%Y-%m-%dt%H-%M-%Sz}",
    }


def _check(document: PlanDocument, nodes: Iterable[PlacedNode], *, ssh_from: str | None, private: bool) -> None:
    problems = []
    placed = list(nodes)
    providers = {node.offer.provider for node in placed}
    cloud = document.job.cloud
    if not cloud.owner:
        problems.append(_lacking("cloud.owner", "who is asked about what is left of a run, such as me@example.org"))
    if Provider.GCP in providers and cloud.gcp is None:
        problems.append(_lacking("cloud.gcp.project", "the Google Cloud project that is billed"))
    if Provider.AWS in providers and not (cloud.image or "").startswith("ami-"):
        problems.append(_lacking("cloud.image", "an AMI with NVIDIA drivers in the plan's region, such as ami-0abc"))
    if not private and not ssh_from:
        problems.append(Problem(path="--ssh-from", message="is missing", hint="your address, such as 203.0.113.7/32"))
    if len({_place(node) for node in placed}) > _MOST_REGIONS:
        problems.append(Problem(path="plan.nodes", message=f"lie in more than {_MOST_REGIONS} regions"))
    for node in placed:
        offer = node.offer
        if _is_attached(offer) and offer.accelerator not in _ATTACHABLE:
            known = ", ".join(_ATTACHABLE)
            message = f"{offer.accelerator} can't be attached to {offer.instance_type}"
            problems.append(Problem(path=f"plan.nodes.{node.node.id}", message=message, hint=f"known: {known}"))
    if problems:
        raise RequestError(problems)


def _lacking(path: str, what: str) -> Problem:
    return Problem(path=path, message="is missing", hint=f"add {what}")
