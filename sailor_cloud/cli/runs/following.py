"""Follows a controller on the terminal: displays, signals, the receipt at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.runs.down import show_unwritten
from sailor_cloud.cli.terminal.hangup import outliving_terminal

if TYPE_CHECKING:
    from sailor_cloud.clock import Clock
    from sailor_cloud.launch.start import OnStart
    from sailor_cloud.run.folder import RunFolder
    from sailor_cloud.run.options import Outcome
    from sailor_cloud.run.progress import Observer

ABANDONED = 1


def follow(control: Callable[[Observer, Clock, OnStart], Outcome], *, as_json: bool = False) -> int:
    """Run a controller, show its progress and its receipt (as JSON on request), and return the exit code.

    The first Ctrl-C stops and tears down, the second leaves the run as it is. A closed terminal or stdout changes
    nothing.
    """
    with outliving_terminal():
        return _followed(control, as_json=as_json)


def _followed(control: Callable[[Observer, Clock, OnStart], Outcome], *, as_json: bool) -> int:
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.report.console import progress_console, result_console
    from sailor_cloud.report.run.receipt_text import print_receipt

    clock = SystemClock()
    observer = _observer(clock)
    control_folder: list[RunFolder] = []

    def started(folder: RunFolder, stop: Callable[[], None]) -> None:
        control_folder.append(folder)
        _handle_signals(folder, stop, observer)

    try:
        outcome = control(observer, clock, started)
    finally:
        observer.close()
    if control_folder:
        show_unwritten(control_folder[0])
    if as_json:
        echo(outcome.receipt.to_json(), nl=False)
    else:
        print_receipt(outcome.receipt, result_console())
    if outcome.message:
        progress_console().print(f"error: {outcome.message}", style="red", markup=False, soft_wrap=True)
    return outcome.exit_code


def _handle_signals(folder: RunFolder, stop: Callable[[], None], observer: Observer) -> None:
    import asyncio
    import signal

    requests = 0

    def interrupted() -> None:
        nonlocal requests
        requests += 1
        if requests == 1:
            observer.note("interrupted: stopping and tearing down; press Ctrl-C again to leave the run as it is")
            stop()
            return
        observer.close()
        echo(abandonment_note(folder), err=True)
        # Threads that wait for Terraform would delay a normal exit.
        os._exit(ABANDONED)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    observer.note(f"run {folder.run_id} in {folder.path}")


def abandonment_note(folder: RunFolder) -> str:
    """Return what a run costs without its controller, and what continues or ends it."""
    from sailor_cloud.run.journal import read
    from sailor_cloud.run.state import fold

    down, bought = f"'sailor-cloud down {folder.run_id}'", bool(fold(read(folder.journal_file)).live)
    costs = f"it costs money until {down} or its TTL" if bought else f"it has bought nothing; {down} ends it"
    resume = f"unless its teardown has begun, 'sailor-cloud resume {folder.run_id}' takes it over"
    return f"left run {folder.run_id} as it is; {costs}; {resume}"


def _observer(clock: Clock) -> Observer:
    from sailor_cloud.report.console import progress_console
    from sailor_cloud.report.run.live import LivePanel, PlainLines

    console = progress_console()
    if console.is_terminal:
        return LivePanel(console, clock)
    return PlainLines(lambda line: echo(line, err=True), clock)
