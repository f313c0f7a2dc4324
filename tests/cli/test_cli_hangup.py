"""A controller whose terminal closes, as when an SSH session drops, carries its run on to the end."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from factories.receipts import receipt
from sailor_cloud.cli.runs import following
from sailor_cloud.clock import Clock
from sailor_cloud.launch.start import OnStart
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.options import Ending, Outcome
from sailor_cloud.run.progress import Observer

PATIENCE_S = 60.0


def main() -> int:
    """Follow a controller in the current folder that works, and talks, until there is a file `go`."""
    import asyncio

    def control(observer: Observer, clock: Clock, on_start: OnStart) -> Outcome:
        ending = Ending.COMPLETED

        def stop() -> None:
            nonlocal ending
            ending = Ending.INTERRUPTED

        async def work() -> None:
            on_start(RunFolder(run_id="r", path=Path.cwd()), stop)
            Path("ready").touch()
            while not Path("go").exists() and ending is Ending.COMPLETED:
                observer.note("training")
                await asyncio.sleep(0.01)

        asyncio.run(work())
        return Outcome(ending=ending, receipt=replace(receipt(), resources=()))

    return following.follow(control)


def seen(file: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.01)


def followed(folder: Path, *, hang_up: Callable[[subprocess.Popen[bytes], int], None]) -> int:
    """Return the exit code of a controller on a terminal of its own, after something happened to that."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys, test_cli_hangup; sys.exit(test_cli_hangup.main())"],
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    seen(folder / "ready", process)
    hang_up(process, controller)
    # Long enough for lines that find no terminal.
    time.sleep(0.3)
    (folder / "go").touch()
    return process.wait(timeout=PATIENCE_S)


def close(_process: subprocess.Popen[bytes], controller: int) -> None:
    os.close(controller)


def signal_twice(process: subprocess.Popen[bytes], controller: int) -> None:
    """The kernel signals the session, and a shell signals its jobs."""
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    os.close(controller)


@pytest.mark.parametrize("hang_up", [close, signal_twice])
def test_a_run_outlives_its_terminal(hang_up: Callable[[subprocess.Popen[bytes], int], None], tmp_path: Path) -> None:
    assert followed(tmp_path, hang_up=hang_up) == 0
