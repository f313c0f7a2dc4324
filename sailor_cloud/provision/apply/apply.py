"""Applies one Terraform root: temporary failures are retried, existing resources are adopted, refusals are reported."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.adoptable import (
    Adoptable,
    PlannedCreation,
    planned_creations,
    planned_replacements,
    planned_updates,
)
from sailor_cloud.provision.bookkeeping import (
    NODE,
    capacity_intent,
    node_intent,
    open_capacity,
    open_node,
    resource_intent,
    resource_key,
)
from sailor_cloud.provision.errors.causes import Cause, Fault, classify, error_of, most_severe
from sailor_cloud.provision.errors.rules import Backoff, Pause
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.rendering.planned_roots import forget
from sailor_cloud.provision.rendering.preview import Prices
from sailor_cloud.provision.rendering.root import BACKEND_FILE, Part, PlacedNode, Root, WantedRoot, environment
from sailor_cloud.provision.scopes import journaled_scopes, remove_from, sweep_scopes
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.driver import EventListener, TerraformCommandError, TerraformDriver
from sailor_cloud.provision.terraform.pace import Pace
from sailor_cloud.provision.terraform.progress import CloudProbe, Interrupt, Listener, Progress, Step
from sailor_cloud.provision.terraform.state_locks import without_stale_lock
from sailor_cloud.run.folder import FIRST_OF_NAMES, RunFolder, private_dir, resource_prefix
from sailor_cloud.run.journal import Draft, Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold

# A run's tag on a cloud, or a local node's, in a state; there a local node's is in a string.
_TAGGED = re.compile(r'\\?"(?:sailor-cloud-run|run_id)\\?":\s*\\?"([^"\\]+)')
# The prefix of a resource's own name in a state. Other attributes may name a bucket that another run has kept.
_PREFIXED = re.compile(rf'"(?:name|account_id)":\s*"({FIRST_OF_NAMES}[0-9a-f]{{10}})-')
# The run in the place of a state outside the folder: PREFIX/RUN/ROOT.
_KEPT_FOR = re.compile(r'"(?:prefix|key)":\s*"[^"]*?([^"/]+)/[^"/]+"')
_NODE = re.compile(r'(module\.cluster\.\w+\.node)\["([^"]+)"\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One planned change: `action` is create, update, replace or delete; `node` is empty unless it is a node."""

    address: str
    type: str
    key: str
    action: str

    @property
    def node(self) -> str:
        return node_at(self.address)

    def planned(self, root: Root, usd_per_hour: float | None) -> Progress:
        """Return the change as a progress step."""
        return Progress(
            action=self.action,
            step=Step.PLANNED,
            provider=root.provider,
            region=root.region,
            resource=self.type,
            key=self.key,
            elapsed_s=0.0,
            message=f"{self.address}: plan to {self.action}",
            usd_per_hour=usd_per_hour,
        )


def change_of(event: Mapping[str, Any]) -> Change | None:
    """Return the change in an event of `terraform plan -json`, or None if it has none."""
    if event.get("type") != "planned_change":
        return None
    change = event["change"]
    resource = change["resource"]
    if change["action"] in ("read", "noop", "import"):
        return None
    return Change(
        address=resource["addr"],
        type=resource["resource_type"],
        key=str(resource.get("resource_key") or resource["resource_name"]),
        action=change["action"],
    )


def owner_at(address: str) -> str:
    """Return the node at a Terraform address, or the node whose own part is there, such as its elastic address."""
    found = _NODE.fullmatch(address)
    return found[2] if found else ""


def node_at(address: str) -> str:
    """Return the node at a Terraform address, or an empty string."""
    found = _NODE.fullmatch(address)
    return (
        found[2]
        if found and any(found[1] == machine_provider.machines for _, machine_provider in providers.all_providers())
        else ""
    )


_STEPS = {
    "apply_start": Step.STARTED,
    "apply_progress": Step.RUNNING,
    "apply_complete": Step.DONE,
    "apply_errored": Step.FAILED,
}


