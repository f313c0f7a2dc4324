"""The controller's view of a simulated world; see `launch.fleet.fleet`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sailor_cloud.errors import StockoutError
from sailor_cloud.launch.fleet.code import Code
from sailor_cloud.launch.fleet.fleet import Health, Link, UnreachableError
from sailor_cloud.launch.simulation.world import SimulatedNode, World
from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.bookkeeping import NODE, intend_node, ledger_key, open_node
from sailor_cloud.provision.cleanup.teardown import TeardownResult
from sailor_cloud.provision.provisioner import Applied
from sailor_cloud.provision.rendering.root import PlacedNode, placed_nodes
from sailor_cloud.provision.terraform.progress import Interrupt, Listener, ProvisionInterrupted
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.receipt import ReceiptResource
from sailor_cloud.run.state import fold

_T = TypeVar("_T")
_INTERRUPT_POLL_S = 5.0


@dataclass(slots=True, kw_only=True)
class SimulatedLink:
    """An agent on a node of the world."""

    world: World
    node: ReachableNode
    offset: int = 0
    _specs: dict[str, Any] = field(default_factory=dict)

    def _reach(self) -> None:
        if self.node.id not in self.world.running():
            raise UnreachableError(f"node {self.node.id} does not answer")

    async def ensure_agent(self) -> None:
        self._reach()

    async def upload_code(self, code: Code) -> None:
        pass

    async def free_port(self, first_choice: int) -> int:
        return 29500 + first_choice % 100

    async def write(self, path: str, content: bytes) -> None:
        self._reach()
        self._specs[path] = json.loads(content)

    async def command(self, name: str, *, generation: int, plan_hash: str, **details: Any) -> None:
        self._reach()
        training = self.world.training
        if name == "stop":
            if training is not None and training.generation == generation:
                self.world.stop()
        elif training is None or training.generation < generation:
            spec = self._specs[details["spec"]]
            self.world.begin(
                generation,
                tuple(node["id"] for node in spec["nodes"]),
                steps=spec["training"]["steps"],
                iteration_s=spec["predicted_iteration_s"],
                every_s=spec["checkpoint"]["every_s"],
            )

    async def new_events(self) -> list[AgentEvent]:
        self._reach()
        found = self.world.events.get(self.node.id, [])[self.offset :]
        self.offset += len(found)
        return found

    async def health(self) -> Health:
        return Health.WELL if self.node.id in self.world.running() else Health.UNREACHABLE

    async def fetch_logs(self, target: Path) -> None:
        self._reach()

    async def close(self) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class SimulatedFleet:
    """Buys from the world's market. `trouble` may raise before any call acts, as clouds do."""

    world: World
    folder: RunFolder
    trouble: Callable[[str], None] = lambda call: None

    async def secure(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> None:
        """Do nothing: traces have no capacity that is bought separately."""

    async def create(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> Applied:
        world, clock = self.world, self.world.clock
        self.trouble("create")
        world.expires_s = (expires_at - clock.started_at).total_seconds()
        journal, ledger = Journal.of(self.folder, clock), Ledger.of(self.folder, clock)
        journal.append(Event.PROVISION_STARTED, expires_at=expires_at.isoformat())
        begun, placed = world.now_s, placed_nodes(document)
        wanted = {one.node.id for one in placed}
        for name in world.running():
            if name not in wanted:
                world.remove(name)
        new = [one for one in placed if one.node.id not in world.running()]
        for one in new:
            intend_node(journal, one)
        came, refused = self._place_orders(new)
        for one in came:
            journal.append(Event.CREATED, resource=NODE, key=one.node.id)
            known = fold(journal.entries()).resource(NODE, one.node.id)
            open_node(ledger, one.node.id, known.data, since=clock.now())
        for name in refused:
            journal.append(Event.CREATE_FAILED, resource=NODE, key=name, reason="no capacity")
        await self._wait(max((world.boot_s(one.offer) for one in came), default=0.0), interrupt)
        if refused:
            raise StockoutError(f"no capacity for {', '.join(refused)}")
        return Applied(nodes=await self.reachable_nodes(document), expires_at=expires_at, seconds=world.now_s - begun)

    def _place_orders(self, new: list[PlacedNode]) -> tuple[list[PlacedNode], list[str]]:
        came, refused = [], []
        for one in new:
            order = SimulatedNode(id=one.node.id, offer=one.offer, devices=one.node.devices, created_s=0.0)
            if self.world.has_room(order):
                self.world.add(one.node.id, one.offer, one.node.devices)
                came.append(one)
            else:
                refused.append(one.node.id)
        return came, refused

    async def _wait(self, seconds: float, interrupt: Interrupt) -> None:
        until = self.world.now_s + seconds
        while self.world.now_s < until:
            await asyncio.sleep(min(_INTERRUPT_POLL_S, until - self.world.now_s))
            if interrupt.requested:
                raise ProvisionInterrupted("interrupted")

    async def connect(self, nodes: Sequence[ReachableNode]) -> list[Link]:
        running = self.world.running()
        for node in nodes:
            if node.id not in running:
                raise UnreachableError(f"node {node.id} does not answer")
        return [SimulatedLink(world=self.world, node=node) for node in nodes]

    async def reachable_nodes(self, document: PlanDocument) -> tuple[ReachableNode, ...]:
        running = self.world.running()
        return tuple(_reachable(one, self.world) for one in placed_nodes(document) if one.node.id in running)

    async def running(self, document: PlanDocument) -> frozenset[str]:
        self.trouble("running")
        return frozenset(node.id for node in await self.reachable_nodes(document))

    async def all_running(self) -> frozenset[str]:
        self.trouble("running")
        return frozenset(self.world.running())

    async def retire(self, nodes: Sequence[str]) -> None:
        running = self.world.running()
        now = self.world.clock
        journal, ledger = Journal.of(self.folder, now, or_keep=True), Ledger.of(self.folder, now, or_keep=True)
        for name in nodes:
            if name not in running:
                journal.append(Event.GONE, resource=NODE, key=name, confirmed_by="simulation")
                ledger.close_item(ledger_key(name), at=self.world.clock.now())

    def lose(self, node: str, *, broken: bool = True) -> None:
        pass

    async def destroy(self, on_progress: Listener, before_data: Callable[[], None] | None = None) -> TeardownResult:
        world = self.world
        journal = Journal.of(self.folder, world.clock, or_keep=True)
        journal.append(Event.TEARDOWN_STARTED)
        await asyncio.sleep(world.removal_s())
        for name in world.running():
            world.remove(name)
        await self.retire([row.key for row in fold(journal.entries()).live if row.resource == NODE])
        journal.append(Event.TORN_DOWN)
        rows = tuple(
            ReceiptResource(
                provider=row.data.get("provider", ""),
                region=row.data.get("region", ""),
                zone=row.data.get("zone", ""),
                type=row.resource,
                name=row.key,
                created_at=row.created_at,
                gone_at=row.gone_at,
                confirmed_by="simulation",
            )
            for row in fold(journal.entries()).resources
            if row.resource == NODE
        )
        return TeardownResult(resources=rows, remaining=(), problems=())

    async def in_background(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        return work(*arguments, **options)


def _reachable(one: PlacedNode, world: World) -> ReachableNode:
    return ReachableNode.of(
        one,
        address="192.0.2.1",
        port=22,
        user="sailor",
        host_public_key="",
        private_address="192.0.2.1",
        workdir="/",
        created_at=world.clock.at(world.nodes[one.node.id].created_s),
    )
