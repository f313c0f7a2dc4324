"""What the controller asks of the world: create nodes, talk to their agents, remove everything.

`ssh_fleet` answers on real nodes, `simulated` in simulated time; the controller can't tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.code import Code
from sailor_cloud.launch.telemetry.generation_log import AgentEvent
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.cleanup.teardown import Destroyed
from sailor_cloud.provision.provisioner import Applied
from sailor_cloud.provision.terraform.progress import Interrupt, Listener

_T = TypeVar("_T")


class UnreachableError(LaunchError):
    """A node does not answer; it may be gone, or only its connection."""


class Health(StrEnum):
    WELL = "well"
    AGENT_DEAD = "agent dead"
    UNREACHABLE = "unreachable"


class Link(Protocol):
    """The controller's end of one node's agent. Every call may raise UnreachableError."""

    @property
    def node(self) -> ReachableNode: ...

    async def ensure_agent(self) -> None:
        """Put the runtime in place and start the agent unless it runs."""

    async def ship(self, code: Code) -> None:
        """Put the user's code in place under `code/` and its hash, unless it is there."""

    async def free_port(self, first_choice: int) -> int: ...

    async def write(self, path: str, content: bytes) -> None: ...

    async def command(self, name: str, *, generation: int, plan_hash: str, **details: Any) -> None: ...

    async def new_events(self) -> list[AgentEvent]:
        """Return the whole events that the agent has appended since the last call."""

    async def health(self) -> Health: ...

    async def fetch_logs(self, target: Path) -> None: ...

    async def close(self) -> None: ...


class Fleet(Protocol):
    """The nodes of one run."""

    async def secure(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> None:
        """Buy the capacity of a plan that is bought apart, and wait until it has begun; see provisioner.secure."""

    async def create(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> Applied:
        """Make the nodes of a plan exist, and those of earlier plans that it lacks not; see provisioner.apply."""

    async def connect(self, nodes: Sequence[ReachableNode]) -> list[Link]: ...

    async def found(self, document: PlanDocument) -> tuple[ReachableNode, ...]:
        """Return the plan's nodes that exist and can be connected to."""

    async def running(self, document: PlanDocument) -> frozenset[str]:
        """Return the plan's nodes that exist, as their provider says."""

    async def all_running(self) -> frozenset[str]:
        """Return all nodes of the run that exist, of whichever plan."""

    async def retire(self, nodes: Sequence[str]) -> None:
        """Close the books of nodes that no plan needs any more, once they are confirmed gone."""

    async def destroy(self, on_progress: Listener, before_data: Callable[[], None] | None = None) -> Destroyed:
        """Remove everything. `before_data` is called when nodes are gone and what outlives them is still there."""

    async def in_background(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Do work that takes long without keeping events waiting."""
