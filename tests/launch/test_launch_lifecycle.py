from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from factories.runs import (
    assert_nothing_is_left,
    has_trained,
    journal_has,
    read_lines,
    sailor,
    start_up,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lifecycle")]

LONG = 100_000


def test_a_run_trains_to_its_end_and_leaves_a_receipt(tmp_path: Path) -> None:
    run = start_up(tmp_path, steps=12)
    code, out, err = run.end()
    assert code == 0, err
    assert_nothing_is_left(run.folder)
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert receipt["outcome"] == "completed"
    assert 0 < receipt["spent_usd"] < 1.0
    assert len(receipt["resources"]) == 2
    compared = {row["what"]: row for row in receipt["comparisons"]}
    assert compared["iteration, as planned"]["actual"] == compared["iteration, as calibrated"]["actual"] > 0
    assert "equal one process in float64" in err
    assert "resources are gone, confirmed by an independent sweep" in out
    steps = [event["step"] for event in read_lines(run.folder / "logs" / "events.jsonl") if event["event"] == "step"]
    assert steps == list(range(1, 13))


@pytest.mark.parametrize(
    ("moment", "condition"),
    [("provisioning", journal_has("provision_started")), ("training", has_trained)],
)
def test_ctrl_c_tears_down_and_exits_130(moment: str, condition: Callable[[Path], bool], tmp_path: Path) -> None:
    run = start_up(tmp_path, steps=LONG)
    run.wait_for(condition, moment)
    run.signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert "press Ctrl-C again" in err
    assert_nothing_is_left(run.folder)


def test_a_second_ctrl_c_leaves_a_run_that_down_finishes(tmp_path: Path) -> None:
    run = start_up(tmp_path, steps=LONG)
    run.wait_for(has_trained, "training")
    run.signal(signal.SIGINT)
    run.wait_for(journal_has("interrupted"), "its teardown")
    run.signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 1
    assert f"sailor-cloud down {run.folder.name}" in err
    assert sailor(tmp_path, "down", run.folder.name).returncode == 0
    assert_nothing_is_left(run.folder)
