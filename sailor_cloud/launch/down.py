"""Tears down a run that has no controller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sailor_cloud.clock import Clock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.teardown import tear_down
from sailor_cloud.provision.cloud_clock import by_cloud
from sailor_cloud.provision.live_resources import Scopes
from sailor_cloud.provision.scopes import NOWHERE, check_own, places_of
from sailor_cloud.provision.terraform.progress import Listener
from sailor_cloud.run import elsewhere, history
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.receipt import Receipt
from sailor_cloud.run.state import fold


def take_down(
    folder: RunFolder,
    *,
    clock: Clock,
    on_progress: Listener | None = None,
    say: Callable[[str], None] = lambda text: None,
    also: Scopes = NOWHERE,
) -> Receipt:
    """Remove everything of a run and write its receipt. Raises RunLockedError while a controller works on it.

    Works without any file in the run's folder. Searches the places in `also` and those that the files name.
    """
    with folder.lock():
        check_own(folder)
        elsewhere.refuse_copy(folder)
        if told := elsewhere.warning(folder):
            say(told)
        clock = by_cloud(clock, places_of(folder, also=also).scopes, lambda text, ahead_s: say(text))
        outcome = fold(read(folder.journal_file)).outcome or _recorded_outcome(folder)
        ending = Ending(outcome) if outcome in set(Ending) else Ending.TORN_DOWN
        try:
            document = folder.read_document()
        except (RequestError, OSError) as error:
            say(f"{error}; tearing down without it")
            document = None
        return tear_down(folder, document, clock=clock, ending=ending, on_progress=on_progress, say=say, also=also)


def _recorded_outcome(folder: RunFolder) -> str | None:
    """Return how a run ended according to the history: its journal may be lost."""
    with contextlib.suppress(RequestError, OSError):
        past = history.past_run(folder)
        return past.outcome if past is not None else None
    return None
