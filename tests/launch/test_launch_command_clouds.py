"""A user's command on each fake cloud: a notice reaches it on every node, and it continues where it was on others."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from factories.runs import read_lines
from factories.warm import COMMAND_LINE, warm
from sailor_cloud.clock import SystemClock
from sailor_cloud.model.offer import Provider
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.mock_cloud import MockCloud

pytest_plugins = ["sailor_cloud.testing.pytest_plugin"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clouds"), pytest.mark.timeout(600)]
PATIENCE_S = 300.0
# What the environment of `up` holds for others, and no file of a run or a node may.
SECRET = "hush-5f1c2b"
SECRETS = {"WANDB_API_KEY": SECRET, "SAILOR_CLOUD_WEBHOOK_TOKEN": SECRET, "MLFLOW_TRACKING_PASSWORD": SECRET}
ZONES = {Provider("gcp"): ("us-central1-a", "us-central1-b"), Provider("aws"): ("use1-az1", "use1-az2")}
TYPE = {Provider("gcp"): "n1-standard-8", Provider("aws"): "p3.2xlarge"}

COUNTER = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(os.environ["SAILOR_CHECKPOINTS"])
found = sorted(folder.glob("count-*"), key=lambda path: int(path.name.split("-")[1]))
first = int(found[-1].read_text()) if found else 0
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
for step in range(first + 1, int(sys.argv[1]) + 1):
    time.sleep(0.05)
    print(json.dumps({"step": step, "loss": 1.0 / step, "tokens": 100}))
    # The nodes count by themselves: only one of them may say how far the run is.
    if os.environ["NODE_RANK"] == "0" and (step % 20 == 0 or leaving):
        (folder / "next.tmp").write_text(str(step))
        (folder / "next.tmp").rename(folder / f"count-{step}")
    if leaving:
        print("told to end on node", os.environ["NODE_RANK"], "with", os.environ["SAILOR_GRACE_S"], "s")
        sys.exit(0)
"""


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def cloud(request: pytest.FixtureRequest) -> MockCloud:
    found = request.getfixturevalue("mock_gcp" if request.param is Provider("gcp") else "mock_aws")
    assert isinstance(found, MockCloud)
    return found


def write(home: Path, cloud: MockCloud, steps: int) -> Path:
    (home / "work").mkdir()
    (home / "work" / "train.py").write_text(COUNTER)
    account = {"gcp": {"project": cloud.project}} if cloud.provider is Provider("gcp") else {"image": cloud.image}
    job = {
        "name": "counting",
        "run": f"python3 train.py {steps}",
        "workdir": "work",
        "processes_per_node": 1,
        "training": {"steps": steps},
        "constraints": {"budget_usd": 60, "deadline": "2h"},
        "resources": [
            {
                "provider": str(cloud.provider),
                "zones": list(ZONES[cloud.provider]),
                "markets": ["spot"],
                "accelerators": {"V100-16": 2},
                "instance_types": [TYPE[cloud.provider]],
            }
        ],
        "cloud": {"owner": "me@example.org", **account},
    }
    path = home / "job.yaml"
    path.write_text(json.dumps(job))
    return path


def holding_secrets(*folders: Path) -> list[Path]:
    every = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(every) > 10
    found = []
    for path in every:
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if SECRET.encode() in path.read_bytes():
                found.append(path)
    return found


def test_a_notice_ends_the_command_on_every_node_and_it_continues_without_a_step_lost(
    cloud: MockCloud, tmp_path: Path
) -> None:
    job, home, steps = write(tmp_path, cloud, 300), tmp_path / "home", 300
    process = subprocess.Popen(
        [
            *warm(COMMAND_LINE),
            "up",
            str(job),
            "--yes",
            "--allow-stale",
            "--allow-doubtful",
            "--ssh-from",
            "203.0.113.7/32",
        ],
        env={**os.environ, **SECRETS, "SAILOR_CLOUD_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def lines(name: str, event: str) -> list[dict[str, Any]]:
        found = list((home / "runs").iterdir()) if (home / "runs").is_dir() else []
        return [line for folder in found for line in read_lines(folder / name) if line["event"] == event]

    def wait_for(condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and process.poll() is None and not condition():
            time.sleep(0.05)
        assert condition(), process.communicate()[0] if process.poll() is not None else "too slow"

    try:
        wait_for(lambda: bool(lines("logs/events.jsonl", "checkpoint")))
        zones = {name.rsplit("-v100", 1)[0] for name in cloud.billed()}
        assert len(zones) == 1, "without a model all nodes stand in one zone"
        cloud.announce_preemption(sorted(cloud.billed())[-1])
        wait_for(lambda: any(event["generation"] == 2 for event in lines("logs/events.jsonl", "step")))
        assert not holding_secrets(home, cloud.machines)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, output
    assert SECRET not in output
    assert not holding_secrets(home, cloud.machines)
    assert "asking the command to end" in output
    [folder] = (home / "runs").iterdir()
    told = [event["step"] for event in lines("logs/events.jsonl", "step")]
    assert told == list(range(1, steps + 1)), "every step once"
    for rank in (0, 1):
        logs = [path.read_text() for path in folder.glob(f"logs/*/g1-rank{rank}.log")]
        assert all(f"told to end on node {rank} with 20 s" in text for text in logs)
    assert cloud.billed() == {}
    assert cloud.left_of(folder.name) == (), output
    # The run's own bucket is gone, and what it held is here.
    assert (folder / "checkpoints" / f"count-{steps}").read_text() == str(steps)
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["outcome"] == "completed"
    assert 0 < receipt["spent_usd"] < receipt["budget_usd"]
    assert sum(line["usd"] for line in receipt["lines"]) == pytest.approx(receipt["spent_usd"])
    assert {"checkpoints kept, metered", "writing checkpoints, metered"} <= {line["part"] for line in receipt["lines"]}
    assert Ledger(folder / "ledger.jsonl", SystemClock()).usd_per_hour() == 0
