"""Runs the command line inside the test's own process: what `sailor` does without the price of a process.

Searches of a job that was planned before in this process are not made again. Tests of pipes, signals, encodings and
start-up time need `sailor`.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from factories.commands import clean_environment
from factories.counted_clock import CountedClock
from sailor_cloud import api, resources
from sailor_cloud.cli.main import main
from sailor_cloud.clock import Clock, SystemClock
from sailor_cloud.errors import SailorError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.workload import this_machine

_search = api.plan
_planned: dict[tuple[object, ...], PlanDocument] = {}


class Answer(subprocess.CompletedProcess[str]):
    """What a command printed and its exit code; `error` is the expected error that it ended with."""

    error: SailorError | None = None


def called(
    *arguments: str,
    home: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    answers: str = "",
    encoding: str = "utf-8",
) -> Answer:
    """Run sailor-cloud with a clean environment; `answers` is what stdin holds, `encoding` that of what it writes."""
    clean = clean_environment(home, environment)
    out, err = _stream(encoding), _stream(encoding)
    with _as_a_process(clean, cwd, ["sailor-cloud", *arguments]), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(sys, "stdin", io.StringIO(answers)))
        stack.enter_context(mock.patch.object(api, "plan", _remembered))
        # The test's process continues after the command.
        stack.enter_context(mock.patch("sailor_cloud.cli.main._start_and_end_quickly"))
        try:
            main()
        except SystemExit as end:
            code, reason = end.code, end.__context__
    answer = Answer(["sailor-cloud", *arguments], int(code or 0), _text(out), _text(err))
    answer.error = reason if isinstance(reason, SailorError) else None
    return answer


@contextlib.contextmanager
def searches_end_after(looks: float) -> Iterator[None]:
    """End searches of commands at so many looks at a clock that counts them, with the same plan on any machine."""
    search = _search

    def limited(job: Job, *, clock: Clock | None = None, **options: Any) -> PlanDocument:
        return search(job, clock=CountedClock(), **{**options, "time_limit_s": looks})

    here = sys.modules[__name__]
    with mock.patch.object(here, "_planned", {}), mock.patch.object(here, "_search", limited):
        yield


@contextlib.contextmanager
def _as_a_process(environment: dict[str, str], cwd: Path | None, arguments: list[str]) -> Iterator[None]:
    umask = os.umask(0o022)
    try:
        with (
            mock.patch.dict(os.environ, environment, clear=True),
            mock.patch.object(sys, "argv", arguments),
            # A program in a package is called by the package's name, as `python -m pytest` is.
            mock.patch.object(sys.modules["__main__"], "__package__", None),
            contextlib.chdir(cwd or Path.cwd()),
        ):
            yield
    finally:
        os.umask(umask)


def _remembered(job: Job, *, clock: Clock | None = None, **options: Any) -> PlanDocument:
    """Plan as `api.plan` does, or hand out the plan of the same call before."""
    day = None if clock is None or isinstance(clock, SystemClock) else clock.now()
    # Only a model of one's own is looked for beside the job file, only prices and quotas of one's own in the home.
    apart = options["base"] if job.model is not None and (job.model.config or job.model.weights) else None
    home = Path(os.environ["SAILOR_CLOUD_HOME"])
    own = home if home.is_dir() and {entry.name for entry in home.iterdir()} - {"runs"} else None
    given = sorted((name, str(value)) for name, value in options.items() if name not in ("base", "progress"))
    machine, folders = os.environ.get(this_machine.VARIABLE), resources.folders()
    key = (job.model_dump_json(), day, str(apart), str(own), machine, folders, *given)
    if key not in _planned:
        _planned[key] = _search(job, clock=clock, **options)
    return _planned[key]


def _stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding)
