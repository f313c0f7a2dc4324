"""How machines of the toy provider are bought and removed: each is a file in the folder that TOY_CLOUD names."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.provider import Provider
from sailor_cloud.provision.access.instances import Instance
from sailor_cloud.provision.errors.rules import Cause, ErrorGuide, Rule
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    Listing,
    LiveResource,
    ResourceSearch,
    Scope,
    Scopes,
)
from sailor_cloud.provision.providers.interface import MachineProvider
from sailor_cloud.provision.rendering.preview import Bill, PlannedResource
from sailor_cloud.provision.rendering.rendered_roots import RunValues
from sailor_cloud.provision.rendering.root import Part, PlacedNode
from sailor_cloud.run.folder import RunFolder

REGION = "region"
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


class Toy(MachineProvider):
    modules = {Part.CLUSTER: ("toy-cluster",)}  # noqa: RUF012 - a constant
    hcl = Path(__file__).parent / "terraform"
    machine = "terraform_data"
    scope_kinds = (REGION,)
    errors = ErrorGuide(rules=(Rule(Cause.STOCKOUT, "toyland is sold out", "toy-cluster/main.tf"),))

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> dict[str, Any]:
        wanted = {
            placed.node.id: {"zone": placed.offer.zone, "instance_type": placed.offer.instance_type, "spot": False}
            for placed in nodes
        }
        return {**run.common(), "cloud": str(cloud()), "region": region, "nodes": wanted}

    def resources(self, bill: Bill) -> list[PlannedResource]:
        name = bill.variables["name"]
        return [bill.instance(self.machine, f"{name}-{node}", node, address=True) for node in bill.variables["nodes"]]

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Scopes:
        return Scopes(scope(offer.region) for offer in offers if offer.provider == "toy")

    def scopes_containing(self, resources: Iterable[LiveResource]) -> Scopes:
        return Scopes(scope(found.region) for found in resources)

    def searches(self, scopes: Scopes, *, run_id: str | None, other_kinds: Collection[str]) -> list[ResourceSearch]:
        def ask() -> Listing:
            return Listing(found=tuple(live(scopes, run_id)))

        return [ResourceSearch(scopes=tuple(scopes), kinds=(self.machine,), run=ask)]

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        for found in resources:
            (cloud() / f"{found.name}.json").unlink(missing_ok=True)
        return []

    def instances(self, scopes: Scopes, run_id: str) -> Iterator[Instance]:
        for found in live(scopes, run_id):
            yield Instance(
                node=found.node,
                id=found.name,
                machine=found.name,
                provider=Provider("toy"),
                region=found.region,
                zone=found.zone,
                project="",
                address="192.0.2.1",
                private_address="192.0.2.1",
                running=True,
            )

    def host_keys(self, instance: Instance) -> dict[str, str]:
        return {"ssh-ed25519": HOST_KEY}


def cloud() -> Path:
    return Path(os.environ["TOY_CLOUD"])


def scope(region: str) -> Scope:
    return Scope(provider="toy", kind=REGION, name=region)


def live(scopes: Scopes, run_id: str | None) -> Iterator[LiveResource]:
    for file in sorted(cloud().glob("*.json")) if scopes else ():
        told = json.loads(file.read_text())
        if scope(told["region"]) in scopes and run_id in (None, told["labels"][RUN_LABEL]):
            yield LiveResource(
                provider="toy",
                region=told["region"],
                zone=told["zone"],
                type="toy_machine",
                name=file.stem,
                run_id=told["labels"][RUN_LABEL],
                node=told["node"],
                owner=told["labels"][OWNER_LABEL],
                expires=told["labels"][EXPIRES_LABEL],
            )


PROVIDER = Toy()
