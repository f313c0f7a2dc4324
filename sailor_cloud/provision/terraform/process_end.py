"""Waits for the end of a process a little at a time, without asking for it over and over."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_S = 0.05


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[Callable[[], bool]]:
    """Yield a function that waits for the process for a moment and tells whether it has ended.

    Where the system can't wake us at the end of a process, `wait` looks at it again and again.
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
