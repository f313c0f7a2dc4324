"""When a failed command is started again, and when one has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.generation import End, Generation, Result
from sailor_cloud.launch.telemetry.monitor import Failure


def attempts(*, tails: Sequence[str] = ("",), steps: Sequence[int] = (0,), **failed: Any) -> tuple[int, str]:
    """Return how often a failing command is started, and what the run says at its end.

    `tails` and `steps` are those of the first attempts, the last of which repeats.
    """
    context: Any = SimpleNamespace(
        saved_step=0,
        folder=SimpleNamespace(logs_dir=Path("logs")),
        options=SimpleNamespace(most_retries=3),
        observer=SimpleNamespace(note=lambda text: None),
    )
    controller = Controller(context)
    for number in range(1, 10):
        tail, step = tails[min(number, len(tails)) - 1], steps[min(number, len(steps)) - 1]
        failure = Failure(node="n0", rank=0, how="failed", tail=tail, **failed)
        result = Result(end=End.FAILED, step=step, failures=(failure,), why="it failed")
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


@pytest.mark.parametrize(("final", "recovered"), [(False, ["n0"]), (True, [])])
def test_a_node_with_two_doubtful_errors_is_replaced_unless_the_failure_is_final(
    final: bool, recovered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context: Any = SimpleNamespace(
        saved_step=0,
        runs_command=True,
        folder=SimpleNamespace(logs_dir=Path("logs")),
        options=SimpleNamespace(most_retries=3),
        observer=SimpleNamespace(note=lambda text: None),
    )
    controller, lost = Controller(context), []

    async def recover(self: Controller, names: tuple[str, ...], why: str) -> None:
        lost.extend(names)

    async def fetch(self: Controller) -> None:
        pass

    monkeypatch.setattr(Controller, "_recover", recover)
    monkeypatch.setattr(Controller, "_fetch_logs", fetch)
    tail = "CUDA error: unspecified launch failure"
    for last in (False, final):
        failure = Failure(node="n0", rank=0, how="failed", tail=tail)
        result = Result(end=End.FAILED, step=0, failures=(failure,), why="it failed", final=last)
        if last:
            with pytest.raises(LaunchError):
                asyncio.run(controller._retry(result))
        else:
            asyncio.run(controller._retry(result))
    assert lost == recovered


IMPORT = """
  File "train.py", line 13, in <module>
ImportError: cannot import name 'modle' from 'models'
"""
TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


@pytest.mark.parametrize(
    ("tails", "steps", "number"),
    [
        ((IMPORT,), (0,), 2),
        ((f"[rank0]: {IMPORT.strip()}\n{TORCHRUN}",), (0,), 2),
        (("OSError: the bucket is busy", IMPORT), (0,), 3),
        ((IMPORT,), (0, 20, 20), 3),
        ((IMPORT,), (0, 20, 40, 60), 4),
        ((TORCHRUN,), (0,), 4),
        (("RuntimeError: Connection closed by peer",), (0,), 4),
    ],
    ids=["same", "under torchrun", "another first", "one got further", "all get further", "unknown", "lost neighbour"],
)
def test_a_command_that_fails_twice_with_the_same_error_at_the_same_place_is_not_started_again(
    tails: Sequence[str], steps: Sequence[int], number: int
) -> None:
    started, message = attempts(tails=tails, steps=steps, ran_s=90.0, what="command")
    assert started == number
    assert ("same error" in message) == (number < 4)


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
