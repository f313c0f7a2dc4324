"""Tasks shared out between two processes: each is done once, kept here and in order, whatever becomes of the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from functools import partial

import pytest

from sailor_cloud.planner.tasks import Task, do

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process")
PROCESSES = [1, pytest.param(2, marks=ONLY_LINUX)]


def nobody(share: float) -> None:
    pass


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("count", [0, 1, 2, 5000], ids=["none", "one", "two", "more than are queued at once"])
def test_what_tasks_find_is_kept_in_their_order(processes: int, count: int) -> None:
    kept: list[tuple[int, int]] = []
    told: list[float] = []
    tasks = [Task(partial(pow, number, 2), lambda found, n=number: kept.append((n, found))) for number in range(count)]
    do(tasks, processes=processes, tell=told.append)
    assert kept == [(number, number**2) for number in range(count)]
    assert told == sorted(told)
    assert all(0 <= share < 1 for share in told)


@pytest.mark.parametrize("processes", PROCESSES)
def test_what_is_kept_is_kept_in_this_process(processes: int) -> None:
    kept: list[int] = []
    do([Task(os.getpid, lambda found: kept.append(os.getpid()))] * 8, processes=processes, tell=nobody)
    assert kept == [os.getpid()] * 8


@ONLY_LINUX
def test_what_a_killed_process_took_along_is_done_here() -> None:
    here = os.getpid()
    waiting, begun = os.pipe()

    def find(number: int) -> int:
        if os.getpid() != here:
            os.write(begun, b".")
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 0 and not kept:
            # This process goes on once the other one has taken a task, and died of it.
            os.read(waiting, 1)
        return number

    kept: list[int] = []
    try:
        do([Task(partial(find, number), kept.append) for number in range(50)], processes=2, tell=nobody)
    finally:
        os.close(waiting)
        os.close(begun)
    assert kept == list(range(50))


@pytest.mark.parametrize("processes", PROCESSES)
def test_an_error_of_a_task_reaches_the_caller_and_leaves_no_process(processes: int) -> None:
    def fails() -> int:
        raise ValueError("no data")

    tasks = [Task(partial(pow, number, 2), nobody) for number in range(10)]
    with pytest.raises(ValueError, match="no data"):
        do([*tasks, Task(fails, nobody), *tasks], processes=processes, tell=nobody)
    assert not multiprocessing.active_children()
