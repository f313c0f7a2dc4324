"""How to buy, reach and remove machines of Amazon Web Services."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sailor_cloud import catalog
from sailor_cloud.catalog import Service
from sailor_cloud.errors import Problem
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision.live_resources import (
    ACCOUNT,
    WHOLE_ACCOUNT,
    Listing,
    LiveResource,
    ResourceSearch,
    Scope,
    Scopes,
    scope_names,
)
from sailor_cloud.provision.providers.aws import access, account, preview
from sailor_cloud.provision.providers.aws import capacity as apart
from sailor_cloud.provision.providers.aws.account_sweep import (
    AWS_ACCOUNT_KINDS,
    HOME,
    REGIONAL,
    remove_aws_account,
    sweep_aws_account,
)
from sailor_cloud.provision.providers.aws.adopt import AwsAdoptable
from sailor_cloud.provision.providers.aws.credentials import aws_credentials
from sailor_cloud.provision.providers.aws.errors import ERRORS
from sailor_cloud.provision.providers.aws.machines import default_image, efa_cards
from sailor_cloud.provision.providers.aws.quota import (
    ADDRESS_QUOTA,
    RULES_QUOTA,
    addresses,
    quota_numbers,
    rules_per_group,
)
from sailor_cloud.provision.providers.aws.sweep import (
    AWS,
    AWS_KINDS,
    BLOCK,
    CAPACITY_KINDS,
    REGION,
    boto_client,
    is_refusal,
    remove_aws,
    sweep_aws,
)
from sailor_cloud.provision.providers.interface import MachineProvider
from sailor_cloud.provision.rendering.data import NodeRights
from sailor_cloud.provision.rendering.preview import PlannedResource
from sailor_cloud.provision.rendering.root import Part, PlacedNode, Variables, WantedRoot, placed_nodes
from sailor_cloud.run.folder import resource_name

if TYPE_CHECKING:
    from datetime import date

    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.provision.access.instances import Instance
    from sailor_cloud.provision.account import ProviderBill
    from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
    from sailor_cloud.provision.outcomes import RefusedNodes
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.run.folder import RunFolder

# The ports that nodes of a run open to each other; the same as in terraform/modules/placement, which says why.
PORTS = {"rendezvous": {"first": 29500, "last": 29599}, "collectives": {"first": 32768, "last": 60999}}

# Ingress rules in the security group of every run: SSH, two port ranges, EFA.
_OWN_RULES = 4

# Region names in a root's name: us-east-1, and both of aws-links-us-east-1--us-west-2.
_REGION = re.compile(r"(?<![a-z])[a-z]{2}(?:-[a-z]+)+-\d+")


class Aws(MachineProvider):
    errors = ERRORS
    machine = "aws_instance"
    # Of those that Terraform sets: resourceInstanceUpdate in hashicorp/aws (looked up 2026-11-27).
    stopping_attributes = frozenset({"instance_type", "user_data", "user_data_base64"})
    scope_kinds = (REGION,)
    non_compute_kinds = frozenset(AWS_ACCOUNT_KINDS)
    searchable_kinds = non_compute_kinds | frozenset(AWS_KINDS)
    dependent_kinds = frozenset(
        {
            "aws_route",
            "aws_route_table_association",
            "aws_vpc_security_group_ingress_rule",
            "aws_vpc_security_group_egress_rule",
            "aws_vpc_peering_connection_accepter",
            "aws_scheduler_schedule",
            "aws_iam_role_policy",
            "aws_s3_bucket_public_access_block",
            "aws_s3_bucket_lifecycle_configuration",
        }
    )
    unsearchable_kinds = frozenset({"aws_cloudwatch_log_group"})
    capacity_kinds = CAPACITY_KINDS
    uncancellable_kinds = frozenset({BLOCK})
    bucket = "aws_s3_bucket"
    preemption_notices = True
    packages = {"boto3": "aws"}  # noqa: RUF012 - a constant
    tunnel_programs = access.TUNNEL_PROGRAMS
    tunnel = staticmethod(access.tunnel)
    host_keys = staticmethod(access.host_keys)
    is_refusal = staticmethod(is_refusal)
    credentials_expiry = staticmethod(account.credentials_expiry)
    check_caller = staticmethod(account.check_caller)
    missing_permissions = staticmethod(account.missing_permissions)
    delete_bucket = "aws s3 rb s3://{name} --force"
    capacity = staticmethod(apart.variables)
    with_current_offers = staticmethod(apart.with_current_offerings)
    purchased_capacity = staticmethod(apart.purchased_blocks)
    capacity_problem = staticmethod(apart.problem)
    capacity_offers = staticmethod(apart.block_offers)
    modules = {  # noqa: RUF012 - a constant
        Part.CLUSTER: ("aws-cluster", "placement"),
        Part.LINKS: (),
        Part.CAPACITY: (),
        Part.DATA: (),
    }

    def problems(self, run: RunValues) -> list[Problem]:
        offers = [placed.offer for placed in run.nodes if placed.offer.provider == AWS]
        without = sorted({offer.instance_type for offer in offers if _image(run, offer) is None})
        if without:
            hint = f"add an AMI with drivers for {', '.join(without)}, which AWS's own image lacks, such as ami-0abc"
            return [Problem(path="cloud.image", message="is missing", hint=hint)]
        regions = sorted({offer.region for offer in offers})
        chosen = run.document.job.cloud.image or ""
        if chosen.startswith("ami-") and len(regions) > 1:
            message = f"is {chosen}, which one region has, and the plan has nodes in {' and '.join(regions)}"
            hint = "leave it out, or name a parameter of Systems Manager that holds each region's, such as /my/image"
            return [Problem(path="cloud.image", message=message, hint=hint)]
        return []

    def refusals(self, document: PlanDocument, nodes: Sequence[PlacedNode]) -> list[Problem]:
        """Return limits on elastic addresses and security group rules that the plan would exceed.

        A node with several network cards needs an elastic address, and accounts begin with five. Each node on another
        cloud takes a rule of the security group.
        """
        everything = placed_nodes(document)
        others = sum(placed.offer.provider != AWS for placed in everything)
        for region in sorted({p.offer.region for p in everything if p.offer.provider == AWS}) if others else ():
            most = rules_per_group(region) - _OWN_RULES
            if others > most:
                message = f"include {others} on another cloud; a security group in {region} may let {most:g} of them in"
                hint = f"take fewer and larger nodes there, or ask for more: quota {RULES_QUOTA} of VPC"
                return [Problem(path="plan.nodes", message=message, hint=hint)]
        if document.job.cloud.network is NetworkAccess.PRIVATE or not _all_may_use_efa(nodes):
            return []
        wanted = Counter(placed.offer.region for placed in nodes if len(efa_cards(placed.offer)) > 1)
        found = []
        for region, need in sorted(wanted.items()):
            limit, used = addresses(region)
            if used + need > limit:
                message = (
                    f"need {need} elastic IP addresses in {region}, one for each with several network cards; "
                    f"the account may have {limit:g} and uses {used}"
                )
                hint = f"set 'cloud: {{network: private}}', or ask for more: quota {ADDRESS_QUOTA} of EC2"
                found.append(Problem(path="plan.nodes", message=message, hint=hint))
        return found

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        efa = _all_may_use_efa(run.nodes)

        def machine(offer: Offer) -> Variables:
            return {
                "accelerator_type": None,
                "accelerator_count": 0,
                # All types with accelerators can be placed close together. Reserved capacity has its own placement:
                # a block's nodes may be in no group, and those of a reservation only in the reservation's own.
                "compact": offer.terms is None and run.may_have_neighbours(offer),
                "efa_cards": efa_cards(offer) if efa else [],
                "boot_disk": "gp3",
                "image": _image(run, offer),
            }

        own = {
            "identity": _rights(run).identity(resource_name(run.folder.run_id, "node")),
            "lifetime_s": run.lifetime_s,
        }
        return {**run.common(), **run.cluster(region, nodes, cidr, machine=machine), **own}

    def link(self, run: RunValues, first: str, second: str) -> Variables:
        return {**run.common(), "regions": [first, second], "ports": PORTS}

    def data(self, run: RunValues) -> Variables | None:
        rights, ready = _rights(run), run.document.job.cloud.aws
        watched = ready is not None and ready.watchdog
        own = rights.variables(run.watchdog_at if watched else None)
        if own is None:
            return None
        return {**run.common(), **own, "tunnel": rights.tunnel, "regions": _may_use(run) if watched else []}

    def resources(self, bill: Bill) -> list[PlannedResource]:
        listed = {
            Part.CLUSTER: preview.cluster_resources,
            Part.LINKS: preview.link_resources,
            Part.CAPACITY: preview.capacity_resources,
            Part.DATA: preview.data_resources,
        }
        return listed[bill.root.part](bill)

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Scopes:
        return _regions(offer.region for offer in offers if offer.provider == AWS)

    def scopes_containing(self, resources: Iterable[LiveResource]) -> Scopes:
        # Any region can list the account's resources.
        return _regions({resource.region for resource in resources} - {WHOLE_ACCOUNT} or {HOME})

    def searches(self, scopes: Scopes, *, run_id: str | None, other_kinds: Collection[str]) -> list[ResourceSearch]:
        regions, looks = scope_names(scopes, REGION), []

        def look(scope: Scope, kinds: Iterable[str], ask: Callable[[], Listing]) -> None:
            if kinds:
                looks.append(ResourceSearch(scopes=(scope,), kinds=tuple(sorted(kinds)), run=ask))

        # A region that can't be asked must not prevent searches of the others.
        regional, whole = set(REGIONAL) & set(other_kinds), set(other_kinds) - set(REGIONAL)
        for region in regions:
            scope = Scope(provider=AWS, kind=REGION, name=region)
            look(scope, AWS_KINDS, partial(sweep_aws, [region], run_id=run_id))
            look(scope, regional, partial(sweep_aws_account, [region], run_id=run_id, kinds=regional))
        if regions:
            account = Scope(provider=AWS, kind=ACCOUNT, name="")
            look(account, whole, partial(sweep_aws_account, regions, run_id=run_id, kinds=whole))
        return looks

    def confirming_scopes(self, region: str, scopes: Scopes) -> Scopes:
        return _regions(_REGION.findall(region))

    def time_server(self, scopes: Scopes) -> str:
        return str(boto_client(scope_names(scopes, REGION)[0]).meta.endpoint_url)

    def scopes_named_in(self, name: str, text: str) -> Scopes:
        return _regions(_REGION.findall(name))

    def is_valid_scope_name(self, kind: str, name: str) -> bool:
        return _REGION.fullmatch(name) is not None

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        # The watchdog is deleted last, only once it has nothing left to delete.
        return list(remove_aws(resources, poll_s=poll_s) or remove_aws_account(resources))

    def instances(self, scopes: Scopes, run_id: str) -> list[Instance]:
        return [instance for region in scope_names(scopes, REGION) for instance in access.instances(region, run_id)]

    def quota_numbers(
        self, fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[RefusedNodes], scopes: Scopes
    ) -> QuotaNumbers:
        return quota_numbers(fault, nodes, refused)

    def store_environment(self, region: str) -> dict[str, str]:
        return {**aws_credentials(), "AWS_REGION": region}

    def hourly_services(self, kind: str, key: str) -> tuple[Service, ...]:
        if kind == "aws_nat_gateway":
            return (Service.NAT_GATEWAY,)
        return (Service.PUBLIC_ADDRESS,) if kind == "aws_eip" and "aws_eip.nat" in key else ()

    def fetch_bill(self, run_id: str, cloud: Cloud, today: date) -> ProviderBill:
        return account.fetch_bill(run_id, today)

    def adoptable(self, root: WantedRoot) -> AwsAdoptable:
        return AwsAdoptable(root)


def _may_use(run: RunValues) -> list[str]:
    """Return the regions of the plan and of every zone that the job names; a re-plan may use these."""
    known = catalog.load()
    zones = {zone for entry in run.document.job.resources if entry.provider == AWS for zone in entry.zones}
    own = {node.offer.region for node in run.nodes if node.offer.provider == AWS}
    return sorted(own | {known.region_of(zone) for zone in zones & set(known.zones(AWS))})


def _regions(names: Iterable[str]) -> Scopes:
    return Scopes(Scope(provider=AWS, kind=REGION, name=name) for name in names)


def _image(run: RunValues, offer: Offer) -> str | None:
    chosen = run.document.job.cloud.image
    # Any other image is meant for another cloud's nodes.
    return chosen if chosen is not None and chosen.startswith(("ami-", "/")) else default_image(offer)


def _all_may_use_efa(nodes: Sequence[PlacedNode]) -> bool:
    """Whether EFA is usable: its traffic stays in a zone, and all ranks must share one kind of network."""
    return (
        len(nodes) > 1
        and len({node.offer.zone for node in nodes}) == 1
        and all(node.offer.provider == AWS and efa_cards(node.offer) for node in nodes)
    )


def _rights(run: RunValues) -> NodeRights:
    """Return the needs of nodes; for Systems Manager, a node needs rights before a session can reach it."""
    cloud = run.document.job.cloud
    given = cloud.aws.instance_profile if cloud.aws else None
    return NodeRights(given=given, bucket=run.bucket_on(AWS), tunnel=cloud.network is NetworkAccess.PRIVATE)
