"""A controller that is killed at a chosen point of its journal. Run as a program, it makes one for each line it reads.

Importing the clouds' libraries takes seconds, so it is done once, and each controller is a fork of this program.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sailor_cloud.run.journal import Draft, Entry, Journal


class Crasher:
    """Has controllers run in another process, each in the environment of its caller."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, *, point: int, expires_at: str, with_terraform: bool = False) -> bool:
        """Create and destroy a run, and die right after the journal was written for the `point`-th time.

        Returns whether it died. `with_terraform` kills what it has started as well.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        wish = {"folder": str(folder), "point": point, "expires_at": expires_at, "with_terraform": with_terraform}
        self._process.stdin.write(json.dumps({**wish, "environment": dict(os.environ)}) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        assert status in (0, -signal.SIGKILL), f"the controller ended with {status}"
        return status != 0


@contextmanager
def crasher() -> Iterator[Crasher]:
    """A crasher whose controllers reach the clouds that this process reaches when it asks for them."""
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", "factories.crashing_controller"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        yield Crasher(process)
        process.communicate(timeout=60)


def _control(wish: dict[str, Any]) -> None:
    from datetime import datetime

    from sailor_cloud.clock import SystemClock
    from sailor_cloud.provision.cleanup.teardown import destroy
    from sailor_cloud.provision.provisioner import apply
    from sailor_cloud.run.folder import RunFolder

    _die_at(wish["point"], with_terraform=wish["with_terraform"])
    folder = RunFolder(run_id=Path(wish["folder"]).name, path=Path(wish["folder"]))
    clock = SystemClock()
    with folder.lock():
        apply(
            folder,
            folder.read_document(),
            clock=clock,
            expires_at=datetime.fromisoformat(wish["expires_at"]),
            ssh_from="203.0.113.7/32",
        )
        destroy(folder, clock=clock)


def _die_at(point: int, *, with_terraform: bool) -> None:
    write = Journal.append_all
    count = 0

    def write_and_die(self: Journal, drafts: Sequence[Draft]) -> tuple[Entry, ...]:
        nonlocal count
        entries = write(self, drafts)
        count += 1
        if count == point:
            if with_terraform:
                _kill_children()
            os.kill(os.getpid(), signal.SIGKILL)
        return entries

    Journal.append_all = write_and_die  # type: ignore[method-assign]


def _kill_children() -> None:
    from sailor_cloud.provision import processes

    for process in processes.descendants(os.getpid()):
        processes.send(process, signal.SIGKILL)


def _main() -> None:
    # What takes long to import is there before the first fork.
    import boto3
    from google.cloud import compute_v1

    import sailor_cloud.provision.cleanup.teardown
    import sailor_cloud.provision.provisioner
    from sailor_cloud.provision.providers.aws.sweep import boto_client

    assert boto3
    assert compute_v1
    assert sailor_cloud
    for line in sys.stdin:
        wish = json.loads(line)
        os.environ.clear()
        os.environ.update(wish["environment"])
        if "AWS_ENDPOINT_URL_EC2" in os.environ:
            boto_client("us-east-1")
        child = os.fork()
        if child == 0:
            try:
                _control(wish)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
