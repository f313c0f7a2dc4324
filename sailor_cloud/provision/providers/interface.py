"""The interface of a provider, with which its machines are bought, reached and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sailor_cloud import resources
from sailor_cloud.errors import Problem
from sailor_cloud.provision.account import CredentialsExpiry, MissingPermissions, ProviderBill
from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
from sailor_cloud.provision.errors.rules import ErrorGuide
from sailor_cloud.provision.live_resources import LiveResource, ResourceSearch, Scope, Scopes

if TYPE_CHECKING:
    from datetime import date, datetime

    from sailor_cloud.catalog import Service
    from sailor_cloud.model.capacity import Capacity
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.provision.access.instances import Instance
    from sailor_cloud.provision.access.nodes import ReachableNode
    from sailor_cloud.provision.adoptable import Adoptable
    from sailor_cloud.provision.jobs import Scheduler
    from sailor_cloud.provision.outcomes import RefusedNodes
    from sailor_cloud.provision.rendering.preview import Bill, PlannedResource
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.provision.rendering.root import Part, PlacedNode, WantedRoot
    from sailor_cloud.run.folder import RunFolder

Variables = dict[str, Any]


class MachineProvider(Protocol):
    """One provider's half of provisioning; `docs/add-a-provider.md` shows how to write one.

    The defaults here suit a provider without the feature in question.
    """

    scheduler: ClassVar[Scheduler | None] = None
    """The scheduler that starts a plan's nodes together, as a job; None if Terraform buys them."""

    # Terraform.

    modules: ClassVar[Mapping[Part, tuple[str, ...]]]
    """The stacks, each with the modules that it calls; see `rendering.root.stack_of`."""

    @property
    def hcl(self) -> Path:
        """The folder with `stacks` and `modules`."""
        return resources.data_root() / "terraform"

    network: ClassVar[str] = ""
    """The type of the network that regions share; clusters of other regions need it first."""

    def problems(self, run: RunValues) -> Sequence[Problem]:
        """Return what a job lacks or a plan contains that prevents the purchase of its nodes here."""
        return ()

    def refusals(self, document: PlanDocument, nodes: Sequence[PlacedNode]) -> Sequence[Problem]:
        """Ask the provider, before any purchase, which of its limits and policies forbid some nodes.

        `nodes` are the provider's own that were never asked about. When a run over several providers grows, it asks
        again without nodes, about limits on the whole plan. What can't be asked is no refusal: the purchase itself will
        fail if necessary.
        """
        return ()

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        """Return the variables of the stack with the nodes of one region, `nodes`, by node id.

        `cidr`, the variable of that name, is a range of private addresses that no other region of the run has. If
        regions share a network, the variable `network` is None for the region that makes it.
        """
        ...

    def network_link(self, variables: Variables) -> str | None:
        """Return the value of `network` for regions that use the network which a root with these variables makes."""
        return None

    def data(self, run: RunValues) -> Variables | None:
        """Return the variables of the stack that outlives nodes, such as a bucket; None if none is needed."""
        return None

    def capacity(self, run: RunValues, region: str, nodes: Sequence[PlacedNode]) -> Variables:
        """Return the variables of the stack of separately bought capacity; `nodes` are those that use it."""
        return {}

    def with_current_offers(self, root: WantedRoot, run_id: str) -> WantedRoot:
        """Return a capacity root with the cloud's present offers, and without the run's earlier purchases.

        Raises RequestError for an offer that no longer exists, or costs more now.
        """
        return root

    def purchased_capacity(self, region: str, run_id: str) -> Mapping[str, str]:
        """Return the capacity that a run has bought separately in a region: the cloud's ids by entry name."""
        return {}

    def capacity_problem(self, offer: Offer) -> str:
        """Return why capacity can't be bought separately; empty if the cloud offers it."""
        return ""

    def capacity_offers(
        self, region: str, instance_type: str, nodes: int, days: int, now: datetime
    ) -> Sequence[Capacity]:
        """Return the cloud's offers of capacity with a start and an end for this many nodes and days."""
        return ()

    def link(self, run: RunValues, first: str, second: str) -> Variables | None:
        """Return the variables of the stack that joins the networks of two regions; None if none is needed."""
        return None

    def resources(self, bill: Bill) -> Sequence[PlannedResource]:
        """Return the resources that a root would create, with the bill's prices; shown before any purchase."""
        ...

    # Errors.

    errors: ClassVar[ErrorGuide] = ErrorGuide()
    """The rules that classify errors forwarded by Terraform."""

    def quota_numbers(
        self, fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[RefusedNodes], scopes: Scopes
    ) -> QuotaNumbers:
        """Return the known figures of the quota behind a fault; `nodes` are all of the plan's."""
        limit = float(fault.limit) if fault.limit else None
        return QuotaNumbers(fault=fault, limit=limit, usage=None, need=None)

    # Existing resources.

    machine: ClassVar[str]
    """The Terraform type of a node, whose address is `module.cluster.TYPE.node["ID"]`."""

    stopping_attributes: ClassVar[frozenset[str]] = frozenset()
    """Attributes of a node that the Terraform provider changes by stopping and starting it."""

    scope_kinds: ClassVar[tuple[str, ...]] = ()
    """The provider's kinds of scopes that are searched, such as `region`."""

    searchable_kinds: ClassVar[frozenset[str]] = frozenset()
    """The Terraform types that a search finds."""

    non_compute_kinds: ClassVar[frozenset[str]] = frozenset()
    """Those that need other rights than nodes, such as buckets; searched only where a run may have them."""

    dependent_kinds: ClassVar[frozenset[str]] = frozenset()
    """The types that no search finds and that are deleted with what they belong to, such as a route."""

    unsearchable_kinds: ClassVar[frozenset[str]] = frozenset()
    """The types that no search finds and that may outlive all else; only Terraform can confirm their deletion."""

    capacity_kinds: ClassVar[frozenset[str]] = frozenset()
    """The types of separately bought capacity."""

    uncancellable_kinds: ClassVar[frozenset[str]] = frozenset()
    """Those that can't be cancelled: they are paid for, and end by themselves."""

    bucket: ClassVar[str] = ""
    """The type of the bucket that a run makes for itself; the data stack calls it `run`."""

    delete_bucket: ClassVar[str] = ""
    """The command with which a user deletes a bucket `{name}` and its content."""

    @property
    def machines(self) -> str:
        """The Terraform address of all nodes of a cluster."""
        return f"module.cluster.{self.machine}.node"

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Iterable[Scope]:
        """Return the scopes of a plan's nodes here; `offers` are those of all its nodes."""
        return ()

    def scopes_containing(self, resources: Iterable[LiveResource]) -> Scopes:
        """Return the scopes in which found resources can be found again."""
        return Scopes()

    def searches(self, scopes: Scopes, *, run_id: str | None, other_kinds: Collection[str]) -> Sequence[ResourceSearch]:
        """Return the searches, by tag, for resources of one run, or of all runs, in some scopes.

        `other_kinds` are the kinds of `non_compute_kinds` to search. A search raises CredentialsError or ProvisionError
        if it sees nothing, and names in `failed` what else it could not see. Kinds that it does not name as asked count
        as unconfirmed.
        """
        return ()

    def untagged_searches(self, scopes: Scopes, *, run_id: str) -> Sequence[ResourceSearch]:
        """Return the searches for untaggable resources of a run; `searches` includes them for one run, too."""
        return ()

    def confirming_scopes(self, region: str, scopes: Scopes) -> Scopes:
        """Return the scopes that must answer before a resource in a region counts as deleted.

        `scopes` are all known ones of a run here. Without any, no place can be asked: nothing is confirmed.
        """
        return scopes

    def scopes_named_in(self, name: str, text: str) -> Scopes:
        """Return the scopes that a possibly damaged Terraform root names: by its folder's name and all its text."""
        return Scopes()

    def is_valid_scope_name(self, kind: str, name: str) -> bool:
        """Whether a scope of this kind can have this name."""
        return True

    def time_server(self, scopes: Scopes) -> str:
        """Return a public address of the cloud whose answers carry its time as Date; empty if there is none.

        `scopes` has at least one. Raises ProvisionError if a library is missing.
        """
        return ""

    def local_resources(self, folder: RunFolder) -> Sequence[LiveResource]:
        """Return a run's resources on this machine."""
        return ()

    def resources_without_folder(self, runs: Path) -> Sequence[LiveResource]:
        """Return the resources on this machine of runs whose folder was in `runs` and is gone."""
        return ()

    def unresponsive_machines(self, machines: Collection[str]) -> frozenset[str]:
        """Return a scheduler's machines that don't answer: processes there may still run."""
        return frozenset()

    def can_find(self, kind: str, key: str, *, run_id: str, scopes: Scopes) -> bool:
        """Whether searches in some scopes would find a journaled resource."""
        return kind in self.searchable_kinds

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> Sequence[str]:
        """Delete found resources, compute first, wait for their end, and return the failures.

        Continues past every error. `folder` is that of the run, None for a run of another machine.
        """
        ...

    def adoptable(self, root: WantedRoot) -> Adoptable | None:
        """Return how to find and import a root's resources of earlier attempts; None if that is impossible."""
        return None

    # The account.

    packages: ClassVar[Mapping[str, str]] = {}
    """The Python modules that requests to the provider import, each with the extra of sailor-cloud that installs it."""

    def credentials_expiry(self) -> CredentialsExpiry | None:
        """Return when the caller's credentials end for good; None if they are renewed. Raises CredentialsError."""
        return None

    def check_caller(self, cloud: Cloud) -> None:
        """Ask for the caller's identity. Raises CredentialsError if there are no credentials, or they are refused.

        What can't be asked is no refusal.
        """
        return None

    def missing_permissions(self, document: PlanDocument, kinds: Collection[str]) -> MissingPermissions:
        """Return the permissions that the caller lacks to make, watch and delete resources of some types.

        Raises CredentialsError if the caller is unknown.
        """
        return MissingPermissions()

    def fetch_bill(self, run_id: str, cloud: Cloud, today: date) -> ProviderBill | None:
        """Return the bill for a run by its tag; None if the provider has no bills. Raises CredentialsError."""
        return None

    def hourly_services(self, kind: str, key: str) -> tuple[Service, ...]:
        """Return the hourly services that a resource is billed as, unless its node pays for it."""
        return ()

    # Access.

    tunnel_programs: ClassVar[Mapping[str, str]] = {}
    """The programs that must be on PATH to reach nodes without a public address, and their source."""

    preemption_notices: ClassVar[bool] = False
    """Whether a node's agent, `sailor_runtime.agent.preemption`, knows the provider's preemption notice."""

    def instances(self, scopes: Scopes, run_id: str) -> Iterable[Instance]:
        """Return the existing machines of a run's nodes, with or without an address; raises any error."""
        return ()

    def is_refusal(self, error: Exception) -> bool:
        """Whether the caller is rejected or has no credentials: a retry would not help."""
        return False

    def host_keys(self, instance: Instance) -> Mapping[str, str]:
        """Return the host keys that a machine has published, by kind; empty if there are none yet."""
        return {}

    def tunnel(self, instance: Instance, port: int) -> Sequence[str]:
        """Return the program whose stdin and stdout are a connection to a port of a machine."""
        return ()

    def store_environment(self, region: str) -> Mapping[str, str]:
        """Return variables that give programs on this machine access to buckets with the caller's own rights."""
        return {}

    def local_node(self, folder: RunFolder, placed: PlacedNode) -> ReachableNode | None:
        """Return a node that runs on this machine."""
        return None