def _of_another_run(folder: RunFolder, root: Root) -> str:
    """Return how a root's state on this disk, or the place of one elsewhere, is another run's; empty if it is not."""
    with suppress(OSError):
        text = root.state_file.read_bytes().decode(errors="replace")
        for run_id in _TAGGED.findall(text):
            if run_id != folder.run_id:
                return f"{root.state_file} has resources of another run, {run_id}"
        for prefix in _PREFIXED.findall(text):
            if prefix != resource_prefix(folder.run_id):
                return f"{root.state_file} has resources of another run, whose resources are called {prefix}-…"
    with suppress(OSError):
        file = root.path / BACKEND_FILE
        for run_id in _KEPT_FOR.findall(file.read_bytes().decode(errors="replace")):
            if run_id != folder.run_id:
                return f"{file} names the state of another run, {run_id}"
    return ""


def open_driver(
    folder: RunFolder,
    root: Root,
    *,
    binary: TerraformBinary,
    interrupt: Interrupt,
    on_event: EventListener | None,
    timeout_s: float,
    pace: Pace | None = None,
) -> TerraformDriver:
    """Return the driver of a written root; its logs go to the run's `logs/terraform`.

    Raises ProvisionError if the root's state has resources of another run, which Terraform would delete.
    """
    if why := _of_another_run(folder, root):
        raise ProvisionError(f"{why}, so Terraform is not called")
    return TerraformDriver(
        root.path,
        binary=binary,
        environment=environment(folder),
        log_dir=private_dir(folder.logs_dir / "terraform"),
        interrupt=interrupt,
        on_event=on_event,
        timeout_s=timeout_s,
        pace=pace,
    )


def progress_of(root: Root, event: Mapping[str, Any]) -> Progress | None:
    """Return the progress of one resource in an event of Terraform's JSON stream, or None if it has none."""
    step = _STEPS.get(event.get("type", ""))
    if step is None:
        return None
    hook = event["hook"]
    resource = hook["resource"]
    return Progress(
        action=hook.get("action", ""),
        step=step,
        provider=root.provider,
        region=root.region,
        resource=resource["resource_type"],
        key=str(resource.get("resource_key") or resource["resource_name"]),
        elapsed_s=float(hook.get("elapsed_seconds", 0)),
        message=str(event.get("@message", "")),
    )


