"""Turns a plan into the variables of Terraform roots: clusters by region, data that outlives nodes, links."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations, groupby

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job, NetworkAccess
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.rendering import data
from sailor_cloud.provision.rendering.data import Bucket
from sailor_cloud.provision.rendering.root import Part, PlacedNode, Variables, WantedRoot, placed_nodes, stack_of
from sailor_cloud.run.folder import RunFolder, resource_prefix, start_time_of
from sailor_cloud.simulator.money import BOOT_DISK_GIB
from sailor_cloud.units import SECONDS_PER_HOUR

# Each region of a run gets its own part of 10.64.0.0/10, so that networks of regions can be joined.
_FIRST_BLOCK = 64
_MOST_REGIONS = 64
# By then nodes have ended themselves, and a running teardown has had its time.
WATCHDOG_DELAY = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunValues:
    """Values that all roots of a run share. `nodes` are those on clouds; `bucket` is their checkpoint bucket, if any.

    `ssh_from`: the caller's address in CIDR form; None if nodes have no public address. `now`: None if nothing is
    bought.
    """

    document: PlanDocument
    folder: RunFolder
    nodes: tuple[PlacedNode, ...]
    public_key: str
    expires_at: datetime
    ssh_from: str | None
    bucket: Bucket | None
    now: datetime | None = None

    @property
    def name(self) -> str:
        """The prefix of the names of everything that the run creates."""
        return resource_prefix(self.folder.run_id)

    @property
    def expiry(self) -> str:
        """When nodes shut themselves down, in RFC 3339 form."""
        return f"{self.expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def watchdog_at(self) -> str:
        """When a watchdog in the account begins to delete everything of the run, in RFC 3339 form."""
        return f"{(self.expires_at + WATCHDOG_DELAY).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    @property
    def lifetime_s(self) -> int | None:
        """The nodes' lifetime in seconds; None if the run's id doesn't contain its start."""
        begun = start_time_of(self.folder.run_id)
        return None if begun is None else max(1, int((self.expires_at - begun).total_seconds()))

    def common(self, *, owner: str | None = None) -> Variables:
        """Return the variables that every root on a cloud has; `owner` in a form that the cloud accepts."""
        labels = {
            "sailor-cloud-run": self.folder.run_id,
            "sailor-cloud-owner": self.document.job.cloud.owner or "" if owner is None else owner,
            "sailor-cloud-expires": f"{self.expires_at.astimezone(UTC):%Y-%m-%dt%H-%M-%Sz}",
        }
        return {"name": self.name, "labels": labels}

    def cluster(
        self, region: str, nodes: Sequence[PlacedNode], cidr: str, *, machine: Callable[[Offer], Variables]
    ) -> Variables:
        """Return the variables that every cluster of a cloud has; `machine` adds what its instance types need."""
        return {
            "region": region,
            "expires_at": self.expiry,
            "public_key": self.public_key,
            "ssh_from": self.ssh_from,
            "disk_gib": int(BOOT_DISK_GIB),
            "nodes": {p.node.id: {**self._node(p.offer), **machine(p.offer)} for p in nodes},
            # The cloud assigns the id of what the run buys itself.
            "reservations": {t.name: t.held for p in nodes if (t := p.offer.terms) is not None and t.held},
            "cidr": cidr,
        }

    def may_have_neighbours(self, offer: Offer) -> bool:
        """Whether another node of an offer's type may be in its zone, now or after a later plan.

        A placement group is useful only then; a running VM can't join one.
        """
        alike = [p for p in self.nodes if (p.offer.zone, p.offer.instance_type) == (offer.zone, offer.instance_type)]
        limits = [
            entry.accelerators.get(offer.accelerator, 0)
            for entry in self.document.job.resources
            if entry.provider == offer.provider and offer.zone in entry.zones
        ]
        most = self.document.job.constraints.max_nodes
        later = max(limits, default=0) // offer.accelerator_count
        return len(alike) > 1 or (later if most is None else min(later, most)) > 1

    def bucket_on(self, provider: Provider) -> Bucket | None:
        return self.bucket if self.bucket is not None and self.bucket.provider == provider else None

    def _node(self, offer: Offer) -> Variables:
        return {
            "zone": offer.zone,
            "instance_type": offer.instance_type,
            "market": offer.market.value,
            "capacity": None if offer.terms is None or offer.queued else offer.terms.name,
            "ends_with_it": offer.terms is not None and offer.terms.ends_at is not None,
            "max_run_s": self._most_s(offer),
            "max_usd_per_hour": _most_usd_per_hour(offer, self.document),
        }

    def _most_s(self, offer: Offer) -> int | None:
        """Return the longest run time of a node on a market without end times: from planned start to expiry."""
        if not offer.queued or offer.terms is None or offer.terms.most_s is None:
            return None
        begins = self.now or start_time_of(self.folder.run_id)
        if begins is None:
            return int(offer.terms.most_s)
        left_s = (self.expires_at - begins).total_seconds() - offer.terms.start_s(begins)
        return max(60, int(min(offer.terms.most_s, left_s)))


