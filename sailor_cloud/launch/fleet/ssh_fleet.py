"""Real nodes of a run: made by Terraform, connected by SSH, found by tag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sailor_cloud import catalog
from sailor_cloud.clock import Clock
from sailor_cloud.launch.fleet.agents import AgentLink
from sailor_cloud.launch.fleet.bundle import Bundle, pack_runtime
from sailor_cloud.launch.fleet.fleet import Link
from sailor_cloud.launch.fleet.overlay import Overlay
from sailor_cloud.launch.fleet.software import Software, driver_for, job_of_one_build, software_for
from sailor_cloud.launch.fleet.ssh import NodeConnection
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import provisioner
from sailor_cloud.provision.access.nodes import ReachableNode, reachable_nodes, running_names
from sailor_cloud.provision.bookkeeping import NODE, ledger_key
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.provision.live_resources import Scopes
from sailor_cloud.provision.providers import on_this_machine
from sailor_cloud.provision.scopes import NOWHERE, scopes_of
from sailor_cloud.provision.terraform.progress import Interrupt, Listener
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import LaunchOptions

# Each connection costs this machine a key exchange and a file descriptor, and much more time in transit.
_AT_ONCE = 128

_T = TypeVar("_T")


@dataclass(slots=True)
class SshFleet:
    """See `fleet.Fleet`."""

    folder: RunFolder
    clock: Clock
    options: LaunchOptions = field(default_factory=LaunchOptions)
    _bundle: Bundle | None = None
    _software: Software | None = None
    _drivers: dict[str, str | None] = field(default_factory=dict)
    _overlay: Overlay = field(default_factory=Overlay)
    # Where nodes may be; a teardown needs it if the run's folder is lost meanwhile.
    _scopes: Scopes = NOWHERE

    @property
    def bundle(self) -> Bundle:
        if self._bundle is None:
            self._bundle = pack_runtime()
        return self._bundle

    @property
    def software(self) -> Software:
        """The packages for all nodes that the job may buy, so that no re-plan mixes builds."""
        if self._software is None:
            prices = catalog.load()
            job = job_of_one_build(self.folder.read_document(), prices)
            names = {name for entry in job.resources for name in entry.accelerators}
            capabilities = {name: prices.accelerator(name).compute_capability for name in sorted(names)}
            self._software = software_for(capabilities.values())
            self._drivers = {name: driver_for(capability) for name, capability in capabilities.items()}
        return self._software

    async def secure(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> None:
        self._scopes |= scopes_of(document)
        refused = await asyncio.to_thread(
            provisioner.secure,
            self.folder,
            document,
            clock=self.clock,
            expires_at=expires_at,
            ssh_from=self.options.ssh_from,
            on_progress=on_progress,
            interrupt=interrupt,
        )
        if refused is not None:
            provisioner.applied_or_raise(refused)

    async def create(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> provisioner.Applied:
        self._scopes |= scopes_of(document)
        return await asyncio.to_thread(self._created, document, expires_at, interrupt, on_progress)

    def _created(
        self, document: PlanDocument, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> provisioner.Applied:
        outcome = provisioner.apply(
            self.folder,
            document,
            clock=self.clock,
            expires_at=expires_at,
            ssh_from=self.options.ssh_from,
            on_progress=on_progress,
            interrupt=interrupt,
        )
        return provisioner.applied_or_raise(outcome)

    async def connect(self, nodes: Sequence[ReachableNode]) -> list[Link]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(node: ReachableNode) -> AgentLink:
            connection = NodeConnection(node, self.folder.ssh_key_file)
            patience_s = self.options.connect_timeout_s
            if not on_this_machine(node.provider):
                patience_s = self.options.boot_timeout_s
            async with gate:
                await connection.open(patience_s)
            software = self.software
            driver = self._drivers.get(node.accelerator)
            link = AgentLink(connection=connection, bundle=self.bundle, software=software, driver=driver)
            link.keep_alive()
            return link

        attempts = await asyncio.gather(*(one(node) for node in nodes), return_exceptions=True)
        links = [link for link in attempts if isinstance(link, AgentLink)]
        for failure in attempts:
            if isinstance(failure, BaseException):
                await _close(links)
                raise failure
        try:
            await self._overlay.join(links)
        except BaseException:
            await _close(links)
            raise
        return list(links)

    async def reachable_nodes(self, document: PlanDocument) -> tuple[ReachableNode, ...]:
        self._scopes |= scopes_of(document)
        return await asyncio.to_thread(reachable_nodes, self.folder, document)

    async def running(self, document: PlanDocument) -> frozenset[str]:
        return frozenset(node.id for node in await self.reachable_nodes(document))

    async def all_running(self) -> frozenset[str]:
        return await asyncio.to_thread(running_names, self.folder)

    async def retire(self, nodes: Sequence[str]) -> None:
        if not nodes:
            return
        left = await self.all_running()
        journal, ledger = Journal.of(self.folder, self.clock), Ledger.of(self.folder, self.clock)
        for node in nodes:
            if node not in left:
                journal.append(Event.GONE, resource=NODE, key=node, confirmed_by=teardown.SWEEP)
                ledger.close_item(ledger_key(node), at=self.clock.now())

    def lose(self, node: str, *, broken: bool = True) -> None:
        pass

    async def destroy(
        self, on_progress: Listener, before_data: Callable[[], None] | None = None
    ) -> teardown.TeardownResult:
        return await asyncio.to_thread(
            teardown.destroy,
            self.folder,
            clock=self.clock,
            on_progress=on_progress,
            before_data=before_data,
            also=self._scopes,
        )

    async def in_background(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        return await asyncio.to_thread(work, *arguments, **options)


async def _close(links: Sequence[AgentLink]) -> None:
    for link in links:
        await link.close()
