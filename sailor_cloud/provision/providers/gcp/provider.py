"""How to buy, reach and remove machines of Google Cloud."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sailor_cloud.catalog import Service
from sailor_cloud.catalog.machine_types import machine_type
from sailor_cloud.catalog.providers.gcp.account import compute_endpoint
from sailor_cloud.errors import Problem
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision.live_resources import Listing, LiveResource, ResourceSearch, Scope, Scopes, scope_names
from sailor_cloud.provision.providers.gcp import access, account, preview
from sailor_cloud.provision.providers.gcp.adopt import GcpAdoptable
from sailor_cloud.provision.providers.gcp.data_sweep import BUCKET, GCP_DATA_KINDS, remove_gcp_data, sweep_gcp_data
from sailor_cloud.provision.providers.gcp.errors import ERRORS
from sailor_cloud.provision.providers.gcp.machines import ATTACHABLE, images_for, is_attached
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER, remove_gcp_members, sweep_gcp_members
from sailor_cloud.provision.providers.gcp.policies import refusals
from sailor_cloud.provision.providers.gcp.quota import quota_numbers, shortfalls
from sailor_cloud.provision.providers.gcp.sweep import GCP, GCP_KINDS, PROJECT, is_refusal, remove_gcp, sweep_gcp
from sailor_cloud.provision.providers.interface import MachineProvider
from sailor_cloud.provision.rendering.data import NodeRights, named_bucket
from sailor_cloud.provision.rendering.preview import PlannedResource
from sailor_cloud.provision.rendering.root import Part, PlacedNode, Variables, WantedRoot
from sailor_cloud.run.folder import resource_name

if TYPE_CHECKING:
    from datetime import date

    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.provision.access.instances import Instance
    from sailor_cloud.provision.account import ProviderBill
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.run.folder import RunFolder

# The scope kind of a user's bucket, on which a run may have added rights.
_BUCKET = "bucket"
# In the form of Terraform's variables and states.
_NAMED_PROJECT = re.compile(r'"project":\s*"([a-z][a-z0-9:.-]{4,})"')


class Gcp(MachineProvider):
    errors = ERRORS
    machine = "google_compute_instance"
    network = "google_compute_network"
    scope_kinds = (PROJECT, _BUCKET)
    non_compute_kinds = frozenset({*GCP_DATA_KINDS, MEMBER})
    searchable_kinds = non_compute_kinds | frozenset(GCP_KINDS)
    dependent_kinds = frozenset({"google_compute_router_nat", "google_storage_bucket_object"})
    unsearchable_kinds = frozenset(
        {"google_cloud_scheduler_job", "google_project_iam_custom_role", "google_project_iam_member"}
    )
    bucket = BUCKET
    preemption_notices = True
    packages = {"google.cloud.compute_v1": "gcp"}  # noqa: RUF012 - a constant
    tunnel_programs = access.TUNNEL_PROGRAMS
    tunnel = staticmethod(access.tunnel)
    host_keys = staticmethod(access.host_keys)
    is_refusal = staticmethod(is_refusal)
    credentials_expiry = staticmethod(account.credentials_expiry)
    check_caller = staticmethod(account.check_caller)
    missing_permissions = staticmethod(account.missing_permissions)
    quota_numbers = staticmethod(quota_numbers)
    delete_bucket = "gcloud storage rm --recursive gs://{name}"
    modules = {Part.CLUSTER: ("gcp-cluster", "placement"), Part.DATA: ()}  # noqa: RUF012 - a constant

    def problems(self, run: RunValues) -> list[Problem]:
        found = []
        if run.document.job.cloud.gcp is None:
            hint = "add the Google Cloud project that is billed"
            found.append(Problem(path="cloud.gcp.project", message="is missing", hint=hint))
        for placed in run.nodes:
            offer = placed.offer
            if offer.provider == GCP and is_attached(offer.instance_type) and offer.accelerator not in ATTACHABLE:
                message = f"{offer.accelerator} can't be attached to {offer.instance_type}"
                hint = f"known: {', '.join(ATTACHABLE)}"
                found.append(Problem(path=f"plan.nodes.{placed.node.id}", message=message, hint=hint))
        return found

    def refusals(self, document: PlanDocument, nodes: Sequence[PlacedNode]) -> list[Problem]:
        return [*refusals(document, nodes), *shortfalls(document, nodes)]

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        images = images_for(run.document.job.cloud.image, {placed.offer.accelerator for placed in nodes})

        def machine(offer: Offer) -> Variables:
            attached = is_attached(offer.instance_type)
            known = machine_type(offer)
            # A node takes a reservation only if it has all of its properties, and these have no policy of the run's.
            free = offer.terms is None or offer.queued
            return {
                "accelerator_type": ATTACHABLE[offer.accelerator] if attached else None,
                "accelerator_count": offer.accelerator_count if attached else 0,
                "compact": free and known is not None and known.compact and run.may_have_neighbours(offer),
                "boot_disk": "pd-balanced" if known is None else known.boot_disk,
                "efa_cards": [],
                "image": images[offer.accelerator],
            }

        account = f"{resource_name(run.folder.run_id, 'node')}@{_project(run)}.iam.gserviceaccount.com"
        identity = _rights(run).identity(account)
        own = {"project": _project(run), "network": None, "identity": identity}
        return {**_common(run), **run.cluster(region, nodes, cidr, machine=machine), **own}

    def network_link(self, variables: Variables) -> str:
        return f"projects/{variables['project']}/global/networks/{variables['name']}-net"

    def data(self, run: RunValues) -> Variables | None:
        account = run.document.job.cloud.gcp
        own = _rights(run).variables(run.watchdog_at if account is not None and account.watchdog else None)
        return None if own is None else {**_common(run), **own, "project": _project(run)}

    def resources(self, bill: Bill) -> list[PlannedResource]:
        return preview.cluster_resources(bill) if bill.root.part is Part.CLUSTER else preview.data_resources(bill)

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> list[Scope]:
        account, bucket = document.job.cloud.gcp, named_bucket(document.job, GCP)
        where = {PROJECT: account.project if account else None, _BUCKET: bucket if account else None}
        return [Scope(provider=GCP, kind=kind, name=name) for kind, name in where.items() if name]

    def scopes_containing(self, resources: Iterable[LiveResource]) -> Scopes:
        return Scopes(Scope(provider=GCP, kind=PROJECT, name=found.project) for found in resources)

    def searches(self, scopes: Scopes, *, run_id: str | None, other_kinds: Collection[str]) -> list[ResourceSearch]:
        projects = scope_names(scopes, PROJECT)
        looks = [_look(p, GCP_KINDS, partial(sweep_gcp, p, run_id=run_id)) for p in projects]
        data = tuple(kind for kind in GCP_DATA_KINDS if kind in other_kinds)
        if data:
            looks += [_look(p, data, partial(sweep_gcp_data, p, run_id=run_id, kinds=data)) for p in projects]
        return [
            *looks,
            *(self.untagged_searches(scopes, run_id=run_id) if run_id is not None and MEMBER in other_kinds else ()),
        ]

    def untagged_searches(self, scopes: Scopes, *, run_id: str) -> list[ResourceSearch]:
        buckets, projects = scope_names(scopes, _BUCKET), scope_names(scopes, PROJECT)
        asked = [(project, partial(sweep_gcp_members, project, buckets, run_id=run_id)) for project in projects]
        return [_look(project, (MEMBER,), ask) for project, ask in asked if buckets]

    def confirming_scopes(self, region: str, scopes: Scopes) -> Scopes:
        return Scopes(scope for scope in scopes if scope.kind == PROJECT)

    def hourly_services(self, kind: str, key: str) -> tuple[Service, ...]:
        # Cloud NAT allocates an address itself, billed like those of VMs.
        return (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS) if kind == "google_compute_router_nat" else ()

    def time_server(self, scopes: Scopes) -> str:
        return compute_endpoint() or "https://compute.googleapis.com"

    def scopes_named_in(self, name: str, text: str) -> Scopes:
        found = set(_NAMED_PROJECT.findall(text))
        return Scopes(Scope(provider=GCP, kind=PROJECT, name=project) for project in found)

    def can_find(self, kind: str, key: str, *, run_id: str, scopes: Scopes) -> bool:
        # Rights on the run's own buckets are deleted with these; others are searched on known buckets.
        own = (resource_name(run_id, part) for part in ("data", "watchdog"))
        buckets = (*own, *scope_names(scopes, _BUCKET))
        return kind in self.searchable_kinds and (
            kind != MEMBER or any(key.endswith(f'["{bucket}"]') for bucket in buckets)
        )

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        problems: list[str] = []
        for project in sorted({resource.project for resource in resources}):
            mine = [resource for resource in resources if resource.project == project]
            failed = remove_gcp(project, mine, poll_s=poll_s)
            # The watchdog is deleted last, only once it has nothing left to delete.
            problems += failed or [*remove_gcp_members(project, mine), *remove_gcp_data(project, mine)]
        return problems

    def instances(self, scopes: Scopes, run_id: str) -> list[Instance]:
        return [instance for project in scope_names(scopes, PROJECT) for instance in access.instances(project, run_id)]

    def fetch_bill(self, run_id: str, cloud: Cloud, today: date) -> ProviderBill:
        return account.fetch_bill(run_id, cloud)

    def adoptable(self, root: WantedRoot) -> GcpAdoptable:
        return GcpAdoptable(root)


def _look(project: str, kinds: Sequence[str], ask: Callable[[], Listing]) -> ResourceSearch:
    return ResourceSearch(scopes=(Scope(provider=GCP, kind=PROJECT, name=project),), kinds=tuple(kinds), run=ask)


def _project(run: RunValues) -> str:
    account = run.document.job.cloud.gcp
    assert account is not None, "checked before"
    return account.project


def _common(run: RunValues) -> Variables:
    # Allowed in label values: lowercase letters, digits, hyphens and underscores, at most 63.
    return run.common(owner=re.sub(r"[^a-z0-9_-]", "_", (run.document.job.cloud.owner or "").lower())[:63])


def _rights(run: RunValues) -> NodeRights:
    """Return the needs of nodes; Identity-Aware Proxy checks only the caller's rights."""
    account = run.document.job.cloud.gcp
    return NodeRights(given=account.service_account if account else None, bucket=run.bucket_on(GCP))
