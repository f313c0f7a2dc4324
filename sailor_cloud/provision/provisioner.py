"""Creates exactly the nodes of a plan. Calls block; run them in a thread if there is an event loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from ipaddress import ip_address, ip_network
from typing import TypedDict, Unpack

from sailor_cloud.clock import Clock
from sailor_cloud.errors import Problem, ProvisionError, QuotaError, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import HostKeys
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes, providers
from sailor_cloud.provision.access.host_keys import LIMIT_S, first_contact, learn_host_keys
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.access.nodes import ReachableNode, ensure_ssh_key, reachable_nodes
from sailor_cloud.provision.access.tunnel import is_private, refuse_without_programs
from sailor_cloud.provision.apply.apply import Refusal, Work, apply_root, confirm_deleted, remove_root, shrink
from sailor_cloud.provision.bookkeeping import NODE, cancellable, close_cancelled, open_capacity, open_node
from sailor_cloud.provision.errors.causes import Cause, most_severe
from sailor_cloud.provision.errors.rules import Backoff, Pause
from sailor_cloud.provision.guards import two_clouds_problem
from sailor_cloud.provision.live_resources import BY_TAG
from sailor_cloud.provision.outcomes import (
    Applied,
    Outcome,
    QuotaHit,
    RefusedNodes,
    Stockout,
    applied_or_raise,
    grouped,
)
from sailor_cloud.provision.rendering.planned_roots import unwanted_roots, wanted_roots
from sailor_cloud.provision.rendering.preview import Prices, preview
from sailor_cloud.provision.rendering.root import (
    Part,
    PlacedNode,
    WantedRoot,
    owns_network,
    placed_nodes,
    write_cli_config,
)
from sailor_cloud.provision.scopes import journaled_scopes, scopes_for_journal, scopes_of
from sailor_cloud.provision.terraform.binary import TerraformBinary, find_terraform
from sailor_cloud.provision.terraform.driver import TerraformCommandError
from sailor_cloud.provision.terraform.pace import paces, run_concurrently
from sailor_cloud.provision.terraform.progress import Interrupt, Listener
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold

__all__ = ["Applied", "Outcome", "QuotaHit", "Stockout", "applied_or_raise", "apply", "check_supported"]

logger = logging.getLogger(__name__)

# How long a Terraform that outlived its controller may finish alone, before it is interrupted.
PATIENCE_S = 20.0
# The interval of interrupt checks during a wait for capacity.
_LOOK_S = 60.0


def check_supported(document: PlanDocument) -> None:
    """Raise RequestError or MissingPackageError unless nodes of the plan can be created, and reached from here."""
    if (why := two_clouds_problem(document)) is not None:
        raise RequestError(f"{why}; a job whose resources name one provider gives a plan that can be bought")
    used = sorted({placed.offer.provider for placed in placed_nodes(document)})
    for missing in (error for name in used for error in providers.missing_packages(name)):
        raise missing
    refuse_without_programs(document, (Provider(name) for name in used))


class TerraformSettings(TypedDict, total=False):
    """How Terraform is called and retried, and who is informed; omitted values are a user's defaults."""

    on_progress: Listener | None
    interrupt: Interrupt | None
    timeout_s: float
    terraform: TerraformBinary | None
    backoff: Backoff | None
    pause: Pause | None


def apply(
    folder: RunFolder,
    document: PlanDocument,
    *,
    clock: Clock,
    expires_at: datetime,
    ssh_from: str | None = None,
    **settings: Unpack[TerraformSettings],
) -> Outcome:
    """Create the plan's nodes and return them; a repeated call creates missing ones and deletes extra ones.

    Every node shuts itself down at `expires_at`. Each intent is in the journal before Terraform runs, and each node in
    the ledger once it exists. `ssh_from`: the caller's address in CIDR form; None uses that of the run's last apply.

    If a cloud refuses some nodes, created resources of their groups are deleted again, everything else stays. Raises
    RequestError, CredentialsError, TerraformError, ProvisionInterrupted, or ProvisionError if fewer nodes exist than
    planned; whatever was created until then stays, for `destroy`.
    """
    return _apply_of(folder, document, clock, expires_at, ssh_from, settings).run()


