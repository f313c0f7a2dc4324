"""Finding and ending processes by their tags."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from factories.local_runs import wait_until
from sailor_cloud.provision import processes

RUN = f"processes-test-{os.getpid()}"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(999)"
)
POLITE = """
import signal, sys, time
def leave(number, frame):
    sys.exit(0)
signal.signal(signal.SIGINT, leave)
print('ready', flush=True)
time.sleep(999)
"""


@contextmanager
def tagged(code: str, *, node: str = "") -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, processes.RUN_TAG: RUN, **({processes.NODE_TAG: node} if node else {})}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def pids(found: tuple[processes.Process, ...]) -> set[int]:
    return {process.pid for process in found}


def test_processes_are_found_by_run_and_node() -> None:
    with tagged(STUBBORN, node="n0") as first, tagged(STUBBORN, node="n1") as second, tagged(STUBBORN) as third:
        assert pids(processes.of_run(RUN)) == {first.pid, second.pid, third.pid}
        assert pids(processes.on_nodes(RUN)) == {first.pid, second.pid}
        assert pids(processes.of_node(RUN, "n1")) == {second.pid}
        assert pids(processes.terraform_of(RUN)) == {third.pid}
        assert processes.of_run(f"{RUN}-other") == ()


def test_a_zombie_counts_as_ended() -> None:
    with tagged(STUBBORN) as process:
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: processes.read(process.pid) is None, "the zombie is not seen as alive")
        assert process.returncode is None


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    with tagged(STUBBORN, node="n0") as process:
        assert processes.end(lambda: processes.of_node(RUN, "n0"), grace_s=0.3) == ()
        assert process.wait(timeout=60) == -signal.SIGKILL


def test_processes_that_can_not_be_ended_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_KILLED_WITHIN_S", 0.1)
    immortal = processes.Process(pid=os.getpid(), parent=0, start_ticks=-1, command="", run_id=RUN, node="")
    assert processes.end(lambda: [immortal], grace_s=0.1, limit_s=0.1) == (immortal,)


def test_a_signal_never_reaches_a_later_process_with_the_same_id() -> None:
    with tagged(POLITE) as process:
        now = processes.read(process.pid)
        assert now is not None
        earlier = processes.Process(
            pid=now.pid, parent=now.parent, start_ticks=now.start_ticks - 1, command="", run_id=RUN, node=""
        )
        processes.send(earlier, signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)


def test_a_process_that_does_not_finish_is_interrupted_once_and_then_killed() -> None:
    with tagged(POLITE) as polite:
        assert processes.await_exit(lambda: processes.terraform_of(RUN), patience_s=0.1, grace_s=20.0) == ()
        assert polite.wait(timeout=60) == 0
    with tagged(STUBBORN.replace("SIGTERM", "SIGINT")) as stubborn:
        assert processes.await_exit(lambda: processes.terraform_of(RUN), patience_s=0.1, grace_s=0.3) == ()
        assert stubborn.wait(timeout=60) == -signal.SIGKILL


def test_descendants_are_found_below_a_process_that_has_no_tag() -> None:
    with tagged(STUBBORN) as process:
        assert process.pid in pids(processes.descendants(os.getpid()))
