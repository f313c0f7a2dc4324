"""What a provider tells and does, so that its machines can be bought, reached and removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sailor_cloud import resources
from sailor_cloud.errors import Problem
from sailor_cloud.provision.account import Billed, CredentialsEnd, Rights
from sailor_cloud.provision.errors.causes import Fault, QuotaNumbers
from sailor_cloud.provision.errors.rules import ErrorGuide
from sailor_cloud.provision.live_resources import LiveResource, Look, Scope, Scopes

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
    from sailor_cloud.provision.outcomes import Refused
    from sailor_cloud.provision.rendering.preview import Bill, PlannedResource
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.provision.rendering.root import Part, PlacedNode, WantedRoot
    from sailor_cloud.run.folder import RunFolder

Variables = dict[str, Any]


class MachineProvider(Protocol):
    """One provider's half of provisioning; `docs/add-a-provider.md` shows how one is written.

    What has an answer here is what fits a provider that has no such thing.
    """

    scheduler: ClassVar[Scheduler | None] = None
    """What starts the nodes of a plan together, as a job; None where they are bought, by Terraform."""

    # Terraform.

    modules: ClassVar[Mapping[Part, tuple[str, ...]]]
    """The stacks that there are, each with the modules that it calls; see `rendering.root.stack_of`."""

    @property
    def hcl(self) -> Path:
        """The folder with `stacks` and `modules`."""
        return resources.data_root() / "terraform"

    network: ClassVar[str] = ""
    """The type of the network that regions share, without which clusters of other regions can't be made."""

    def problems(self, run: RunValues) -> Sequence[Problem]:
        """Return what a job lacks, or a plan has, so that its nodes here can't be bought."""
        return ()

    def refusals(self, document: PlanDocument, nodes: Sequence[PlacedNode]) -> Sequence[Problem]:
        """Ask the provider, before anything is bought, what of its limits and policies forbids some nodes.

        `nodes` are the provider's own that were never asked about; a run over several providers asks again without
        any when it grows, for what the whole plan must not exceed.
        What can't be asked is no refusal: the purchase itself will tell.
        """
        return ()

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        """Return the variables of the stack that holds the nodes of one region; `nodes` is one of them, by node id.

        `cidr` is a range of private addresses that no other region of the run has; it is the variable of that name.
        Where regions share a network, the variable `network` is None for the one that makes it.
        """
        ...

    def network_link(self, variables: Variables) -> str | None:
        """Return the value of `network` for regions that use the network which a root with these variables makes."""
        return None

    def data(self, run: RunValues) -> Variables | None:
        """Return the variables of the stack of what outlives nodes, such as a bucket; None where none is needed."""
        return None

    def capacity(self, run: RunValues, region: str, nodes: Sequence[PlacedNode]) -> Variables:
        """Return the variables of the stack of capacity that is bought apart; `nodes` are those that take it."""
        return {}

    def settled(self, root: WantedRoot, run_id: str) -> WantedRoot:
        """Return a root of capacity with what its cloud offers now, and without what the run has bought already.

        Raises RequestError for what is offered no longer, or only for more.
        """
        return root

    def bought(self, region: str, run_id: str) -> Mapping[str, str]:
        """Return the capacity that a run has bought apart in a region: the cloud's ids by the entries' names."""
        return {}

    def capacity_problem(self, offer: Offer) -> str:
        """Say why capacity that is to be bought apart can't be; nothing where the cloud offers it."""
        return ""

    def offered(self, region: str, instance_type: str, nodes: int, days: int, now: datetime) -> Sequence[Capacity]:
        """Return the capacity with a start and an end that the cloud offers for so many nodes and days."""
        return ()

    def link(self, run: RunValues, first: str, second: str) -> Variables | None:
        """Return the variables of the stack that joins the networks of two regions; None where nothing must."""
        return None

    def resources(self, bill: Bill) -> Sequence[PlannedResource]:
        """Return what a root would create, with the prices of the bill; shown before anything is bought."""
        ...

    # Errors.

    errors: ClassVar[ErrorGuide] = ErrorGuide()
    """How errors that Terraform passes on are distinguished."""

    def quota_numbers(
        self, fault: Fault, nodes: Sequence[PlacedNode], refused: Sequence[Refused], scopes: Scopes
    ) -> QuotaNumbers:
        """Return what is known of the quota behind a fault; `nodes` are all of the plan's."""
        limit = float(fault.limit) if fault.limit else None
        return QuotaNumbers(fault=fault, limit=limit, usage=None, need=None)

    # What exists.

    machine: ClassVar[str]
    """The Terraform type of a node, whose address is `module.cluster.TYPE.node["ID"]`."""

    scope_kinds: ClassVar[tuple[str, ...]] = ()
    """What is looked through for resources, in the provider's words, such as `region`."""

    swept: ClassVar[frozenset[str]] = frozenset()
    """The Terraform types that a look finds."""

    beside_compute: ClassVar[frozenset[str]] = frozenset()
    """Those of them that ask for other rights than nodes do, such as buckets: looked for where a run may have them."""

    parts: ClassVar[frozenset[str]] = frozenset()
    """The types that no look finds, and that are gone with what they belong to, such as a route."""

    unseen: ClassVar[frozenset[str]] = frozenset()
    """The types that no look finds and that may outlive all else: once made, Terraform alone can tell they are gone."""

    capacity_kinds: ClassVar[frozenset[str]] = frozenset()
    """The types of capacity that is bought apart."""

    uncancellable: ClassVar[frozenset[str]] = frozenset()
    """Those of them that nobody can give back: they are paid for, and end by themselves."""

    bucket: ClassVar[str] = ""
    """The type of the bucket that a run makes for itself; the data stack calls it `run`."""

    delete_bucket: ClassVar[str] = ""
    """The command by which a user deletes a bucket `{name}` with what is in it."""

    @property
    def machines(self) -> str:
        """The address in Terraform of all nodes of a cluster."""
        return f"module.cluster.{self.machine}.node"

    def scopes(self, document: PlanDocument, offers: Sequence[Offer]) -> Iterable[Scope]:
        """Return where a plan's nodes here will stand; `offers` are those of all its nodes."""
        return ()

    def scopes_with(self, resources: Iterable[LiveResource]) -> Scopes:
        """Return where resources that a look found are found again."""
        return Scopes()

    def looks(self, scopes: Scopes, *, run_id: str | None, beside: Collection[str]) -> Sequence[Look]:
        """Return the looks, by tag, for what one run has, or all runs have, in some scopes.

        `beside` are the kinds of `beside_compute` to look for. A look raises CredentialsError or ProvisionError where
        nothing can be seen, and names in `failed` what else it could not see. What it does not name as asked counts as
        not confirmed.
        """
        return ()

    def untagged(self, scopes: Scopes, *, run_id: str) -> Sequence[Look]:
        """Return the looks for what a run has that can carry no tag; they are among `looks` for one run, too."""
        return ()

    def at(self, region: str, scopes: Scopes) -> Scopes:
        """Return the scopes that must have answered before something in a region is gone.

        `scopes` are all that are known of a run here. Without any, there is no place to ask: nothing is confirmed.
        """
        return scopes

    def named_in(self, name: str, text: str) -> Scopes:
        """Return the scopes that a root of Terraform names, damaged perhaps: its folder's name, and all its text."""
        return Scopes()

    def may_be_called(self, kind: str, name: str) -> bool:
        """Tell whether a scope of this kind can have this name."""
        return True

    def time_server(self, scopes: Scopes) -> str:
        """Return an address of the cloud whose answers, to anybody, carry its time as Date; empty where there is none.

        `scopes` are at least one. Raises ProvisionError where a library is missing.
        """
        return ""

    def here(self, folder: RunFolder) -> Sequence[LiveResource]:
        """Return what a run has on this machine."""
        return ()

    def silent(self, machines: Collection[str]) -> frozenset[str]:
        """Return which machines of a scheduler don't answer: what it has started there may still run."""
        return frozenset()

    def finds(self, kind: str, key: str, *, run_id: str, scopes: Scopes) -> bool:
        """Tell whether looks into some scopes would find a resource of the journal."""
        return kind in self.swept

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> Sequence[str]:
        """Delete what looks found, compute first, wait until it is gone, and return what failed.

        Continues past every error. `folder` is that of the run, None for a run of another machine.
        """
        ...

    def adoptable(self, root: WantedRoot) -> Adoptable | None:
        """Return how what an earlier attempt has created of a root is found and imported; None where nothing can be."""
        return None

    # The account.

    def credentials_end(self) -> CredentialsEnd | None:
        """Return when the caller's credentials end for good; None where they are renewed. Raises CredentialsError."""
        return None

    def check_caller(self, cloud: Cloud) -> None:
        """Ask who the caller is. Raises CredentialsError where there are no credentials, or they are refused.

        What can't be asked is no refusal.
        """
        return None

    def rights(self, document: PlanDocument, kinds: Collection[str]) -> Rights:
        """Return which permissions the caller lacks to make, watch and delete resources of some types.

        Raises CredentialsError where nobody is known to ask.
        """
        return Rights()

    def billed(self, run_id: str, cloud: Cloud, today: date) -> Billed | None:
        """Return what was billed for a run by its tag; None where nothing ever is. Raises CredentialsError."""
        return None

    def billed_as(self, kind: str, key: str) -> tuple[Service, ...]:
        """Return what a resource of some type and key is paid for by the hour, unless its node pays for it."""
        return ()

    # Access.

    tunnel_programs: ClassVar[Mapping[str, str]] = {}
    """The programs that must be on PATH to reach nodes without a public address, and where they are from."""

    preemption_notices: ClassVar[bool] = False
    """Whether a node's agent, `sailor_runtime.agent.preemption`, knows the notice of its preemption."""

    def instances(self, scopes: Scopes, run_id: str) -> Iterable[Instance]:
        """Return the machines that exist of a run's nodes, with or without an address; raises whatever goes wrong."""
        return ()

    def is_refusal(self, error: Exception) -> bool:
        """Return whether the caller is rejected or has no credentials: asking again would not help."""
        return False

    def host_keys(self, instance: Instance) -> Mapping[str, str]:
        """Return the host keys that a machine has told its cloud, by kind; none where it has not told any yet."""
        return {}

    def tunnel(self, instance: Instance, port: int) -> Sequence[str]:
        """Return the program whose stdin and stdout are a connection to a port of a machine."""
        return ()

    def store_environment(self, region: str) -> Mapping[str, str]:
        """Return the variables with which a program on this machine reaches buckets with the caller's own rights."""
        return {}

    def node_here(self, folder: RunFolder, placed: PlacedNode) -> ReachableNode | None:
        """Return a node that runs on this machine."""
        return None
