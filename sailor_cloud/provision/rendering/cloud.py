"""Turns a plan into the variables of the roots for Google Cloud and AWS: a cluster per region, and what joins them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations, groupby
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.provision.rendering import data, machines
from sailor_cloud.provision.rendering.data import Bucket
from sailor_cloud.provision.rendering.root import PlacedNode, placed_nodes
from sailor_cloud.run.folder import begun_at, resource_prefix
from sailor_cloud.simulator.money import BOOT_DISK_GIB

# Each region of a run gets its own part of 10.64.0.0/10, so that networks of regions can be joined.
_FIRST_BLOCK = 64
_MOST_REGIONS = 64
# What nodes of a run open to each other; the same as in terraform/modules/placement, which says why.
PORTS = {"rendezvous": {"first": 29500, "last": 29599}, "collectives": {"first": 32768, "last": 60999}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRoot:
    """The variables of one root; rendered anew from the same plan they are the same, byte for byte.

    `stack` is the folder under `terraform/stacks`. `backend` is Terraform's configuration for a state outside the
    run's folder. The `region` of a link names both: `us-east-1--us-west-2`.
    """

    provider: Provider
    region: str
    variables: dict[str, Any]
    stack: str
    backend: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What all roots of a run share. `terminate_role_arn` is None where nobody may end nodes from outside."""

    document: PlanDocument
    run_id: str
    public_key: str
    expires_at: datetime
    ssh_from: str | None
    terminate_role_arn: str | None
    bucket: Bucket | None
    efa: bool

    @property
    def name(self) -> str:
        return resource_prefix(self.run_id)

    @property
    def lifetime_s(self) -> int | None:
        """Return how long the run's nodes may live, None where its id doesn't tell when it began."""
        begun = begun_at(self.run_id)
        return None if begun is None else max(1, int((self.expires_at - begun).total_seconds()))

    def labels(self, provider: Provider) -> dict[str, str]:
        owner = self.document.job.cloud.owner or ""
        if provider is Provider.GCP:
            # Values of labels: small letters, digits, hyphens and underscores, at most 63.
            owner = re.sub(r"[^a-z0-9_-]", "_", owner.lower())[:63]
        return {
            "sailor-cloud-run": self.run_id,
            "sailor-cloud-owner": owner,
            "sailor-cloud-expires": f"{self.expires_at.astimezone(UTC):%Y-%m-%dt%H-%M-%Sz}",
        }

    def project(self, provider: Provider) -> dict[str, str]:
        """Return the variable that only roots on Google Cloud have."""
        account = self.document.job.cloud.gcp
        return {"project": account.project} if provider is Provider.GCP and account else {}

    def root(self, provider: Provider, region: str, stack: str, variables: dict[str, Any]) -> CloudRoot:
        common = {"name": self.name, "labels": self.labels(provider)}
        state = data.backend(self.document.job.cloud.state, self.run_id, f"{stack}-{region}")
        return CloudRoot(
            provider=provider, region=region, stack=stack, variables={**common, **variables}, backend=state
        )


def cloud_roots(
    document: PlanDocument,
    *,
    run_id: str,
    public_key: str,
    expires_at: datetime,
    ssh_from: str | None,
    terminate_role_arn: str | None = None,
) -> tuple[CloudRoot, ...]:
    """Return the roots of a plan's nodes on GCP and AWS in the order in which they are applied.

    For each cloud: what outlives the nodes, then the clusters by region, then the links between AWS regions. They are
    destroyed in the reverse order. ssh_from: the caller's address in CIDR form, as nodes with a public address need
    it. Raises RequestError with everything that the job lacks.
    """
    placed = placed_nodes(document)
    nodes = [node for node in placed if node.offer.provider is not Provider.LOCAL]
    nodes.sort(key=lambda node: (_place(node), node.index))
    _check(document, nodes, ssh_from=ssh_from)
    cloud = document.job.cloud
    home = min(nodes, key=lambda node: node.index, default=None)
    run = _Run(
        document=document,
        run_id=run_id,
        public_key=public_key,
        expires_at=expires_at,
        ssh_from=None if cloud.network is NetworkAccess.PRIVATE else ssh_from,
        terminate_role_arn=terminate_role_arn or (cloud.aws.terminate_role_arn if cloud.aws else None),
        bucket=None if home is None else data.bucket_of(document.job, run_id, home.offer.provider),
        efa=_all_may_use_efa(nodes),
    )
    clusters = [_cluster(run, number, list(members)) for number, (_, members) in enumerate(groupby(nodes, key=_place))]
    roots: list[CloudRoot] = []
    for provider in sorted({root.provider for root in clusters}):
        own = [root for root in clusters if root.provider is provider]
        roots += [*_data(run, provider, nodes), *_with_one_network(own, run), *_links(own, run)]
    return tuple(roots)


def _place(placed: PlacedNode) -> tuple[str, str]:
    return placed.offer.provider.value, placed.offer.region


def _all_may_use_efa(nodes: Sequence[PlacedNode]) -> bool:
    """Tell whether EFA is of use: its traffic stays in a zone, and all ranks must share one kind of network."""
    return (
        len(nodes) > 1
        and len({node.offer.zone for node in nodes}) == 1
        and all(node.offer.provider is Provider.AWS and machines.efa_cards(node.offer.instance_type) for node in nodes)
    )


