"""What a provider tells and does, so that its machines can be bought, reached and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from sailor_cloud import resources
from sailor_cloud.errors import Problem
from sailor_cloud.provision.errors.rules import ErrorGuide

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.planned_resources import PlannedResource
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.provision.rendering.root import Part, PlacedNode

Variables = dict[str, Any]


class MachineProvider(Protocol):
    """One provider's half of provisioning; `docs/add-a-provider.md` shows how one is written.

    What has an answer here is what fits a provider that has no such thing.
    """

    this_host: ClassVar[bool] = False
    """Whether machines are processes of the controller's own host, with its files and its Python."""

    # Terraform.

    modules: ClassVar[Mapping[Part, tuple[str, ...]]]
    """The stacks that there are, each with the modules that it calls; see `rendering.root.stack_of`."""

    @property
    def hcl(self) -> Path:
        """The folder with `stacks` and `modules`."""
        return resources.data_root() / "terraform"

    def problems(self, run: RunValues) -> Sequence[Problem]:
        """Return what a job lacks, or a plan has, so that its nodes here can't be bought."""
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

    def link(self, run: RunValues, first: str, second: str) -> Variables | None:
        """Return the variables of the stack that joins the networks of two regions; None where nothing must."""
        return None

    def resources(self, bill: Bill) -> Sequence[PlannedResource]:
        """Return what a root would create, with the prices of the bill; shown before anything is bought."""
        ...

    # Errors.

    errors: ClassVar[ErrorGuide] = ErrorGuide()
    """How errors are told apart that Terraform passes on."""
