"""When a failed command is started again, and when one has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.generation import End, Generation, Result
from sailor_cloud.launch.telemetry.monitor import Failure


def attempts(**failed: Any) -> tuple[int, str]:
    """Return how often a command is started that fails in one way each time, and what the run says at its end."""
    context: Any = SimpleNamespace(
        saved_step=0,
        folder=SimpleNamespace(logs_dir=Path("logs")),
        options=SimpleNamespace(most_retries=3),
        observer=SimpleNamespace(note=lambda text: None),
    )
    controller = Controller(context)
    failure = Failure(node="n0", rank=0, how="failed", tail="", **failed)
    result = Result(end=End.FAILED, step=0, failures=(failure,), why="it failed")
    for number in range(1, 10):
        controller._retries += 1
        try:
            controller._retry_command(result)
        except LaunchError as error:
            return number, str(error)
    raise AssertionError("started again for ever")


@pytest.mark.parametrize("failed", [{}, {"ran_s": 0.0, "what": "command"}, {"ran_s": 61.0, "what": "command"}])
def test_a_command_that_hung_or_lost_its_supervisor_or_ran_for_long_has_four_attempts(failed: dict[str, Any]) -> None:
    number, message = attempts(**failed)
    assert number == 4
    assert "without a new checkpoint" in message


def test_a_command_that_fails_within_a_minute_has_two_attempts() -> None:
    number, message = attempts(ran_s=5.0, what="command")
    assert number == 2
    assert "twice in a row" in message


class Followed(Generation):
    """A generation on a node that works and one that has nothing to do, which ends when it is told to."""

    async def _poll(self) -> None:
        self.monitor.stopped["busy"] = "finished"

    async def _stop_ranks(self, *, without: Any = ()) -> None:
        self.monitor.stopped["idle"] = "finished"


def test_a_command_has_ended_when_it_has_on_all_nodes_that_have_something_to_do() -> None:
    generation = Followed.__new__(Followed)
    stages = [SimpleNamespace(node="busy")]
    plan = SimpleNamespace(pipelines=[SimpleNamespace(stages=stages)])
    document: Any = SimpleNamespace(plan=plan, job=SimpleNamespace(run="train"))
    links: Any = [SimpleNamespace(node=SimpleNamespace(id=name)) for name in ("busy", "idle")]
    monitor: Any = SimpleNamespace(stopped={}, failures=[], refused={}, step=7)
    stopping: Any = SimpleNamespace(ending=None, monotonic_s=lambda: 0.0)
    generation.document, generation.links, generation.monitor, generation.clock = document, links, monitor, stopping
    result = asyncio.run(asyncio.wait_for(generation._followed(), 10))
    assert result.end is End.FINISHED
