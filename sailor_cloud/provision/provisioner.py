"""Creates exactly the nodes of a plan. Calls block; run them in a thread beside an event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.nodes import ReachableNode, ensure_ssh_key, reachable_nodes
from sailor_cloud.provision.progress import Interrupt, Listener, Progress, Step
from sailor_cloud.provision.records import NODE, intend_node, open_node
from sailor_cloud.provision.render import PlacedNode, Root, local_variables, placed_nodes, write_cli_config, write_root
from sailor_cloud.provision.root import open_driver, progress_of
from sailor_cloud.provision.sweep import LOCAL_REGION
from sailor_cloud.provision.terraform_binary import TerraformBinary, find_terraform
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """All nodes of the plan, running; `seconds` is how long it took to get them."""

    nodes: tuple[ReachableNode, ...]
    expires_at: datetime
    seconds: float


def check_supported(document: PlanDocument) -> None:
    """Raise RequestError unless every node of the plan can be created by this version."""
    others = sorted({placed.offer.provider.value for placed in placed_nodes(document)} - {Provider.LOCAL.value})
    if others:
        raise RequestError(
            f"this version creates nodes of provider local only, and the plan has nodes on {' and '.join(others)}; "
            "'sailor-cloud plan' shows the plan and its cost without creating anything"
        )


def apply(
    folder: RunFolder,
    document: PlanDocument,
    *,
    clock: Clock,
    expires_at: datetime,
    on_progress: Listener | None = None,
    interrupt: Interrupt | None = None,
    timeout_s: float = 600.0,
    terraform: TerraformBinary | None = None,
) -> Applied:
    """Create the plan's nodes and wait until SSH answers on each; repeated, it creates what is missing.

    Every node ends itself at `expires_at`. Each intent is in the journal before Terraform starts, and each node in
    the ledger once it exists. Raises RequestError, TerraformError, ProvisionInterrupted, or ProvisionError when fewer
    nodes came than planned. What was created until then stays, for `destroy`.
    """
    check_supported(document)
    begun = time.monotonic()
    binary = terraform or find_terraform()
    nodes = placed_nodes(document)
    journal, ledger = Journal.of(folder, clock), Ledger.of(folder, clock)
    journal.append(Event.PROVISION_STARTED, expires_at=expires_at.isoformat(), terraform=binary.version)
    variables = local_variables(folder, nodes, public_key=ensure_ssh_key(folder), expires_at=expires_at)
    write_cli_config(folder)
    root = write_root(folder, Provider.LOCAL, LOCAL_REGION, variables)
    watch = _Watch(root=root, nodes=nodes, clock=clock, journal=journal, ledger=ledger, on_progress=on_progress)
    stop = interrupt or Interrupt()
    driver = open_driver(
        folder,
        root,
        binary=binary,
        interrupt=stop,
        on_event=watch.event,
        timeout_s=timeout_s,
    )
    driver.init()
    for placed in nodes:
        intend_node(journal, placed)
    driver.plan()
    driver.apply()
    stop.check()
    running = reachable_nodes(folder, document)
    missing = sorted({placed.node.id for placed in nodes} - {node.id for node in running})
    if missing:
        raise ProvisionError(
            f"Terraform ended without an error, but {len(missing)} of {len(nodes)} nodes do not run: "
            f"{', '.join(missing)}; see {folder.logs_dir}"
        )
    journal.append(Event.PROVISIONED, nodes=len(running))
    return Applied(nodes=running, expires_at=expires_at, seconds=time.monotonic() - begun)


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Follows an apply: journals what is created, opens the ledger, tells the listener."""

    root: Root
    nodes: tuple[PlacedNode, ...]
    clock: Clock
    journal: Journal
    ledger: Ledger
    on_progress: Listener | None
    started: dict[str, datetime] = field(default_factory=dict)

    def event(self, event: Mapping[str, Any]) -> None:
        progress = progress_of(self.root, event)
        if progress is None:
            return
        if progress.action == "create" and any(placed.node.id == progress.key for placed in self.nodes):
            self._creation(progress)
        if self.on_progress is not None:
            self.on_progress(progress)

    def _creation(self, progress: Progress) -> None:
        node, now = progress.key, self.clock.now()
        match progress.step:
            case Step.STARTED:
                self.started[node] = now
            case Step.DONE:
                created = self.journal.append(Event.CREATED, resource=NODE, key=node)
                # Charged from the request on, a little before the node exists: never too little.
                known = fold(self.journal.entries()).resource(NODE, node)
                open_node(self.ledger, node, known.data, since=self.started.get(node, created.ts))
            case Step.FAILED:
                self.journal.append(Event.CREATE_FAILED, resource=NODE, key=node, reason=progress.message)