def rendered_roots(
    document: PlanDocument,
    folder: RunFolder,
    *,
    public_key: str,
    expires_at: datetime,
    ssh_from: str | None,
    now: datetime | None = None,
) -> tuple[WantedRoot, ...]:
    """Return the roots of a plan in the order in which they are applied: nodes on this machine, then on each cloud.

    For each provider: data that outlives nodes, separately bought capacity and clusters, both by region, then the links
    between regions. They are destroyed in reverse order. ssh_from: the caller's address in CIDR form, which nodes with
    a public address need. The folder need not exist. Raises RequestError with everything that the job lacks.
    """
    placed = placed_nodes(document)
    nodes = tuple(node for node in placed if not providers.on_this_machine(node.offer.provider))
    private = document.job.cloud.network is NetworkAccess.PRIVATE
    run = RunValues(
        document=document,
        folder=folder,
        nodes=nodes,
        public_key=public_key,
        expires_at=expires_at,
        ssh_from=None if private else ssh_from,
        bucket=data.bucket_of(document.job, folder.run_id, nodes[0].offer.provider) if nodes else None,
        now=now,
    )
    if nodes:
        _check(run, ssh_from=ssh_from)
    clusters = [
        _cluster(run, number, list(members))
        for number, (_, members) in enumerate(groupby(sorted(placed, key=_place), key=_place))
    ]
    if len({root.provider for root in clusters}) > 1:
        for root in clusters:
            # Known once the nodes exist.
            root.variables["peers"] = []
    roots: list[WantedRoot] = []
    for provider in sorted({root.provider for root in clusters}, key=_this_host_first):
        own = [root for root in clusters if root.provider == provider]
        roots += [*_data(run, provider), *_capacity(run, own), *_with_one_network(own), *_links(run, own)]
    return tuple(roots)


def missing_from_request(job: Job, ssh_from: str | None) -> list[Problem]:
    """Return settings for a purchase on a cloud that neither the job nor the command line has."""
    problems = []
    if not job.cloud.owner:
        hint = "add the person to ask about a run's leftovers, such as me@example.org"
        problems.append(Problem(path="cloud.owner", message="is missing", hint=hint))
    if job.cloud.network is NetworkAccess.PUBLIC_SSH and not ssh_from:
        problems.append(Problem(path="--ssh-from", message="is missing", hint="your address, such as 203.0.113.7/32"))
    return problems


def _place(placed: PlacedNode) -> tuple[str, str]:
    return placed.offer.provider, placed.offer.region


def _this_host_first(provider: Provider) -> tuple[bool, str]:
    return not providers.on_this_machine(provider), provider


def _root(
    run: RunValues,
    provider: Provider,
    region: str,
    part: Part,
    variables: Variables,
    nodes: tuple[PlacedNode, ...] = (),
) -> WantedRoot:
    kept = None if providers.on_this_machine(provider) else run.document.job.cloud.state
    backend = data.backend(kept, run.folder.run_id, f"{stack_of(provider, part)}-{region}")
    return WantedRoot(provider=provider, region=region, part=part, variables=variables, nodes=nodes, backend=backend)


def _cluster(run: RunValues, number: int, members: list[PlacedNode]) -> WantedRoot:
    provider, region = members[0].offer.provider, members[0].offer.region
    cidr = f"10.{_FIRST_BLOCK + number}.0.0/16"
    variables = providers.of(provider).cluster(run, region, members, cidr)
    return _root(run, provider, region, Part.CLUSTER, variables, tuple(members))


def _with_one_network(clusters: list[WantedRoot]) -> list[WantedRoot]:
    """If a provider's networks span regions, let the first region make the network that all use."""
    for root in clusters[1:]:
        if "network" in root.variables:
            root.variables["network"] = providers.of(root.provider).network_link(root.variables)
    return clusters


def _links(run: RunValues, clusters: list[WantedRoot]) -> list[WantedRoot]:
    provider, regions = clusters[0].provider, sorted(root.region for root in clusters)
    return [
        _root(run, provider, f"{first}--{second}", Part.LINKS, variables)
        for first, second in combinations(regions, 2)
        if (variables := providers.of(provider).link(run, first, second)) is not None
    ]


def _data(run: RunValues, provider: Provider) -> list[WantedRoot]:
    variables = providers.of(provider).data(run)
    if variables is None:
        return []
    region = next(node.offer.region for node in run.nodes if node.offer.provider == provider)
    return [_root(run, provider, region, Part.DATA, {"region": region, **variables})]


def _capacity(run: RunValues, clusters: list[WantedRoot]) -> list[WantedRoot]:
    found = []
    for cluster in clusters:
        nodes = tuple(placed for placed in cluster.nodes if placed.offer.bought_separately)
        if nodes:
            variables = providers.of(cluster.provider).capacity(run, cluster.region, nodes)
            found.append(_root(run, cluster.provider, cluster.region, Part.CAPACITY, variables, nodes))
    return found


def _most_usd_per_hour(offer: Offer, document: PlanDocument) -> float:
    """Return the highest price to pay for an offer.

    For a spot offer this is the plan's worst case, or less if the budget could not pay that until the TTL.
    """
    cost, budget = document.cost, document.constraints.budget_usd
    if offer.market is not Market.SPOT or cost is None or cost.usd_per_hour <= 0:
        return offer.usd_per_hour
    factor = cost.worst_case_usd_per_hour / cost.usd_per_hour
    if budget is not None and document.ttl_s:
        spot = math.fsum(p.offer.usd_per_hour for p in placed_nodes(document) if p.offer.market is Market.SPOT)
        left = budget * SECONDS_PER_HOUR / document.ttl_s - (cost.usd_per_hour - spot)
        factor = min(factor, left / spot)
    # Four decimals, rounded down, so that the sum stays within the budget.
    return max(offer.usd_per_hour, math.floor(offer.usd_per_hour * factor * 1e4) / 1e4)


def _check(run: RunValues, *, ssh_from: str | None) -> None:
    clouds = {node.offer.provider for node in run.nodes}
    problems = missing_from_request(run.document.job, ssh_from)
    for provider in sorted(clouds):
        problems += providers.of(provider).problems(run)
    problems += data.bucket_problems(run.document.job, clouds)
    if len({_place(node) for node in run.nodes}) > _MOST_REGIONS:
        problems.append(Problem(path="plan.nodes", message=f"lie in more than {_MOST_REGIONS} regions"))
    if problems:
        raise RequestError(problems)
