"""Removes everything that a run created, and verifies it by a search without Terraform. Safe to repeat."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.errors import ProvisionError, SailorError, of_system
from sailor_cloud.provision import processes, providers
from sailor_cloud.provision.apply.apply import open_driver, progress_of
from sailor_cloud.provision.bookkeeping import (
    NODE,
    capacity_key,
    charged_nodes,
    close_gone,
    ledger_key,
    open_capacity,
    open_node,
    priced,
)
from sailor_cloud.provision.cleanup.leftovers import (
    KeptBucket,
    Leftovers,
    TeardownResult,
    is_bucket,
    is_fetched,
    is_same_resource,
    is_uncancellable,
    kept_block,
    kept_bucket,
    rows,
    searched_places,
    unjournaled,
    usd_per_month,
)
from sailor_cloud.provision.errors.causes import Cause, classify, most_severe
from sailor_cloud.provision.errors.rules import Backoff, Pause
from sailor_cloud.provision.live_resources import BY_TAG, FOLDER, CloudSweep, LiveResource, Scopes
from sailor_cloud.provision.rendering.root import BACKEND_FILE, Part, Root, roots, write_cli_config
from sailor_cloud.provision.scopes import NOWHERE
from sailor_cloud.provision.terraform.binary import TerraformBinary, find_terraform
from sailor_cloud.provision.terraform.driver import TerraformCommandError, TerraformDriver
from sailor_cloud.provision.terraform.pace import Pace, paces, run_concurrently
from sailor_cloud.provision.terraform.progress import Interrupt, Listener, ProvisionInterrupted
from sailor_cloud.provision.terraform.state_locks import lock_id
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import Draft, Event, Journal, damage
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.receipt import KeptResource
from sailor_cloud.run.state import Phase, ResourceState, RunState, fold

__all__ = ["SWEEP", "TeardownResult", "destroy"]

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 2
# How long a Terraform that outlived its controller may finish alone, before it is interrupted.
_PATIENCE_S = 20.0
_SETTLE_S = 10.0
SWEEP = BY_TAG


def destroy(
    folder: RunFolder,
    *,
    clock: Clock,
    on_progress: Listener | None = None,
    interrupt: Interrupt | None = None,
    timeout_s: float = 1800.0,
    terraform: TerraformBinary | None = None,
    backoff: Backoff | None = None,
    pause: Pause | None = None,
    before_data: Callable[[], None] | None = None,
    also: Scopes = NOWHERE,
) -> TeardownResult:
    """Remove a run's resources, compute first, with Terraform and then by tag, and verify it by a sweep.

    Continues past every error and reports them in `problems`. Works with a Terraform of the run that still runs, a
    stale lock, a lost or unreadable state, or no Terraform at all. Also works with damaged files and a disk that can't
    be written to. Searches every place that the run's folder names, and `also`; places that can't be asked stay
    unconfirmed. The run's own bucket is kept while it has unfetched checkpoints; `before_data`, called once the nodes
    are deleted, may fetch them. Raises only ProvisionInterrupted.
    """
    stop = interrupt or Interrupt()
    folder.release_reserve()
    journal = Journal.of(folder, clock, or_keep=True)
    teardown = _Teardown(
        folder=folder,
        clock=clock,
        journal=journal,
        ledger=Ledger.of(folder, clock, or_keep=True),
        interrupt=stop,
        on_progress=on_progress,
        timeout_s=timeout_s,
        terraform=terraform,
        leftovers=Leftovers.of(folder, also=also),
        backoff=backoff or Backoff(),
        pause=pause or stop.wait,
        before_data=before_data,
    )
    return teardown.run()


@dataclass(slots=True, kw_only=True)
class _Teardown:
    folder: RunFolder
    clock: Clock
    journal: Journal
    ledger: Ledger
    interrupt: Interrupt
    on_progress: Listener | None
    timeout_s: float
    terraform: TerraformBinary | None
    leftovers: Leftovers
    backoff: Backoff
    pause: Pause
    problems: list[str] = field(default_factory=list)
    cleared: set[tuple[str, str]] = field(default_factory=set)
    paces: dict[str, Pace] = field(default_factory=dict)
    keep: KeptBucket | None = None
    holds: bool = False
    before_data: Callable[[], None] | None = None
    progress_lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> TeardownResult:
        harm = damage(self.folder.journal_file)
        state = self._state()
        if state.phase is Phase.GONE and not state.live:
            at, swept = self.clock.now(), self.leftovers.sweep()
            if not (swept.found or swept.unconfirmed or swept.problems or self._doubts(state) or _again(state, swept)):
                return self._destroyed(state, swept, at, ())
        if harm:
            self.problems.append(f"{harm}; every possible place is searched instead")
            self.journal.append(Event.JOURNAL_DAMAGED, why=harm)
        self.problems += self.ledger.damage()
        if any(row.resource == NODE and row.created_at for row in state.resources) and not self.ledger.paid_by_time():
            self.problems.append(
                f"{self.ledger.path} contains no node; nodes are charged at the prices of their purchase"
            )
        self.journal.append(Event.TEARDOWN_STARTED)
        # A request by a dead process may still create its resource a little later.
        late = bool(harm) or any(row.created_at is None for row in state.live)
        self._end_other_terraform()
        before = self.leftovers.sweep()
        self.holds = any(is_bucket(one.type) for one in before.kept)
        self.holds |= any(is_bucket(asked.kind) and asked.problem for asked in before.searched)
        self.keep = self._to_keep()
        state = self._journal_found(state, before)
        self._charge_for_found(state, (*before.found, *before.kept))
        self.journal.append_all(_intents(state, before, self.clock.now()))
        self._destroy_roots(tuple(root for root in roots(self.folder) if _may_have_state(root)))
        self.interrupt.check()
        if self.leftovers.places.scopes and late:
            self.pause(_SETTLE_S)
        return self._confirm(before, *self._remove_leftovers())

    def _destroy_roots(self, written: tuple[Root, ...]) -> None:
        """Destroy nodes everywhere, then the resources around them, in parallel; roots that others need come last."""
        clusters = [root for root in written if root.part is Part.CLUSTER]
        self.paces = paces((root.provider, root.region) for root in clusters)
        if len(written) > 1:
            self._together(*((root, providers.of(root.provider).machines) for root in clusters))
        self._together(*((root, None) for root in written if root.part is Part.LINKS))
        for owns in (False, True):
            self._together(*((root, None) for root in clusters if root.has_own_network is owns))
        self._together(*((root, None) for root in written if root.part is Part.CAPACITY))
        for root in written:
            if root.part is Part.DATA:
                self._save_data()
                # Its watchdog deletes nodes that nothing else can delete.
                if all(self._cleared(other) for other in written if other.provider == root.provider):
                    self._destroy_root(root)

    def _cleared(self, root: Root) -> bool:
        return root.part is Part.DATA or (root.stack, root.region) in self.cleared

    def _together(self, *wanted: tuple[Root, str | None]) -> None:
        run_concurrently([partial(self._destroy_root, root, target=target) for root, target in wanted], self.interrupt)

    def _save_data(self) -> None:
        if self.keep is not None and self.before_data is not None:
            self.before_data()
            self.before_data, self.keep = None, self._to_keep()

    def _to_keep(self) -> KeptBucket | None:
        """Return the bucket that Terraform must not delete: its content was not fetched or could not be checked."""
        entries = self.journal.entries()
        own = KeptBucket(name=resource_name(self.folder.run_id, "data"))
        if damage(self.folder.journal_file) or (self.holds and not is_fetched(self.folder.run_id, entries)):
            return own
        return kept_bucket(self.folder.run_id, entries)

    def _state(self) -> RunState:
        return fold(self.journal.entries())

    def _journal_found(self, state: RunState, before: CloudSweep) -> RunState:
        """Journal found resources that the journal lacks or calls deleted."""
        new = unjournaled(state, (*before.found, *before.kept, *before.unconfirmed))
        self.journal.append_all(
            [Draft(event=Event.CREATE_INTENDED, resource=row.resource, key=row.key, data=row.data) for row in new]
            + [Draft(event=Event.CREATED, resource=row.resource, key=row.key) for row in _again(state, before)]
        )
        return self._state()

    def _end_other_terraform(self) -> None:
        """Let a Terraform that outlived its controller finish, so that its state is complete; then kill it."""
        others = processes.terraform_of(self.folder.run_id)
        if not others:
            return
        _LOG.info("waiting for Terraform of an earlier command: %s", [process.pid for process in others])
        left = processes.await_exit(
            lambda: processes.terraform_of(self.folder.run_id), patience_s=_PATIENCE_S, grace_s=self.timeout_s
        )
        if left:
            self.problems.append(f"Terraform of an earlier command does not end: {[process.pid for process in left]}")

    def _charge_for_found(self, state: RunState, found: tuple[LiveResource, ...]) -> None:
        """Charge for existing nodes that a dead controller could not journal as created."""
        existed = {resource.node for resource in found}
        existed |= {resource.key for resource in state.resources if resource.created_at is not None}
        for resource in state.resources:
            try:
                self._charge(resource, existed, found)
            except (ValueError, KeyError, TypeError, ArithmeticError) as error:
                # Damaged prices in the journal must not keep a node alive.
                why = f"the journal's entries on {resource.resource} {resource.key} can't be charged ({error!r})"
                self.problems.append(f"{why}; the ledger lacks it")

    def _charge(self, resource: ResourceState, existed: set[str], found: tuple[LiveResource, ...]) -> None:
        if resource.capacity is not None and resource.intended_at is not None:
            if resource.created_at is not None or any(is_same_resource(resource, live) for live in found):
                open_capacity(self.ledger, resource.data, since=resource.intended_at)
            return
        if resource.resource != NODE or resource.key not in existed or resource.intended_at is None:
            return
        if priced(resource.data):
            open_node(self.ledger, resource.key, resource.data, since=resource.intended_at)
        elif ledger_key(resource.key) not in self.ledger.paid_by_time():
            self.problems.append(f"the price of node {resource.key} is unknown; the ledger lacks it")

    def _destroy_root(self, root: Root, *, target: str | None = None) -> None:
        try:
            binary = self.terraform or find_terraform()
            write_cli_config(self.folder)
            driver = open_driver(
                self.folder,
                root,
                binary=binary,
                interrupt=self.interrupt,
                on_event=lambda event: self._report(root, event),
                timeout_s=self.timeout_s,
                pace=self.paces.get(root.provider),
            )
            self._destroyed_by(driver, root, target)
        except ProvisionInterrupted:
            raise
        except (ProvisionError, OSError) as error:
            # If Terraform and its driver can't write states and logs, resources are still found by their tag.
            why = of_system(error) if isinstance(error, OSError) else str(error)
            if (problem := f"{why}; what it had created is removed by tag") not in self.problems:
                self.problems.append(problem)

    def _destroyed_by(self, driver: TerraformDriver, root: Root, target: str | None) -> None:
        failed = 0
        while True:
            try:
                driver.init()
                if self.keep is not None and root.part is Part.DATA:
                    self._detach_bucket(driver, root)
                # Missing resources are no error, and a refresh of hundreds of nodes takes as long as their deletion.
                driver.destroy(target, refresh=failed > 0)
                if target is None:
                    self.cleared.add((root.stack, root.region))
                return
            except ProvisionInterrupted:
                raise
            except TerraformCommandError as failure:
                failed += 1
                if not self._prepare_retry(root, driver, failure, failed):
                    if target is None:
                        self.problems.append(str(failure))
                    return

    def _detach_bucket(self, driver: TerraformDriver, root: Root) -> None:
        kind = providers.of(root.provider).bucket
        if any(address.startswith(f"{kind}.run") for address in driver.state_list()):
            driver.forget(f"{kind}.run")

    def _prepare_retry(self, root: Root, driver: TerraformDriver, failure: TerraformCommandError, failed: int) -> bool:
        """Break a stale lock or wait for an overloaded cloud; return whether to retry. Other failures get one retry."""
        faults = [classify(root.provider, providers.of(root.provider).errors, fault) for fault in failure.faults]
        if root.provider in self.paces and any(fault.cause is Cause.THROTTLED for fault in faults):
            self.paces[root.provider].slow_down()
        if faults and most_severe(faults).is_retryable:
            pause_s = self.backoff.pause_s(failed)
            if pause_s is not None:
                self.pause(pause_s)
            return pause_s is not None
        if failed >= _ATTEMPTS:
            return False
        if failure.state_locked:
            self._unlock(driver, failure)
        return True

    def _report(self, root: Root, event: Mapping[str, Any]) -> None:
        progress = progress_of(root, event)
        if progress is not None and self.on_progress is not None:
            with self.progress_lock:
                self.on_progress(progress)

    def _unlock(self, driver: TerraformDriver, failure: TerraformCommandError) -> None:
        """Break a stale lock: no Terraform of this run is left at this point."""
        held = lock_id(failure)
        if held is None:
            return
        try:
            driver.force_unlock(held)
        except TerraformCommandError as error:
            self.problems.append(str(error))

    def _remove_leftovers(self) -> tuple[CloudSweep, datetime]:
        """Delete resources that Terraform does not know; return the last sweep and its start time.

        Clouds need time before they delete what contained other resources.
        """
        failed = 0
        while True:
            at, swept = self.clock.now(), self.leftovers.sweep()
            if not swept.found:
                return swept, at
            problems = self._removed(swept)
            if not problems:
                break
            failed += 1
            pause_s = self.backoff.pause_s(failed) if self.leftovers.places.scopes else None
            if pause_s is None:
                self.problems += problems
                break
            self.pause(pause_s)
        at = self.clock.now()
        return self.leftovers.sweep(), at

    def _removed(self, swept: CloudSweep) -> tuple[str, ...]:
        try:
            return self.leftovers.remove(swept.found)
        except OSError as error:
            return (of_system(error),)

    def _confirm(self, before: CloudSweep, swept: CloudSweep, at: datetime) -> TeardownResult:
        """Journal resources as deleted whose own place answered and no longer has them."""
        self.problems += [*swept.problems, *dict.fromkeys(one.unconfirmed_text for one in swept.unconfirmed)]
        state = self._journal_found(self._state(), swept)
        now = self.clock.now()
        ran = _nodes_in(before)
        gone, ended_at = [], dict[str, datetime]()
        for row in state.live:
            if kept := [one for one in swept.kept if is_same_resource(row, one) and (one.ends or one.name in row.key)]:
                data = {"name": kept[0].name, "ends": kept[0].ends}
                gone.append(Draft(event=Event.KEPT, resource=row.resource, key=row.key, data=data))
                continue
            confirmed_by = self.leftovers.confirmed_by(row, swept, frozenset(self.cleared))
            if confirmed_by is None:
                continue
            data = {"confirmed_by": confirmed_by}
            if row.resource == NODE:
                # A node that no longer ran had ended at its expiry, or after an earlier teardown saw it, at the latest.
                end = now
                if row.key not in ran and state.expires_at is not None:
                    end = min(now, max(state.expires_at, row.until or state.expires_at))
                ended_at[ledger_key(row.key)] = end
                data["until"] = end.isoformat()
            elif row.capacity is not None:
                ended_at[capacity_key(row.capacity)] = now
            gone.append(Draft(event=Event.GONE, resource=row.resource, key=row.key, data=data))
        doubts = self._doubts(state)
        # The journal comes first: after a crash in between, the ledger is closed as it says.
        self.journal.append_all(gone)
        with self.ledger.batch():
            for key, at_time in ended_at.items():
                self.ledger.close_item(key, at=at_time)
            close_gone(self.ledger, state)
        unsure = [f"{row.resource} {row.key}" for row in self._state().live]
        unsure += [*swept.problems, *doubts]
        if swept.found:
            names = ", ".join(f"{resource.type} {resource.name}" for resource in swept.found)
            self.journal.append(Event.TEARDOWN_FAILED, message=f"still there: {names}")
        elif unsure:
            self.journal.append(Event.TEARDOWN_FAILED, message=f"not confirmed as gone: {'; '.join(unsure)}")
        else:
            self.journal.append(Event.TORN_DOWN, problems=self.problems)
        return self._destroyed(self._state(), swept, at, doubts)

    def _doubts(self, state: RunState) -> tuple[str, ...]:
        """Return why there may be unknown places, such as a charged node that no known place has.

        A readable plan names all places. If there is a doubt already, such nodes add nothing.
        """
        doubts, known = self.leftovers.places.doubts, {row.key for row in state.resources if row.resource == NODE}
        if doubts or self.leftovers.places.planned:
            return doubts
        charged = {line.key for line in self.ledger.lines() if line.open}
        unseen = [node for node in charged_nodes(self.ledger) if ledger_key(node) in charged and node not in known]
        why = (
            "the ledger charges for node {}, which is in none of the searched places; --project or --region name others"
        )
        return tuple(why.format(node) for node in unseen)

    def _destroyed(self, state: RunState, swept: CloudSweep, at: datetime, doubts: tuple[str, ...]) -> TeardownResult:
        return TeardownResult(
            resources=rows(state, swept),
            remaining=swept.found,
            problems=tuple(self.problems),
            kept=self._kept(state),
            asked=searched_places(swept, doubts, at),
        )

    def _kept(self, state: RunState) -> tuple[KeptResource, ...]:
        kept = [row for row in state.resources if row.kept]
        if not kept:
            return ()
        try:
            monthly = usd_per_month(self.folder.read_document())
        except SailorError:
            monthly = 0.0
        return tuple(
            kept_block(row.resource, row.data["name"], row.data.get("ends", ""))
            if is_uncancellable(row.resource)
            else KeptBucket(name=row.data["name"]).row(row.resource, monthly)
            for row in kept
        )


def _again(state: RunState, swept: CloudSweep) -> list[ResourceState]:
    """Return resources that the journal calls deleted and a search has found."""
    live = [found for found in (*swept.found, *swept.kept) if found.type != FOLDER]
    return [row for row in state.resources if row.gone_at and any(is_same_resource(row, found) for found in live)]


def _nodes_in(swept: CloudSweep) -> set[str]:
    return {resource.node for resource in swept.found if resource.type != FOLDER and resource.node}


def _intents(state: RunState, before: CloudSweep, now: datetime) -> list[Draft]:
    """Return the intents to delete what may live; nodes that were just seen have run until now."""
    ran = _nodes_in(before)
    return [
        Draft(
            event=Event.DESTROY_INTENDED,
            resource=row.resource,
            key=row.key,
            data={"until": now.isoformat()} if row.resource == NODE and row.key in ran else {},
        )
        for row in state.live
    ]


def _may_have_state(root: Root) -> bool:
    return root.state_file.is_file() or (root.path / BACKEND_FILE).is_file()
