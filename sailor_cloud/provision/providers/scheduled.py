"""What providers have in common whose nodes a scheduler starts: nothing is bought, and jobs are what is looked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from sailor_cloud.provision.jobs import CLUSTER, JOB
from sailor_cloud.provision.live_resources import LiveResource, Scope, Scopes
from sailor_cloud.provision.providers.interface import MachineProvider, Variables

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.provision.rendering.planned_resources import PlannedResource
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.provision.rendering.root import PlacedNode


class SchedulerProvider(MachineProvider):
    """A subclass states its `name` and `scheduler`, and how jobs are looked for and removed."""

    name: ClassVar[str]
    modules = {}  # noqa: RUF012 - a constant
    machine = JOB
    scope_kinds = (CLUSTER,)

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        raise AssertionError("a scheduler's nodes are not Terraform's")

    def resources(self, bill: Bill) -> Sequence[PlannedResource]:
        return ()

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Scopes:
        inventory = document.job.cloud.inventory
        if inventory is None or inventory.scheduler != self.name:
            return Scopes()
        return self.scope(inventory.name)

    def scopes_with(self, resources: Iterable[LiveResource]) -> Scopes:
        return Scopes().union(*(self.scope(found.region) for found in resources))

    def scope(self, cluster: str) -> Scopes:
        return Scopes({Scope(provider=self.name, kind=CLUSTER, name=cluster)})
