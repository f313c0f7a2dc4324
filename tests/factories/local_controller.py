"""A controller in a process of its own, which buys and removes local nodes, and kills itself after a chosen event.

Arguments: the folder of the run, and the event that it writes into the journal last.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sailor_cloud.clock import SystemClock
from sailor_cloud.provision.cleanup.teardown import destroy
from sailor_cloud.provision.provisioner import apply
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Draft, Entry, Journal


def main() -> None:
    _, path, last = sys.argv
    write = Journal.append_all

    def write_and_die(self: Journal, drafts: Sequence[Draft]) -> tuple[Entry, ...]:
        entries = write(self, drafts)
        if any(entry.event == last for entry in entries):
            os.kill(os.getpid(), signal.SIGKILL)
        return entries

    Journal.append_all = write_and_die  # type: ignore[method-assign]
    folder = RunFolder(run_id=Path(path).name, path=Path(path))
    clock = SystemClock()
    with folder.lock():
        apply(folder, folder.read_document(), clock=clock, expires_at=datetime.now(UTC) + timedelta(minutes=10))
        destroy(folder, clock=clock)
