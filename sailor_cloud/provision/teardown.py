"""Removes everything that a run created, and proves it by looking without Terraform. Repeating it is harmless."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes
from sailor_cloud.provision.local import vm
from sailor_cloud.provision.progress import Interrupt, Listener, ProvisionInterrupted
from sailor_cloud.provision.records import NODE, ledger_key, open_node
from sailor_cloud.provision.render import Root, roots, write_cli_config
from sailor_cloud.provision.root import open_driver, progress_of
from sailor_cloud.provision.sweep import LOCAL_REGION, PROCESS, LiveResource, sweep_local
from sailor_cloud.provision.terraform_binary import TerraformBinary, find_terraform
from sailor_cloud.provision.terraform_driver import TerraformCommandError, TerraformDriver
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.receipt import ReceiptResource
from sailor_cloud.run.state import Phase, RunState, fold

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 2
# How long a Terraform that outlived its controller may take to finish alone, before it is interrupted.
_PATIENCE_S = 20.0
_LOCK_ID = re.compile(r"ID:\s+([0-9a-f-]{36})")
SWEEP = "sweep by tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroyed:
    """What became of the run's resources. `left` is what an independent look still finds."""

    resources: tuple[ReceiptResource, ...]
    left: tuple[LiveResource, ...]
    problems: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not self.left and all(resource.gone_at is not None for resource in self.resources)


def destroy(
    folder: RunFolder,
    *,
    clock: Clock,
    on_progress: Listener | None = None,
    interrupt: Interrupt | None = None,
    timeout_s: float = 300.0,
    terraform: TerraformBinary | None = None,
) -> Destroyed:
    """Remove the run's nodes, with Terraform first and then by tag, and confirm it by a sweep.

    Goes on past every error and reports them in `problems`. Works with a Terraform of the run that still runs, a
    stale lock, a lost or unreadable state, and without any Terraform. Raises ProvisionInterrupted only.
    """
    teardown = _Teardown(
        folder=folder,
        clock=clock,
        journal=Journal.of(folder, clock),
        ledger=Ledger.of(folder, clock),
        interrupt=interrupt or Interrupt(),
        on_progress=on_progress,
        timeout_s=timeout_s,
        terraform=terraform,
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
    problems: list[str] = field(default_factory=list)

    def run(self) -> Destroyed:
        state = self._state()
        if state.phase is Phase.GONE and not state.live and not self._sweep():
            return Destroyed(resources=_rows(state), left=(), problems=())
        self.journal.append(Event.TEARDOWN_STARTED)
        self._end_other_terraform()
        found = self._sweep()
        self._charge_for_found(state, found)
        for resource in state.live:
            self.journal.append(Event.DESTROY_INTENDED, resource=resource.resource, key=resource.key)
        for root in roots(self.folder):
            if root.state_file.is_file():
                self._destroy_root(root)
        self.interrupt.check()
        self._end_local_leftovers()
        return self._confirm(found)

    def _state(self) -> RunState:
        return fold(self.journal.entries())

    def _sweep(self) -> tuple[LiveResource, ...]:
        return sweep_local(self.folder.run_id, nodes_dir=self.folder.nodes_dir)

    def _end_other_terraform(self) -> None:
        """Let a Terraform that outlived its controller finish, so that its state is complete; then kill it."""
        others = processes.terraform_of(self.folder.run_id)
        if not others:
            return
        _LOG.info("waiting for Terraform of an earlier command: %s", [process.pid for process in others])
        left = processes.let_finish(
            lambda: processes.terraform_of(self.folder.run_id), patience_s=_PATIENCE_S, grace_s=self.timeout_s
        )
        if left:
            self.problems.append(f"Terraform of an earlier command does not end: {[process.pid for process in left]}")

    def _charge_for_found(self, state: RunState, found: tuple[LiveResource, ...]) -> None:
        """Charge for nodes that exist or existed although the controller died before it could write that down."""
        existed = {resource.node for resource in found}
        existed |= {resource.key for resource in state.resources if resource.created_at is not None}
        for resource in state.resources:
            if resource.resource == NODE and resource.key in existed and resource.intended_at is not None:
                open_node(self.ledger, resource.key, resource.data, since=resource.intended_at)

    def _destroy_root(self, root: Root) -> None:
        try:
            binary = self.terraform or find_terraform()
            write_cli_config(self.folder)
        except ProvisionError as error:
            self.problems.append(f"{error}; what it had created is removed by tag")
            return
        driver = open_driver(
            self.folder,
            root,
            binary=binary,
            interrupt=self.interrupt,
            on_event=lambda event: self._tell(root, event),
            timeout_s=self.timeout_s,
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                driver.init()
                driver.destroy()
                return
            except ProvisionInterrupted:
                raise
            except TerraformCommandError as failure:
                if attempt == _ATTEMPTS:
                    self.problems.append(str(failure))
                elif failure.state_locked:
                    self._unlock(driver, failure)

    def _tell(self, root: Root, event: Mapping[str, Any]) -> None:
        progress = progress_of(root, event)
        if progress is not None and self.on_progress is not None:
            self.on_progress(progress)

    def _unlock(self, driver: TerraformDriver, failure: TerraformCommandError) -> None:
        """Break a lock whose holder is gone: no Terraform of this run is left at this point."""
        found = next((match for fault in failure.faults if (match := _LOCK_ID.search(fault.detail))), None)
        if found is None:
            return
        try:
            driver.force_unlock(found.group(1))
        except TerraformCommandError as error:
            self.problems.append(str(error))

    def _end_local_leftovers(self) -> None:
        """End what Terraform does not know of."""
        for node in sorted({resource.node for resource in self._sweep()}):
            problem = vm.remove(self.folder.run_id, node, self.folder.node_dir(node))
            if problem:
                self.problems.append(problem)

    def _confirm(self, found: tuple[LiveResource, ...]) -> Destroyed:
        """Look once more, and write down as gone what can't be found any more."""
        left = self._sweep()
        alive = {resource.node for resource in left}
        ran = {resource.node for resource in found if resource.type == PROCESS}
        state = self._state()
        known = {resource.key for resource in state.live if resource.resource == NODE}
        now = self.clock.now()
        for node in sorted((known | {resource.node for resource in found}) - alive):
            # A node that no longer ran had ended at its expiry at the latest.
            at = now if node in ran or state.expires_at is None else min(now, state.expires_at)
            self.ledger.close_item(ledger_key(node), at=at)
            self.journal.append(Event.GONE, resource=NODE, key=node, confirmed_by=SWEEP)
        if left:
            names = ", ".join(f"{resource.type} {resource.name}" for resource in left)
            self.journal.append(Event.TEARDOWN_FAILED, message=f"still there: {names}")
        else:
            self.journal.append(Event.TORN_DOWN, problems=self.problems)
        return Destroyed(resources=_rows(self._state()), left=left, problems=tuple(self.problems))


def _rows(state: RunState) -> tuple[ReceiptResource, ...]:
    return tuple(
        ReceiptResource(
            provider=resource.data.get("provider", Provider.LOCAL.value),
            region=resource.data.get("region", LOCAL_REGION),
            zone=resource.data.get("zone", ""),
            type=resource.resource,
            name=resource.key,
            created_at=resource.created_at,
            gone_at=resource.gone_at,
            confirmed_by=resource.data.get("confirmed_by", ""),
        )
        for resource in state.resources
        if resource.resource == NODE
    )