def secure(
    folder: RunFolder,
    document: PlanDocument,
    *,
    clock: Clock,
    expires_at: datetime,
    ssh_from: str | None = None,
    **settings: Unpack[TerraformSettings],
) -> Outcome | None:
    """Buy the plan's capacity that is bought separately from nodes, and wait until all its capacity has begun.

    Returns None on success, else what was refused. Purchases are in the ledger immediately. Raises as `apply` does, and
    RequestError for a capacity block that is no longer offered.
    """
    return _apply_of(folder, document, clock, expires_at, ssh_from, settings).secure()


def _apply_of(
    folder: RunFolder,
    document: PlanDocument,
    clock: Clock,
    expires_at: datetime,
    ssh_from: str | None,
    settings: TerraformSettings,
) -> _Apply:
    begun = time.monotonic()
    check_supported(document)
    stop = settings.get("interrupt") or Interrupt()
    stop.check()
    work = Work(
        folder=folder,
        clock=clock,
        journal=Journal.of(folder, clock),
        ledger=Ledger.of(folder, clock),
        binary=settings.get("terraform") or find_terraform(),
        interrupt=stop,
        on_progress=settings.get("on_progress"),
        timeout_s=settings.get("timeout_s", 1800.0),
        backoff=settings.get("backoff") or Backoff(),
        pause=settings.get("pause") or stop.wait,
        paces=paces((placed.offer.provider, placed.offer.region) for placed in placed_nodes(document)),
    )
    return _Apply(work, document, expires_at, ssh_from or _last_ssh_from(work.journal), begun)


def _last_ssh_from(journal: Journal) -> str | None:
    known = [e.data.get("ssh_from") for e in journal.entries() if e.event is Event.PROVISION_STARTED]
    return known[-1] if known else None


def _check_refusals(document: PlanDocument, nodes: Sequence[PlacedNode]) -> None:
    """Raise RequestError with the refusals that the providers announce."""
    problems: list[Problem] = []
    for name in sorted({placed.offer.provider for placed in nodes}):
        mine = [placed for placed in nodes if placed.offer.provider == name]
        problems += providers.of(name).refusals(document, mine)
    if problems:
        raise RequestError(problems)


def _check_refusals_after_growth(document: PlanDocument, added: Sequence[PlacedNode]) -> None:
    """Raise QuotaError if providers say that these additional nodes prevent joining the clouds."""
    used = sorted({placed.offer.provider for placed in placed_nodes(document)})
    if len(used) < 2 or not added:
        return
    for name in used:
        if problems := providers.of(name).refusals(document, ()):
            apart = [placed for placed in added if placed.offer.provider != name] or added
            raise QuotaError(str(RequestError(problems)), sorted({placed.offer.id for placed in apart}))


def _entries(root: WantedRoot) -> frozenset[str]:
    """Return the names of the capacity entries in a root."""
    return frozenset(t.name for placed in root.nodes if (t := placed.offer.terms) is not None)


