"""The common part of providers whose nodes a scheduler starts: nothing is bought, and searches find jobs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.jobs import CLUSTER, CLUSTER_ID, JOB, Scheduler, check_identity, other_cluster
from sailor_cloud.provision.live_resources import Listing, LiveResource, ResourceSearch, Scope, Scopes
from sailor_cloud.provision.providers.interface import MachineProvider, Variables

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.provision.rendering.preview import Bill, PlannedResource
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.provision.rendering.root import PlacedNode
    from sailor_cloud.run.folder import RunFolder


class SchedulerProvider(MachineProvider):
    """A subclass states its `name` and `scheduler`, how to find and end jobs, and the time limit for that."""

    name: ClassVar[str]
    scheduler: ClassVar[Scheduler]
    ends_within_s: ClassVar[float]
    modules = {}  # noqa: RUF012 - a constant
    machine = JOB
    searchable_kinds = frozenset({JOB})
    scope_kinds = (CLUSTER, CLUSTER_ID)

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        raise AssertionError("a scheduler's nodes are not Terraform's")

    def resources(self, bill: Bill) -> Sequence[PlannedResource]:
        return ()

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Scopes:
        inventory = document.job.cloud.inventory
        if inventory is None or inventory.scheduler != self.name:
            return Scopes()
        return self.scope(inventory.name)

    def scopes_containing(self, resources: Iterable[LiveResource]) -> Scopes:
        return Scopes().union(*(self.scope(found.region) for found in resources))

    def scope(self, cluster: str) -> Scopes:
        return Scopes({Scope(provider=self.name, kind=CLUSTER, name=cluster)})

    def jobs(self, cluster: str, run_id: str | None) -> Iterator[LiveResource]:
        """Yield a resource for each node of each job of one run, or of all runs; `cluster` is their place.

        Nodes on machines that don't answer are `silent`.
        """
        raise NotImplementedError

    def end(self, namespace: str, job: str) -> None:
        """Ask the scheduler to end a job. Raises ProvisionError."""
        raise NotImplementedError

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        """End jobs and wait for their end; return the errors, a sentence each."""
        if folder is not None:
            try:
                check_identity(self.scheduler, folder)
            except ProvisionError as error:
                return [str(error)]
        places = sorted({(found.title, found.name) for found in resources})
        problems: list[str] = []
        for place in places:
            try:
                self.end(*place)
            except ProvisionError as error:
                problems.append(str(error))
        until, pause_s = time.monotonic() + self.ends_within_s, 0.1
        while not problems and time.monotonic() < until:
            if not {(found.title, found.name) for found in self.jobs("", None) if not found.silent} & set(places):
                return []
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, poll_s)
        names = ", ".join(name for _, name in places)
        return problems or [f"{names}: not all of it has ended {self.ends_within_s:.0f} s after {self.name} was asked"]

    def searches(self, scopes: Scopes, *, run_id: str | None, other_kinds: Collection[str]) -> list[ResourceSearch]:
        """Return a search for each cluster by its identity; it fails if another cluster would answer."""
        places: dict[str, list[Scope]] = defaultdict(list)
        for scope in sorted(scopes):
            if scope.kind == CLUSTER_ID:
                name, _, identity = scope.name.rpartition("/")
                places[identity] += [*self.scope(name), scope]
        named = {scope for mine in places.values() for scope in mine}
        if rest := sorted(scopes - named):
            places[""] = rest
        return [
            ResourceSearch(scopes=tuple(mine), kinds=(JOB,), run=partial(self._ask, identity, mine[0].name, run_id))
            for identity, mine in places.items()
        ]

    def unresponsive_machines(self, machines: Collection[str]) -> frozenset[str]:
        return self.scheduler.unresponsive_machines(machines)

    def _ask(self, identity: str, cluster: str, run_id: str | None) -> Listing:
        if identity and (there := self.scheduler.identity()) != identity:
            raise ProvisionError(other_cluster(there, identity))
        return Listing(found=tuple(self.jobs(cluster, run_id)))