# Providers silently repeat requests that a cloud answers with 503.
_LONG_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The context of work on one run. `timeout_s` limits one Terraform command; `pause` waits between attempts."""

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
    _progress_lock: threading.Lock = field(default_factory=threading.Lock)

    def report_progress(self, progress: Progress) -> None:
        """Report to the listener, one step at a time across all roots."""
        if self.on_progress is not None:
            with self._progress_lock:
                self.on_progress(progress)

    def slow_down(self, provider: str) -> None:
        """Send fewer requests at a time to a provider that throttles."""
        if provider in self.paces:
            self.paces[provider].slow_down()

    def open(
        self,
        root: Root,
        nodes: tuple[PlacedNode, ...],
        prices: Prices | None = None,
        on_network: Callable[[], None] = lambda: None,
    ) -> tuple[TerraformDriver, Watch]:
        """Return the driver of a root and the watch on its events."""
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
    """Follows Terraform in one root: journals created resources, opens the ledger, reports to the listener.

    `on_network` is called once the network that other regions use exists.
    """

    work: Work
    root: Root
    nodes: tuple[PlacedNode, ...]
    prices: Prices
    on_network: Callable[[], None] = lambda: None
    changes: list[Change] = field(default_factory=list)
    started: dict[str, datetime] = field(default_factory=dict)
    # The journal's intents of the requested nodes.
    intents: dict[str, dict[str, Any]] = field(default_factory=dict)
    probe: CloudProbe = field(init=False)

    def __post_init__(self) -> None:
        work = self.work
        self.probe = CloudProbe(lambda: instances(journaled_scopes(work.journal.entries()), work.folder.run_id))

    def event(self, event: Mapping[str, Any]) -> None:
        change = change_of(event)
        if change is not None:
            self.changes.append(change)
        progress = progress_of(self.root, event)
        if progress is None:
            return
        if progress.step is Step.RUNNING and progress.elapsed_s >= _LONG_S:
            progress = replace(progress, problem=self.probe.problem())
        if progress.action == "create":
            self._creation(event["hook"], progress.step, progress.message)
        self.work.report_progress(progress)

    def placed_node(self, name: str) -> PlacedNode | None:
        return next((placed for placed in self.nodes if placed.node.id == name), None)

    def _creation(self, hook: Mapping[str, Any], step: Step, message: str) -> None:
        address = hook["resource"]["addr"]
        node = node_at(address)
        name = node if self.placed_node(node) is not None else ""
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
            # Charged from the request, shortly before the node exists: never too little.
            intent = self.intents.get(key) or fold(journal.entries()).resource(NODE, key).data
            open_node(self.work.ledger, key, intent, since=self.started.get(key, created.ts))
        elif self.root.part is Part.CAPACITY:
            known = fold(journal.entries()).resource(kind, key)
            open_capacity(self.work.ledger, known.data, since=self.started.get(key, created.ts))


_FILE = "adopt.tf"


@contextmanager
def adopt(work: Work, wanted: WantedRoot, adoptable: Adoptable, driver: TerraformDriver) -> Iterator[None]:
    """Make the next plan import existing resources; afterwards the imports are removed from the root.

    Needs the plan that would create everything. Resources that can't be imported, or would be replaced, are deleted.
    """
    file = wanted.in_folder(work.folder).path / _FILE
    planned = planned_creations(driver.show_plan_json())
    orphans = _orphans(work, adoptable, driver, planned)
    found = {p.address: orphan for p in planned if (orphan := adoptable.find_match(p, orphans)) is not None}
    foreign = [orphan for orphan in orphans if orphan not in found.values()]
    if foreign:
        remove_from(foreign)
    ids = {address: adoptable.import_id(orphan) for address, orphan in found.items()}
    try:
        if ids:
            write_atomically(file, _imports(ids))
            # Only now does the plan know the parents of routes, rules and the like.
            driver.plan()
            plan = driver.show_plan_json()
            planned = planned_creations(plan)
            unfit = ids.keys() & planned_replacements(plan)
            if unfit:
                remove_from([found[address] for address in unfit])
                ids = {address: known for address, known in ids.items() if address not in unfit}
        ids |= {p.address: part for p in planned if (part := adoptable.part_id(p)) is not None}
        write_atomically(file, _imports(ids))
        yield
    finally:
        file.unlink(missing_ok=True)


def _orphans(
    work: Work, adoptable: Adoptable, driver: TerraformDriver, planned: tuple[PlannedCreation, ...]
) -> list[LiveResource]:
    """Return the cloud's resources of this root that its state lacks."""
    kinds = {creation.type for creation in planned}
    found = sweep_scopes(adoptable.scopes, run_id=work.folder.run_id, other_kinds=kinds).found
    known = {(kind, name) for kind, name in _in_state(driver.show_state())}
    return [
        resource
        for resource in found
        if adoptable.belongs_to_root(resource) and (resource.type, resource.name) not in known
    ]


