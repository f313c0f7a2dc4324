"""Finds and ends the processes that a process has started, in any session or group. Linux only.

A process whose parent has ended becomes a child of the nearest ancestor that adopts orphans, so none escapes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

# An agent ends the supervisor of a command with it. SIGTERM is no such order: a scheduler, or a system that shuts down,
# sends that to all processes, and the command may then save.
END_NOW = signal.SIGUSR2
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLL_S = 0.02
_SUDO_S = 5.0
_PATIENCE_S = 10.0
_O_ACCMODE = 3


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the living descendants of a process, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return sorted(found)


def signal_all(pids: list[int], number: signal.Signals) -> None:
    """Send a signal; processes of another user get it through sudo, if that asks for no password."""
    others = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except PermissionError:
            others.append(str(pid))
        except ProcessLookupError:
            continue
    if others:
        command = ["sudo", "-n", "kill", f"-{number.name.removeprefix('SIG')}", *others]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SUDO_S, check=False)


def end_descendants(pid: int) -> int:
    """Kill all descendants of a process, which must be the caller; return their number."""
    ended: set[int] = set()
    until = time.monotonic() + _PATIENCE_S
    while left := descendants(pid):
        ended.update(left)
        signal_all(left, signal.SIGKILL)
        collect()
        if time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    collect()
    return len(ended)


def collect() -> dict[int, int]:
    """Collect ended children, adopted ones too; return their wait statuses."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def variables(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started; empty if it has ended."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def written_files(pids: list[int]) -> set[str]:
    """Return the files that processes have open for writing."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError, ValueError, StopIteration):
                    info = Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text()
                    flags = next(int(line.split()[1], 8) for line in info.splitlines() if line.startswith("flags:"))
                    if flags & _O_ACCMODE:
                        found.add(os.readlink(entry.path))
    return found


def is_listening(port: int) -> bool:
    """Whether a process of this machine listens on a TCP port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                local, _, state = row.split()[1:4]
                if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False
