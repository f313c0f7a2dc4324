"""Tasks shared out in a team: what each finds is kept here and in order."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest

from sailor_cloud.planner.parallel.tasks import Task, do
from sailor_cloud.planner.parallel.two_processes import together

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
    together(lambda team: do(tasks, team=team, tell=told.append), processes=processes)
    assert kept == [(number, number**2) for number in range(count)]
    assert told == sorted(told)
    assert all(0 <= share < 1 for share in told)


@pytest.mark.parametrize("processes", PROCESSES)
def test_what_is_kept_is_kept_in_this_process(processes: int) -> None:
    kept: list[int] = []
    tasks = [Task(os.getpid, lambda found: kept.append(os.getpid()))] * 8
    together(lambda team: do(tasks, team=team, tell=nobody), processes=processes)
    assert kept == [os.getpid()] * 8
