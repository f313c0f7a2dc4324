"""The controller's interface to the world: create nodes, talk to their agents, remove everything.

`ssh_fleet` implements it on real nodes, `simulation` in simulated time; the controller sees no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.code import Code
from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.cleanup.teardown import TeardownResult
from sailor_cloud.provision.provisioner import Applied
from sailor_cloud.provision.terraform.progress import Interrupt, Listener

_T = TypeVar("_T")


class UnreachableError(LaunchError):
    """A node does not answer: either the node is lost or only its connection."""


class Health(StrEnum):
    WELL = "well"
    AGENT_DEAD = "agent dead"
    UNREACHABLE = "unreachable"


class Link(Protocol):
    """The controller's end of one node's agent. Every call may raise UnreachableError."""

    @property
    def node(self) -> ReachableNode: ...

    async def ensure_agent(self) -> None:
        """Put the runtime in place and start the agent unless it runs already."""

    async def upload_code(self, code: Code) -> None:
        """Unpack the user's code under `code/` and its hash, unless it is there."""

    async def free_port(self, first_choice: int) -> int: ...

    async def write(self, path: str, content: bytes) -> None: ...

    async def command(self, name: str, *, generation: int, plan_hash: str, **details: Any) -> None: ...

    async def new_events(self) -> list[AgentEvent]:
        """Return the complete events that the agent has written since the last call."""

    async def health(self) -> Health: ...

    async def fetch_logs(self, target: Path) -> None: ...

    async def close(self) -> None: ...


class Fleet(Protocol):
    """The nodes of one run."""

    async def secure(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> None:
        """Buy the plan's capacity that is bought separately, and wait until it begins; see provisioner.secure."""

    async def create(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> Applied:
        """Create the missing nodes of a plan and remove those that it doesn't need; see provisioner.apply."""

    async def connect(self, nodes: Sequence[ReachableNode]) -> list[Link]: ...

    async def reachable_nodes(self, document: PlanDocument) -> tuple[ReachableNode, ...]:
        """Return the plan's nodes that exist and accept connections."""

    async def running(self, document: PlanDocument) -> frozenset[str]:
        """Return the plan's nodes that exist according to their provider."""

    async def all_running(self) -> frozenset[str]:
        """Return all existing nodes of the run, of any plan."""

    async def retire(self, nodes: Sequence[str]) -> None:
        """Stop charging for nodes that no plan needs, once their end is confirmed."""

    def lose(self, node: str, *, broken: bool = True) -> None:
        """Count a node as lost; where machines are assigned, a later node is not put on its machine if it is broken."""

    async def destroy(self, on_progress: Listener, before_data: Callable[[], None] | None = None) -> TeardownResult:
        """Remove everything. `before_data` is called after the nodes are deleted and before storage is."""

    async def in_background(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Run slow work without blocking the event loop."""
