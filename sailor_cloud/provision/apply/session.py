"""What all steps of provisioning a run share, and how they follow Terraform."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.apply.changes import Change, change_of, node_at
from sailor_cloud.provision.apply.open_root import open_driver, progress_of
from sailor_cloud.provision.bookkeeping import NODE, open_node, resource_key
from sailor_cloud.provision.errors.backoff import Backoff, Pause
from sailor_cloud.provision.pace import Pace
from sailor_cloud.provision.progress import Interrupt, Listener, Progress, Pulse, Step
from sailor_cloud.provision.rendering.preview import Prices
from sailor_cloud.provision.rendering.root import PlacedNode, Root
from sailor_cloud.provision.scopes import touched
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.driver import TerraformDriver
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold

# Providers repeat a request that a cloud answers with 503 by themselves, without a word.
_LONG_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One run that is worked on. `timeout_s` is for one command of Terraform; `pause` waits between tries."""

    folder: RunFolder
    clock: Clock
    journal: Journal
    ledger: Ledger
    binary: TerraformBinary
    interrupt: Interrupt
    on_progress: Listener | None
    timeout_s: float
    backoff: Backoff
    pause: Pause
    paces: Mapping[str, Pace] = field(default_factory=dict)
    _telling: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, progress: Progress) -> None:
        """Tell the listener, one step at a time whichever root it comes from."""
        if self.on_progress is not None:
            with self._telling:
                self.on_progress(progress)

    def slow_down(self, provider: str) -> None:
        """Ask a provider that throttles for less at a time from now on."""
        if provider in self.paces:
            self.paces[provider].slow_down()

    def open(
        self,
        root: Root,
        nodes: tuple[PlacedNode, ...],
        prices: Prices | None = None,
        on_network: Callable[[], None] = lambda: None,
    ) -> tuple[TerraformDriver, Watch]:
        """Return the driver of a root and what is seen of its events."""
        watch = Watch(work=self, root=root, nodes=nodes, prices=prices or Prices(), on_network=on_network)
        driver = open_driver(
            self.folder,
            root,
            binary=self.binary,
            interrupt=self.interrupt,
            on_event=watch.event,
            timeout_s=self.timeout_s,
            pace=self.paces.get(root.provider),
        )
        return driver, watch


@dataclass(slots=True, kw_only=True)
class Watch:
    """Follows Terraform in one root: journals what is created, opens the ledger, tells the listener.

    `on_network` is called once the network that other regions use exists.
    """

    work: Work
    root: Root
    nodes: tuple[PlacedNode, ...]
    prices: Prices
    on_network: Callable[[], None] = lambda: None
    changes: list[Change] = field(default_factory=list)
    started: dict[str, datetime] = field(default_factory=dict)
    pulse: Pulse = field(init=False)

    def __post_init__(self) -> None:
        work = self.work
        self.pulse = Pulse(lambda: instances(touched(work.journal.entries()), work.folder.run_id))

    def event(self, event: Mapping[str, Any]) -> None:
        change = change_of(event)
        if change is not None:
            self.changes.append(change)
        progress = progress_of(self.root, event)
        if progress is None:
            return
        if progress.step is Step.RUNNING and progress.elapsed_s >= _LONG_S:
            progress = replace(progress, trouble=self.pulse.trouble())
        if progress.action == "create":
            self._creation(event["hook"], progress.step, progress.message)
        self.work.tell(progress)

    def placed(self, name: str) -> PlacedNode | None:
        return next((placed for placed in self.nodes if placed.node.id == name), None)

    def _creation(self, hook: Mapping[str, Any], step: Step, message: str) -> None:
        address = hook["resource"]["addr"]
        node = node_at(address)
        name = node if self.placed(node) is not None else ""
        if name:
            kind, key = NODE, name
        else:
            kind, key = hook["resource"]["resource_type"], resource_key(self.root, address)
        match step:
            case Step.STARTED:
                self.started[key] = self.work.clock.now()
            case Step.DONE:
                self._created(kind, key, str(hook.get("id_value", "")))
            case Step.FAILED:
                self.work.journal.append(Event.CREATE_FAILED, resource=kind, key=key, reason=message)

    def _created(self, kind: str, key: str, cloud_id: str) -> None:
        journal = self.work.journal
        created = journal.append(Event.CREATED, resource=kind, key=key, cloud_id=cloud_id)
        if kind == providers.of(self.root.provider).network:
            self.on_network()
        if kind == NODE:
            # Charged from the request on, a little before the node exists: never too little.
            known = fold(journal.entries()).resource(NODE, key)
            open_node(self.work.ledger, key, known.data, since=self.started.get(key, created.ts))
