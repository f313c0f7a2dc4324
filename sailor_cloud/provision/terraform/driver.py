"""Runs Terraform through python-terraform, with additions for Terraform 1.x.

Kept from `python_terraform.Terraform`: how options become a command line and where variable files are kept. Added: a
separate session that gets exactly one SIGINT, the JSON event stream, structured diagnostics, and output in files
instead of pipes. Terraform dies of a broken pipe, and must be able to finish after its caller was killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import python_terraform

from sailor_cloud.errors import TerraformError
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.pace import Pace
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted

_POLL_S = 0.05


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], bool]]:
    """Yield a function that waits briefly for the process and returns whether it has ended.

    If the system can't signal the end of a process, `wait` polls.
    """

    def waited() -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_POLL_S)
        return process.returncode is not None

    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        yield waited
        return

    def woken() -> bool:
        select.select([descriptor], [], [], _POLL_S)
        return process.poll() is not None

    try:
        yield woken
    finally:
        os.close(descriptor)


_LOG = logging.getLogger(__name__)
# Terraform finishes its current operations after a SIGINT; a VM takes minutes to create or delete.
_INTERRUPT_GRACE_S = 600.0
_FLAG = python_terraform.IsFlagged
PLAN_FILE = "run.tfplan"
_NUMBERING = threading.Lock()
_LOCK_ID = "Error acquiring the state lock"

EventListener = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """An error that Terraform reports; `address` is the resource, or empty."""

    summary: str
    detail: str
    address: str

    def __str__(self) -> str:
        place = f"{self.address}: " if self.address else ""
        return f"{place}{self.summary}" + (f": {' '.join(self.detail.split())}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A Terraform command that has ended."""

    status: int
    output: Path
    diagnostics: tuple[Diagnostic, ...]


class TerraformCommandError(TerraformError):
    """Terraform failed; `faults` are its diagnostics with their parts."""

    def __init__(self, message: str, faults: tuple[Diagnostic, ...]) -> None:
        self.faults = faults
        super().__init__(message, [str(fault) for fault in faults])

    @property
    def state_locked(self) -> bool:
        return any(_LOCK_ID in fault.summary for fault in self.faults)


