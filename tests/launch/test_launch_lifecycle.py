from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from factories.runs import (
    COMMAND,
    Up,
    assert_nothing_is_left,
    has_trained,
    journal_has,
    read_lines,
    sailor,
    start_up,
    write_job,
)
from factories.warm import warm
from sailor_cloud.provision import processes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lifecycle")]

LONG = 100_000
STEPS = 150


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Up, int, str, str]:
    """A run that nothing disturbs, with exit code, stdout and stderr."""
    run = start_up(tmp_path_factory.mktemp("undisturbed"), steps=STEPS, command=[COMMAND])
    return run, *run.end()


def losses(run: Up) -> dict[int, float]:
    """Return the loss of every step, of the newest generation that did it."""
    events = read_lines(run.folder / "logs" / "events.jsonl")
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def test_a_run_trains_to_its_end_and_leaves_a_receipt(undisturbed: tuple[Up, int, str, str]) -> None:
    run, code, out, err = undisturbed
    assert code == 0, err
    assert_nothing_is_left(run.folder)
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert receipt["outcome"] == "completed"
    assert 0 < receipt["spent_usd"] < 1.0
    assert len(receipt["resources"]) == 2
    compared = {row["what"]: row for row in receipt["comparisons"]}
    assert compared["iteration, as planned"]["actual"] == compared["iteration, as calibrated"]["actual"] > 0
    parts = [row for row in receipt["comparisons"] if row["unit"] == "USD" and row["what"] != "whole run"]
    assert compared["local-cpu-fast on-demand in local-a"]["actual"] > 0
    assert sum(part["actual"] for part in parts) == pytest.approx(receipt["spent_usd"])
    assert sum(part["estimate"] for part in parts) == pytest.approx(compared["whole run"]["estimate"])
    traffic = [line for line in receipt["lines"] if line["kind"] == "egress"]
    assert {line["what"].rpartition(", ")[2] for line in traffic} == {"metered"}
    assert "equal one process in float64" in err
    assert "resources are gone, confirmed by an independent sweep" in out
    steps = [event["step"] for event in read_lines(run.folder / "logs" / "events.jsonl") if event["event"] == "step"]
    assert steps == list(range(1, STEPS + 1))


def test_an_interrupted_run_ends_with_the_loss_of_an_undisturbed_one(
    undisturbed: tuple[Up, int, str, str], tmp_path: Path
) -> None:
    run = start_up(tmp_path, steps=STEPS, every_s=0.5)
    run.wait_for(lambda folder: journal_has("checkpoint_saved")(folder) and has_trained(folder), "a checkpoint")
    victims = [found for found in processes.of_node(run.folder.name, "n1") if "sailor_runtime.agent" in found.command]
    assert victims
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    code, _, err = run.end()
    assert code == 0, err
    assert max(event["generation"] for event in read_lines(run.folder / "logs" / "events.jsonl") if "step" in event) > 1
    assert losses(run) == pytest.approx(losses(undisturbed[0]), rel=1e-5)
    assert_nothing_is_left(run.folder)


@pytest.mark.parametrize(
    ("moment", "condition"),
    [
        ("provisioning", journal_has("provision_started")),
        ("shipping", journal_has("deploy_started")),
        ("training", has_trained),
    ],
)
def test_ctrl_c_tears_down_and_exits_130(moment: str, condition: Callable[[Path], bool], tmp_path: Path) -> None:
    run = start_up(tmp_path, steps=LONG)
    run.wait_for(condition, moment)
    run.signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert "press Ctrl-C again" in err
    assert ("is saved in" in err) == (moment == "training")
    assert_nothing_is_left(run.folder)


def test_ctrl_c_at_the_question_buys_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path, steps=LONG)
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [str(COMMAND), "up", str(job), "--plan", str(tmp_path / "plan.json")],
        env={**os.environ, "SAILOR_CLOUD_HOME": str(tmp_path / "home")},
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.close(end)
    assert process.stderr is not None
    output = b""
    while b"Buy these nodes at " not in output and (more := os.read(process.stderr.fileno(), 4096)):
        output += more
    while process.poll() is None:
        # One that comes between the question and the wait for its answer is seen with the answer only.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
    output += process.communicate()[1]
    os.close(terminal)
    assert process.returncode == 130, output.decode()
    assert b"nothing was bought" in output
    assert not (tmp_path / "home" / "runs").exists()


def test_a_second_ctrl_c_leaves_a_run_that_down_finishes(tmp_path: Path) -> None:
    run = start_up(tmp_path, steps=LONG, command=warm("factories.quick_command"))
    run.wait_for(has_trained, "training")
    run.signal(signal.SIGINT)
    run.wait_for(journal_has("interrupted"), "its teardown")
    run.signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 1
    assert f"sailor-cloud down {run.folder.name}" in err
    assert f"'sailor-cloud resume {run.folder.name}' takes it over" in err
    assert sailor(tmp_path, "down", run.folder.name).returncode == 0
    assert_nothing_is_left(run.folder)
