"""Tears down a run whose controller is gone."""

from __future__ import annotations

from collections.abc import Callable

from sailor_cloud.clock import Clock
from sailor_cloud.launch.options import Ending
from sailor_cloud.launch.teardown import tear_down
from sailor_cloud.provision.progress import Listener
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.receipt import Receipt
from sailor_cloud.run.state import fold


def take_down(
    folder: RunFolder,
    *,
    clock: Clock,
    on_progress: Listener | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Receipt:
    """Remove everything of a run and write its receipt. Raises RunLockedError while a controller works on it."""
    with folder.lock():
        outcome = fold(read(folder.journal_file)).outcome
        ending = Ending(outcome) if outcome in set(Ending) else Ending.TORN_DOWN
        document = folder.read_document()
        return tear_down(folder, document, clock=clock, ending=ending, on_progress=on_progress, say=say)