class TerraformDriver(python_terraform.Terraform):  # type: ignore[misc] # the package has no types
    """One Terraform root. Calls block; `interrupt` may be requested from any thread."""

    def __init__(
        self,
        root: Path,
        *,
        binary: TerraformBinary,
        environment: Mapping[str, str],
        log_dir: Path,
        interrupt: Interrupt,
        on_event: EventListener | None = None,
        timeout_s: float = 600.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(working_dir=str(root), terraform_bin_path=binary.command[0])
        self._root = root
        self._binary = binary
        self._environment = dict(environment)
        self._log_dir = log_dir
        self._interrupt = interrupt
        self._on_event = on_event
        self._timeout_s = timeout_s
        self.pace = pace or Pace()

    def __getattr__(self, name: str) -> NoReturn:
        # The package would treat any misspelled name as a Terraform command.
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def read_state_file(self, file_path: str | None = None) -> None:
        """Do nothing: the package can't read today's state format."""

    def init(self) -> Finished:
        return self.cmd("init", input=False, no_color=_FLAG, lockfile="readonly" if self._has_lock_file() else None)

    def plan(self) -> Finished:
        """Write the plan to a file; status 0 means no change, 2 changes."""
        options = {"out": PLAN_FILE, "json": _FLAG, "input": False, "detailed_exitcode": _FLAG}
        return self.cmd("plan", accept=(0, 2), parallelism=self.pace.max_concurrent, **options)

    def show_plan(self) -> str:
        """Return the plan that `plan` wrote, in Terraform's text form."""
        return self.cmd("show", PLAN_FILE, no_color=_FLAG).output.read_text()

    def apply(self) -> Finished:
        """Apply the plan that `plan` wrote."""
        return self.cmd("apply", PLAN_FILE, json=_FLAG, input=False, parallelism=self.pace.max_concurrent)

    def destroy(self, target: str | None = None, *, refresh: bool = True) -> Finished:
        """Destroy everything, or one resource with its dependents; `refresh`: read all of it again first."""
        options = {"destroy": _FLAG, "auto_approve": _FLAG, "json": _FLAG, "input": False, "target": target}
        return self.cmd("apply", parallelism=self.pace.max_concurrent, refresh=None if refresh else False, **options)

    def forget(self, address: str) -> Finished:
        """Remove an address from the state without touching the resource."""
        return self.cmd("state rm", address)

    def force_unlock(self, lock_id: str) -> Finished:
        return self.cmd("force-unlock", lock_id, force=_FLAG)

    def output(self) -> dict[str, Any]:
        """Return the values of the root's outputs."""
        finished = self.cmd("output", json=_FLAG)
        return {name: value["value"] for name, value in json.loads(finished.output.read_text()).items()}

    def show_plan_json(self) -> dict[str, Any]:
        """Return the plan that `plan` wrote, in Terraform's JSON form."""
        return self._shown(PLAN_FILE)

    def show_state(self) -> dict[str, Any]:
        """Return the state in Terraform's JSON form; without `values` if it is empty."""
        return self._shown()

    def _shown(self, *what: str) -> dict[str, Any]:
        text = self.cmd("show", *what, json=_FLAG).output.read_text()
        shown: dict[str, Any] = json.loads(text)
        return shown

    def state_list(self) -> tuple[str, ...]:
        return tuple(self.cmd("state list").output.read_text().split())

    def cmd(self, command: str, *arguments: str, accept: tuple[int, ...] = (0,), **options: Any) -> Finished:
        """Run one command to its end. Raises TerraformCommandError, or ProvisionInterrupted if that was requested."""
        built: list[str] = self.generate_cmd_string(command, *arguments, **options)
        argv = [*self._binary.command, *built[1:]]
        self._interrupt.check()
        output = self._log_file(command)
        errors = output.with_suffix(".err")
        diagnostics: list[Diagnostic] = []
        try:
            with open(output, "wb", opener=_private) as out, open(errors, "wb", opener=_private) as err:
                process = subprocess.Popen(
                    argv,
                    cwd=self._root,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    umask=0o077,
                )
            in_time = self._follow(process, output, diagnostics, streams=options.get("json") is _FLAG)
        finally:
            self.temp_var_files.clean_up()
        if not in_time:
            diagnostics.append(Diagnostic(summary=f"not done within {self._timeout_s:.0f} s", detail="", address=""))
        finished = Finished(status=process.returncode, output=output, diagnostics=tuple(diagnostics))
        if finished.status not in accept:
            self._raise(command, finished, errors)
        return finished

    def _follow(
        self, process: subprocess.Popen[bytes], output: Path, diagnostics: list[Diagnostic], *, streams: bool
    ) -> bool:
        """Forward events until the process has ended, and return whether it ended in time.

        A Ctrl-C counts as a request to interrupt; a second one leaves the process to finish alone.
        """
        deadline = time.monotonic() + self._timeout_s
        in_time = True
        interrupted_at: list[float] = []

        def stop() -> None:
            interrupted_at.append(time.monotonic())
            process.send_signal(signal.SIGINT)

        self._attach(process, stop)
        try:
            with open(output, "rb") as log, watched(process) as has_ended:
                lines = _Lines(log)
                ended = False
                while True:
                    try:
                        for line in lines.complete() if streams else ():
                            self._handle(line, diagnostics)
                        if ended:
                            return in_time
                        ended = has_ended()
                        now = time.monotonic()
                        if not interrupted_at and now > deadline:
                            in_time = False
                            stop()
                        elif interrupted_at and now > interrupted_at[0] + _INTERRUPT_GRACE_S:
                            process.kill()
                    except KeyboardInterrupt:
                        if self._interrupt.requested:
                            raise
                        self._interrupt.request()
        finally:
            self._interrupt.detach(stop)

    def _attach(self, process: subprocess.Popen[bytes], stop: Callable[[], None]) -> None:
        try:
            self._interrupt.attach(stop)
        except ProvisionInterrupted:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise

    def _handle(self, line: bytes, diagnostics: list[Diagnostic]) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            # Output of a provisioner or a crash appears between the events.
            return
        if event.get("type") == "diagnostic" and event["diagnostic"]["severity"] == "error":
            raw = event["diagnostic"]
            diagnostics.append(
                Diagnostic(summary=raw["summary"], detail=raw.get("detail", ""), address=raw.get("address") or "")
            )
        if self._on_event is not None:
            self._on_event(event)

    def _raise(self, command: str, finished: Finished, errors: Path) -> NoReturn:
        if self._interrupt.requested:
            raise ProvisionInterrupted(f"terraform {command} was interrupted in {self._root}")
        reason = "; ".join(str(diagnostic) for diagnostic in finished.diagnostics)
        reason = reason or errors.read_text(errors="replace").strip()[-2000:] or "it gave no reason"
        _LOG.debug("terraform %s ended with status %d; see %s", command, finished.status, finished.output)
        message = f"terraform {command} failed with status {finished.status}: {reason} (log: {finished.output})"
        raise TerraformCommandError(message, finished.diagnostics)

    def _log_file(self, command: str) -> Path:
        # Roots that are worked on in parallel write into one folder.
        with _NUMBERING:
            number = sum(1 for _ in self._log_dir.glob("*.out"))
            file = self._log_dir / f"{number:03d}-{command.replace(' ', '-')}.out"
            file.touch(mode=0o600)
        return file

    def _has_lock_file(self) -> bool:
        return (self._root / ".terraform.lock.hcl").is_file()


class _Lines:
    """Complete lines of a growing file."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._rest = b""

    def complete(self) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + self._log.read()).split(b"\n")
        yield from whole


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