class _Network:
    """The state that clusters in a shared network wait for: the region that makes it has succeeded or failed."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._exists = False

    def made(self) -> None:
        self._exists = True
        self._settled.set()

    def settle(self) -> None:
        self._settled.set()

    def exists(self) -> bool:
        """Wait until the network exists or has failed; return whether it exists."""
        self._settled.wait()
        return self._exists


class _Apply:
    """One apply; see `apply`."""

    def __init__(
        self, work: Work, document: PlanDocument, expires_at: datetime, ssh_from: str | None, begun: float
    ) -> None:
        self._work = work
        self._document = document
        self._expires_at = expires_at
        self._begun = begun
        self._nodes = placed_nodes(document)
        self._names = frozenset(placed.node.id for placed in self._nodes)
        before = [entry for entry in work.journal.entries() if entry.event is Event.CREATE_INTENDED]
        self._again = any("capacity" not in entry.data for entry in before)
        self._bought_before = len(before) > 0
        if not before:
            _check_refusals(document, self._nodes)
        else:
            rows = fold(work.journal.entries()).resources
            known = {row.key for row in rows if row.resource == NODE and row.created_at is not None}
            _check_refusals_after_growth(document, [placed for placed in self._nodes if placed.node.id not in known])
        self._key = ensure_ssh_key(work.folder)
        self._roots = wanted_roots(
            work.folder,
            document,
            public_key=self._key,
            expires_at=expires_at,
            ssh_from=ssh_from,
            now=work.clock.now(),
        )
        self._prices = {
            (root.stack, root.region): Prices.of_root(root)
            for root in preview(document, work.folder, public_key=self._key, expires_at=expires_at, ssh_from=ssh_from)
        }
        self._network = _Network()
        work.journal.append(
            Event.PROVISION_STARTED,
            expires_at=expires_at.isoformat(),
            terraform=work.binary.version,
            ssh_from=ssh_from,
            **scopes_for_journal(scopes_of(document)),
        )
        self._scopes = journaled_scopes(work.journal.entries())

    def run(self) -> Outcome:
        work = self._work
        running = self._begin()
        for part in (Part.DATA, Part.CAPACITY, Part.CLUSTER, Part.LINKS):
            if part is Part.CLUSTER:
                self._name_reservations()
            wanted = [root for root in self._roots if root.part is part]
            if part is Part.CAPACITY:
                wanted = self._still_to_buy(wanted)
            refused = self._applied(wanted, running & self._names)
            if refused:
                return self._refused(refused, running)
        self._remove_unwanted()
        refused = self._open_overlay_ports()
        if refused:
            return self._refused(refused, self._running())
        nodes = self._counted()
        work.journal.append(Event.PROVISIONED, nodes=len(nodes))
        return Applied(nodes=nodes, expires_at=self._expires_at, seconds=self._seconds())

    def secure(self) -> Outcome | None:
        """Buy separate capacity, and wait until all capacity with a start time has begun."""
        work, running = self._work, self._begin()
        wanted = self._still_to_buy([root for root in self._roots if root.part is Part.CAPACITY])
        refused = self._applied(wanted, running & self._names)
        if refused:
            return self._refused(refused, running)
        starts = [t.starts_at for p in self._nodes if (t := p.offer.terms) is not None and t.starts_at is not None]
        while starts and (left_s := (max(starts) - work.clock.now()).total_seconds()) > 0.0:
            work.pause(min(left_s, _LOOK_S))
            work.interrupt.check()
        return None

    def _begin(self) -> frozenset[str]:
        """Let an earlier Terraform of the run finish; return the running nodes."""
        work = self._work
        write_cli_config(work.folder)
        if not self._again:
            return frozenset()
        processes.await_exit(
            lambda: processes.terraform_of(work.folder.run_id), patience_s=PATIENCE_S, grace_s=work.timeout_s
        )
        return self._running()

    def _still_to_buy(self, roots: Sequence[WantedRoot]) -> list[WantedRoot]:
        """Return the capacity roots that the run lacks, with their clouds' present offers."""
        run_id = self._work.folder.run_id
        lacking = [root for root in roots if not self._is_bought(root)]
        for root in roots:
            if root not in lacking:
                self._book_capacity(root)
        return [providers.of(root.provider).with_current_offers(root, run_id) for root in lacking]

    def _bought(self, root: WantedRoot) -> Mapping[str, str]:
        return providers.of(root.provider).purchased_capacity(root.region, self._work.folder.run_id)

    def _is_bought(self, root: WantedRoot) -> bool:
        return _entries(root) <= self._bought(root).keys()

    def _book_capacity(self, root: WantedRoot) -> None:
        """Charge for capacity that the cloud has sold, even if Terraform did not report it."""
        work = self._work
        rows = [row for row in fold(work.journal.entries()).live if row.created_at is None and row.capacity is not None]
        mine = [row for row in rows if (row.data["stack"], row.data["region"]) == (root.stack, root.region)]
        ids = self._bought(root) if mine else {}
        for row in mine:
            if (cloud_id := ids.get(row.capacity or "")) is not None and row.intended_at is not None:
                work.journal.append(Event.CREATED, resource=row.resource, key=row.key, cloud_id=cloud_id)
                open_capacity(work.ledger, row.data, since=row.intended_at)

    def _name_reservations(self) -> None:
        """Give nodes the ids of separately bought capacity. Raises ProvisionError if some is missing."""
        run_id, found = self._work.folder.run_id, []
        for root in self._roots:
            wanted = {t.name for p in root.nodes if (t := p.offer.terms) is not None and p.offer.bought_separately}
            if root.part is not Part.CLUSTER or not wanted:
                found.append(root)
                continue
            ids = self._bought(root)
            if missing := sorted(wanted - ids.keys()):
                raise ProvisionError(
                    f"the cloud lists no capacity that this run has bought as {', '.join(missing)} in {root.region}; "
                    f"'sailor-cloud down {run_id}' removes the run"
                )
            named = {**root.variables["reservations"], **{name: ids[name] for name in wanted}}
            found.append(replace(root, variables={**root.variables, "reservations": named}))
        self._roots = tuple(found)

    def _applied(self, wanted: Sequence[WantedRoot], running: frozenset[str]) -> list[tuple[WantedRoot, Refusal]]:
        """Apply roots in parallel, each to its own end, and return those that the cloud refused."""

        def one(root: WantedRoot) -> Refusal | None:
            if root.variables.get("network") is not None and not self._network.exists():
                # The region that makes the network has failed, and reports why.
                return None
            owner = owns_network(root.variables)
            try:
                return apply_root(
                    self._work,
                    root,
                    running=running,
                    again=self._again or (root.part is Part.CAPACITY and self._bought_before),
                    prices=self._prices.get(root.place),
                    on_network=self._network.made if owner else lambda: None,
                )
            except TerraformCommandError as failure:
                # hashicorp/aws 5.100 to 6.x buys a block, fails to read it back, and would buy another one next time
                # (github.com/hashicorp/terraform-provider-aws/issues/46829). Only the cloud's list counts.
                if root.part is not Part.CAPACITY or not self._is_bought(root):
                    raise
                logger.info("bought, although Terraform failed: %s", failure)
                return None
            finally:
                if root.part is Part.CAPACITY:
                    self._book_capacity(root)
                if owner:
                    self._network.settle()

        if not any(owns_network(root.variables) for root in self._roots):
            self._network.made()
        refusals = run_concurrently([partial(one, root) for root in wanted], self._work.interrupt)
        return [(root, refusal) for root, refusal in zip(wanted, refusals, strict=True) if refusal is not None]

    def _open_overlay_ports(self) -> list[tuple[WantedRoot, Refusal]]:
        """Open WireGuard's port on each cloud to the nodes of the others, whose addresses are known by now.

        Returns nodes that were lost meanwhile and refused when Terraform made them again. Raises ProvisionError if a
        node is missing or has no public address.
        """
        clusters = [root for root in self._roots if root.part is Part.CLUSTER]
        if not any("peers" in root.variables for root in clusters):
            return []
        found = [i for i in instances(self._scopes, self._work.folder.run_id) if i.running and i.node in self._names]
        # Terraform would create a lost node again, under a used name.
        self._refuse_missing(i.node for i in found)
        ranges = [ip_network(root.variables["cidr"]) for root in clusters]
        hidden = [i.node for i in found if not i.address or any(ip_address(i.address) in own for own in ranges)]
        if hidden:
            raise ProvisionError(
                f"the clouds can't be joined: {', '.join(hidden)} have no public address, to which the other cloud "
                "could open its port"
            )
        opened = {
            root.place: replace(root, variables={**root.variables, "peers": peers})
            for root in clusters
            if (peers := sorted({f"{i.address}/32" for i in found if i.provider != root.provider}))
            != root.variables.get("peers")
        }
        self._roots = tuple(opened.get(root.place, root) for root in self._roots)
        refused = self._applied(list(opened.values()), frozenset(i.node for i in found))
        for _, refusal in refused:
            if not refusal.reasons:
                raise ProvisionError(f"the clouds can't be joined: {refusal.worst.text}")
        return refused

    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def _running(self) -> frozenset[str]:
        """Return the nodes that a cloud lists; Terraform itself checks local ones."""
        found = instances(self._scopes, self._work.folder.run_id)
        return frozenset(instance.node for instance in found if instance.running)

    def _remove_unwanted(self) -> None:
        shared = any("network" in root.variables for root in self._roots)
        for root in unwanted_roots(self._work.folder, self._roots):
            remove_root(self._work, root, only_compute=shared and root.has_own_network)
            if root.part is Part.CAPACITY:
                close_cancelled(self._work.journal, self._work.ledger, root, at=self._work.clock.now())
        for apart in self._roots:
            if apart.part is Part.CAPACITY and cancellable(self._work.journal, apart).keys() - _entries(apart):
                self._cancel_unused_capacity(apart)

    def _cancel_unused_capacity(self, root: WantedRoot) -> None:
        """Cancel a root's capacity that the plan does not use; blocks can't be cancelled."""
        work = self._work
        self._applied([providers.of(root.provider).with_current_offers(root, work.folder.run_id)], self._names)
        there = _entries(root) | self._bought(root).keys()
        close_cancelled(work.journal, work.ledger, root, at=work.clock.now(), but=there)

    def _refused(self, found: Sequence[tuple[WantedRoot, Refusal]], running: frozenset[str]) -> Outcome:
        """Delete resources of the refused groups, and return the refusals with the most severe reason."""
        groups = run_concurrently(
            [partial(self._without_refused, root, refusal, running) for root, refusal in found], self._work.interrupt
        )
        worst = most_severe([refusal.worst for _, refusal in found])
        same = [group for group, (_, r) in zip(groups, found, strict=True) if r.worst.cause is worst.cause]
        refused = tuple(each for group in same for each in group)
        if worst.cause in (Cause.STOCKOUT, Cause.NOT_SOLD):
            return Stockout(refused=refused, fault=worst, seconds=self._seconds())
        numbers = providers.of(worst.provider).quota_numbers(worst, self._nodes, refused, self._scopes)
        return QuotaHit(
            refused=refused,
            fault=numbers.fault,
            limit=numbers.limit,
            usage=numbers.usage,
            need=numbers.need,
            whole_region=numbers.whole_region,
            seconds=self._seconds(),
        )

    def _without_refused(
        self, wanted: WantedRoot, refusal: Refusal, running: frozenset[str]
    ) -> tuple[RefusedNodes, ...]:
        refused = grouped(self._nodes, refusal.reasons)
        offers = {group.offer for group in refused}
        victims = {p.node.id for p in wanted.nodes if p.offer.id in offers} - running
        if wanted.part is Part.CAPACITY:
            root = wanted.in_folder(self._work.folder)
            remove_root(self._work, root, only_compute=False)
            close_cancelled(self._work.journal, self._work.ledger, root, at=self._work.clock.now())
            return refused
        others = [root for root in self._roots if root.stack == wanted.stack and root.place != wanted.place]
        shrink(
            self._work,
            wanted,
            frozenset(victims),
            shared=owns_network(wanted.variables) and bool(others),
        )
        confirm_deleted(self._work, frozenset(victims), self._running(), confirmed_by=BY_TAG)
        return refused

    def _counted(self) -> tuple[ReachableNode, ...]:
        """Return the nodes once the cloud lists them all and each has published its host key."""
        work = self._work
        if self._scopes:
            self._charge_adopted()
            found = [i for i in instances(self._scopes, work.folder.run_id) if i.running and i.node in self._names]
            silent = learn_host_keys(work.folder, found, pause=work.pause, limit_s=LIMIT_S)
            if silent and self._document.job.cloud.host_keys is not HostKeys.FIRST_CONTACT:
                raise ProvisionError(
                    f"no cloud has reported the SSH host keys of {', '.join(sorted(i.node for i in silent))} within "
                    f"{LIMIT_S / 60:.0f} min, so these nodes can't be distinguished from an attacker in between; with "
                    "'cloud: {host_keys: first-contact}' in the job, the run trusts the key of the first contact"
                )
            for instance in silent:
                key = first_contact(work.folder, instance, private=is_private(self._document))
                work.journal.append(Event.FIRST_CONTACT, resource=NODE, key=instance.node, host_key=key)
        running = reachable_nodes(work.folder, self._document)
        self._refuse_missing(node.id for node in running)
        return running

    def _refuse_missing(self, there: Iterable[str]) -> None:
        missing = sorted(self._names.difference(there))
        if missing:
            raise ProvisionError(
                f"Terraform ended without an error, but {len(missing)} of {len(self._nodes)} nodes do not run: "
                f"{', '.join(missing)}; see {self._work.folder.logs_dir}"
            )

    def _charge_adopted(self) -> None:
        """Charge for nodes of an earlier attempt that ended before they could be journaled."""
        state = fold(self._work.journal.entries())
        running = self._running()
        for row in state.resources:
            if row.resource == NODE and row.key in running and row.created_at is None and row.intended_at is not None:
                self._work.journal.append(Event.CREATED, resource=NODE, key=row.key)
                open_node(self._work.ledger, row.key, row.data, since=row.intended_at)
