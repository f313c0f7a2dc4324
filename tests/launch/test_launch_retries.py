"""When a failed command is started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.generation import End, Result
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
    number, said = attempts(**failed)
    assert number == 4
    assert "without a new checkpoint" in said


def test_a_command_that_fails_within_a_minute_has_two_attempts() -> None:
    number, said = attempts(ran_s=5.0, what="command")
    assert number == 2
    assert "twice in a row" in said