def _in_state(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    root = (state.get("values") or {}).get("root_module") or {}
    for module in (root, *root.get("child_modules", ())):
        for resource in module.get("resources", ()):
            yield resource["type"], str(resource["values"].get("id", "")).rpartition("/")[2]


def _imports(ids: Mapping[str, str]) -> str:
    blocks = (f"import {{\n  to = {address}\n  id = {json.dumps(known)}\n}}\n" for address, known in ids.items())
    return "\n".join(blocks)


logger = logging.getLogger(__name__)

_SLOW_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A cloud's refusal of a request; `worst` is the fault that decides what to do."""

    worst: Fault
    reasons: dict[str, str]


def apply_root(
    work: Work,
    wanted: WantedRoot,
    *,
    running: frozenset[str],
    again: bool,
    prices: Prices | None = None,
    on_network: Callable[[], None] = lambda: None,
) -> Refusal | None:
    """Create what a root lacks and delete its extra resources; a repeated call continues where it stopped.

    `running` are nodes that must neither be replaced nor deleted. `again`: the root may have been applied before, so
    resources that its state lacks are searched first. `prices` are for what is about to be created. `on_network` is
    called once a network that other roots use exists. Raises CredentialsError, TerraformCommandError, ProvisionError.
    """
    root = wanted.write(work.folder)
    driver, watch = work.open(root, wanted.nodes, prices, on_network)
    driver.init()

    def once(adopting: bool) -> None:
        changes = _planned(driver, watch)
        adoptable = providers.of(wanted.provider).adoptable(wanted) if adopting else None
        if adoptable is not None and any(change.action == "create" for change in changes):
            with adopt(work, wanted, adoptable, driver):
                _carry_out(work, driver, watch, running, _planned(driver, watch))
        else:
            _carry_out(work, driver, watch, running, changes)

    worst, failure = _with_retries(work, wanted.provider, without_stale_lock(driver, once), adopting=again)
    if failure is None or worst is None:
        return None
    reasons = {name: fault.text for fault in _faults(wanted.provider, failure) if (name := node_at(fault.address))}
    if not reasons:
        reasons = {placed.node.id: worst.text for placed in wanted.nodes if placed.node.id not in running}
    return Refusal(worst=worst, reasons=reasons)


def shrink(work: Work, wanted: WantedRoot, victims: frozenset[str], *, shared: bool) -> None:
    """Delete some or all nodes of a root; `shared`: nodes of other roots use this root's network."""
    root = wanted.in_folder(work.folder)
    if victims >= {placed.node.id for placed in wanted.nodes}:
        remove_root(work, root, only_compute=shared)
        return
    driver, watch = work.open(wanted.write(work.folder, without=victims), wanted.nodes)
    driver.init()

    def once(adopting: bool) -> None:
        _planned(driver, watch)
        driver.apply()

    attempt = without_stale_lock(driver, once)
    _raise_refusal(*_with_retries(work, wanted.provider, attempt, adopting=False))


def remove_root(work: Work, root: Root, *, only_compute: bool) -> None:
    """Destroy a root that the plan no longer needs, or only its nodes."""
    driver, _ = work.open(root, ())
    driver.init()

    def once(adopting: bool) -> None:
        driver.destroy(target=providers.of(root.provider).machines if only_compute else None)

    attempt = without_stale_lock(driver, once)
    _raise_refusal(*_with_retries(work, root.provider, attempt, adopting=False))
    if not only_compute:
        forget(root)


def _with_retries(
    work: Work, provider: Provider, once: Callable[[bool], None], *, adopting: bool
) -> tuple[Fault | None, TerraformCommandError | None]:
    """Run `once` until it succeeds; return the fault and the failure if the cloud refuses for good."""
    failed = 0
    while True:
        try:
            once(adopting)
            return None, None
        except TerraformCommandError as failure:
            failed += 1
            if not failure.faults:
                raise
            worst = most_severe(_faults(provider, failure))
            match worst.cause:
                case Cause.CREDENTIALS | Cause.POLICY:
                    raise error_of(worst) from failure
                case Cause.QUOTA | Cause.STOCKOUT | Cause.NOT_SOLD:
                    return worst, failure
                case Cause.OTHER:
                    raise
                case Cause.EXISTS if adopting and failed > 1:
                    raise
                # Each attempt has already waited minutes for a machine.
                case Cause.SLOW if failed >= _SLOW_TRIES:
                    raise
            if worst.cause is Cause.THROTTLED:
                work.slow_down(provider)
            adopting = adopting or worst.cause is Cause.EXISTS
            pause_s = work.backoff.pause_s(failed)
            if pause_s is None:
                raise
            if worst.cause is not Cause.EXISTS:
                logger.info("%s; trying again in %.0f s", worst.text, pause_s)
                work.pause(pause_s)


def _raise_refusal(worst: Fault | None, failure: TerraformCommandError | None) -> None:
    if worst is not None:
        raise error_of(worst) from failure


def _faults(provider: Provider, failure: TerraformCommandError) -> list[Fault]:
    return [classify(provider, providers.of(provider).errors, fault) for fault in failure.faults]


def _planned(driver: TerraformDriver, watch: Watch) -> tuple[Change, ...]:
    watch.changes.clear()
    driver.plan()
    # Terraform reports changes in varying order, because it walks its graph in parallel.
    order = {placed.node.id: placed.index for placed in watch.nodes}
    return tuple(sorted(watch.changes, key=lambda change: (order.get(change.node, -1), change.address)))


def _carry_out(
    work: Work, driver: TerraformDriver, watch: Watch, running: frozenset[str], changes: tuple[Change, ...]
) -> None:
    """Apply the plan that was just made: report it, journal it, carry it out."""
    spoiled = {owner_at(change.address) for change in changes if change.action in ("replace", "delete")}
    if spoiled & running:
        raise _refusal_to("replace or delete", spoiled & running, work, watch)
    if running & {change.node for change in changes if change.action == "update"}:
        updates = planned_updates(driver.show_plan_json())
        stopping = providers.of(watch.root.provider).stopping_attributes
        stopped = running & {node_at(address) for address, changed in updates.items() if changed & stopping}
        if stopped:
            raise _refusal_to("stop and start", stopped, work, watch)
    _intend(work, watch, changes)
    if not any(change.type == providers.of(watch.root.provider).network for change in changes):
        watch.on_network()
    driver.apply()
    work.interrupt.check()


def _refusal_to(do: str, nodes: Collection[str], work: Work, watch: Watch) -> ProvisionError:
    return ProvisionError(
        f"Terraform would {do} nodes that run and belong to the plan: {', '.join(sorted(nodes))}; nothing "
        f"was changed in {watch.root.path}; 'sailor-cloud down {work.folder.run_id}' removes the run"
    )


def _intend(work: Work, watch: Watch, changes: tuple[Change, ...]) -> None:
    # Nodes that were requested earlier and may exist are not journaled twice.
    asked = {(row.resource, row.key) for row in fold(work.journal.entries()).live if row.created_at is None}
    drafts = []
    for change in changes:
        placed = watch.placed_node(change.node)
        price = watch.prices.of(change.type, change.key) if change.action != "delete" else None
        work.report_progress(change.planned(watch.root, price))
        if change.action in ("create", "replace"):
            intent = node_intent(placed) if placed else resource_intent(watch.root, change.type, change.address)
            if watch.root.part is Part.CAPACITY:
                intent = capacity_intent(watch.root, change.type, change.address, watch.nodes)
            drafts.append(intent)
    work.journal.append_all([draft for draft in drafts if (draft.resource, draft.key) not in asked])
    rows = fold(work.journal.entries()).resources
    watch.intents = {row.key: row.data for row in rows if row.resource == NODE}


def confirm_deleted(work: Work, names: frozenset[str], alive: frozenset[str], *, confirmed_by: str) -> None:
    """Stop charging for deleted nodes that the cloud no longer lists."""
    gone = sorted(names - alive)
    # The journal comes first: after a crash in between, the ledger is closed as it says.
    work.journal.append_all(
        [Draft(event=Event.GONE, resource=NODE, key=name, data={"confirmed_by": confirmed_by}) for name in gone]
    )
    with work.ledger.batch():
        for name in gone:
            work.ledger.close_item(f"{NODE}/{name}", at=work.clock.now())