def _cluster(run: _Run, number: int, members: list[PlacedNode]) -> CloudRoot:
    provider, region = members[0].offer.provider, members[0].offer.region
    variables = {
        "region": region,
        "expires_at": f"{run.expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "public_key": run.public_key,
        "ssh_from": run.ssh_from,
        "disk_gib": int(BOOT_DISK_GIB),
        "nodes": {placed.node.id: _node(placed.offer, run) for placed in members},
        "cidr": f"10.{_FIRST_BLOCK + number}.0.0/16",
        "identity": data.identity_of(run.document.job, run.run_id, provider, run.bucket),
    }
    own = (
        {"network": None}
        if provider is Provider.GCP
        else {"lifetime_s": run.lifetime_s, "terminate_role_arn": run.terminate_role_arn}
    )
    return run.root(provider, region, provider.value, {**variables, **run.project(provider), **own})


def _with_one_network(clusters: list[CloudRoot], run: _Run) -> list[CloudRoot]:
    """Let the first region on Google Cloud make the network that all use; its name, hence its link, is known before."""
    for root in clusters[1:]:
        if root.provider is Provider.GCP:
            root.variables["network"] = f"projects/{root.variables['project']}/global/networks/{run.name}-net"
    return clusters


def _links(clusters: list[CloudRoot], run: _Run) -> list[CloudRoot]:
    pairs = [] if clusters[0].provider is Provider.GCP else combinations(sorted(root.region for root in clusters), 2)
    return [
        run.root(Provider.AWS, f"{first}--{second}", "aws-links", {"regions": [first, second], "ports": PORTS})
        for first, second in pairs
    ]


def _data(run: _Run, provider: Provider, nodes: Sequence[PlacedNode]) -> list[CloudRoot]:
    if not data.needs_data_root(run.document.job, provider, run.bucket):
        return []
    home = min((node for node in nodes if node.offer.provider is provider), key=lambda node: node.index)
    own = data.data_variables(run.document.job, provider, run.bucket)
    variables = {"region": home.offer.region, **own, **run.project(provider)}
    return [run.root(provider, home.offer.region, f"{provider.value}-data", variables)]


def _node(offer: Offer, run: _Run) -> dict[str, Any]:
    attached = machines.is_attached(offer)
    return {
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "accelerator_type": machines.ATTACHABLE[offer.accelerator] if attached else None,
        "accelerator_count": offer.accelerator_count if attached else 0,
        "spot": offer.market is Market.SPOT,
        "max_usd_per_hour": _most_usd_per_hour(offer, run.document),
        "compact": machines.may_be_compact(offer),
        "efa_cards": machines.efa_cards(offer.instance_type) if run.efa else [],
        "image": _image(offer, run.document),
    }


def _image(offer: Offer, document: PlanDocument) -> str | None:
    """Return the job's image where it is one of the offer's cloud, else the cloud's own."""
    chosen = document.job.cloud.image
    if chosen is not None and chosen.startswith(("ami-", "/")) == (offer.provider is Provider.AWS):
        return chosen
    return machines.default_image(offer)


def _most_usd_per_hour(offer: Offer, document: PlanDocument) -> float:
    """Return the price up to which the plan's worst case reckons with an offer."""
    cost = document.cost
    if offer.market is not Market.SPOT or cost is None or cost.usd_per_hour <= 0:
        return offer.usd_per_hour
    return round(offer.usd_per_hour * max(1.0, cost.worst_case_usd_per_hour / cost.usd_per_hour), 4)


def _check(document: PlanDocument, nodes: Sequence[PlacedNode], *, ssh_from: str | None) -> None:
    providers = {node.offer.provider for node in nodes}
    cloud = document.job.cloud
    problems = []
    if not cloud.owner:
        problems.append(_lacking("cloud.owner", "who is asked about what is left of a run, such as me@example.org"))
    if Provider.GCP in providers and cloud.gcp is None:
        problems.append(_lacking("cloud.gcp.project", "the Google Cloud project that is billed"))
    problems += _image_problems(document, nodes)
    problems += data.bucket_problems(document.job, providers)
    if cloud.network is NetworkAccess.PUBLIC_SSH and not ssh_from:
        problems.append(Problem(path="--ssh-from", message="is missing", hint="your address, such as 203.0.113.7/32"))
    if len({_place(node) for node in nodes}) > _MOST_REGIONS:
        problems.append(Problem(path="plan.nodes", message=f"lie in more than {_MOST_REGIONS} regions"))
    for node in nodes:
        offer = node.offer
        if machines.is_attached(offer) and offer.accelerator not in machines.ATTACHABLE:
            known = ", ".join(machines.ATTACHABLE)
            message = f"{offer.accelerator} can't be attached to {offer.instance_type}"
            problems.append(Problem(path=f"plan.nodes.{node.node.id}", message=message, hint=f"known: {known}"))
    if problems:
        raise RequestError(problems)


def _image_problems(document: PlanDocument, nodes: Sequence[PlacedNode]) -> list[Problem]:
    without = sorted({node.offer.instance_type for node in nodes if _image(node.offer, document) is None})
    if without:
        types = ", ".join(without)
        return [
            _lacking("cloud.image", f"an AMI with drivers for {types}, which AWS's own image lacks, such as ami-0abc")
        ]
    regions = sorted({node.offer.region for node in nodes if node.offer.provider is Provider.AWS})
    chosen = document.job.cloud.image or ""
    if chosen.startswith("ami-") and len(regions) > 1:
        message = f"is {chosen}, which one region has, and the plan has nodes in {' and '.join(regions)}"
        hint = "leave it out, or name a parameter of Systems Manager that holds the image in each, such as /my/image"
        return [Problem(path="cloud.image", message=message, hint=hint)]
    return []


def _lacking(path: str, what: str) -> Problem:
    return Problem(path=path, message="is missing", hint=f"add {what}")
