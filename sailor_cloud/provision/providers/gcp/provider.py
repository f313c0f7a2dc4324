"""How machines of Google Cloud are bought, reached and removed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sailor_cloud.errors import Problem
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.provision.providers.gcp import preview
from sailor_cloud.provision.providers.gcp.errors import ERRORS
from sailor_cloud.provision.providers.gcp.machines import ATTACHABLE, DEFAULT_GCP_IMAGE, is_attached, may_be_compact
from sailor_cloud.provision.providers.interface import MachineProvider
from sailor_cloud.provision.rendering.data import NodeRights
from sailor_cloud.provision.rendering.planned_resources import PlannedResource
from sailor_cloud.provision.rendering.root import Part, PlacedNode, Variables
from sailor_cloud.run.folder import resource_name

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues

GCP = Provider("gcp")


class Gcp(MachineProvider):
    errors = ERRORS
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

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        chosen = run.document.job.cloud.image

        def machine(offer: Offer) -> Variables:
            attached = is_attached(offer.instance_type)
            return {
                "accelerator_type": ATTACHABLE[offer.accelerator] if attached else None,
                "accelerator_count": offer.accelerator_count if attached else 0,
                "compact": may_be_compact(offer.instance_type),
                "efa_cards": [],
                # An image of AWS is meant for another cloud's nodes.
                "image": DEFAULT_GCP_IMAGE if chosen is None or chosen.startswith(("ami-", "/")) else chosen,
            }

        account = f"{resource_name(run.folder.run_id, 'node')}@{_project(run)}.iam.gserviceaccount.com"
        identity = _rights(run).identity(account)
        own = {"project": _project(run), "network": None, "identity": identity}
        return {**_common(run), **run.cluster(region, nodes, cidr, machine=machine), **own}

    def network_link(self, variables: Variables) -> str:
        return f"projects/{variables['project']}/global/networks/{variables['name']}-net"

    def data(self, run: RunValues) -> Variables | None:
        own = _rights(run).variables()
        return None if own is None else {**_common(run), **own, "project": _project(run)}

    def resources(self, bill: Bill) -> list[PlannedResource]:
        return preview.cluster_resources(bill) if bill.root.part is Part.CLUSTER else preview.data_resources(bill)


def _project(run: RunValues) -> str:
    account = run.document.job.cloud.gcp
    assert account is not None, "checked before"
    return account.project


def _common(run: RunValues) -> Variables:
    # Values of labels: small letters, digits, hyphens and underscores, at most 63.
    return run.common(owner=re.sub(r"[^a-z0-9_-]", "_", (run.document.job.cloud.owner or "").lower())[:63])


def _rights(run: RunValues) -> NodeRights:
    """Return what nodes need; Identity-Aware Proxy asks only the caller for rights."""
    account = run.document.job.cloud.gcp
    return NodeRights(given=account.service_account if account else None, bucket=run.bucket_on(GCP))
