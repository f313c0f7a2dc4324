"""A run on each fake cloud from confirmation to receipt: real Terraform, SSH, agents, training, and accidents."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories.crossings import TYPES, ZONES, undisturbed_losses, write_crossing
from factories.runs import read_lines
from factories.warm import COMMAND_LINE, warm
from factories.webhooks import Received, listener
from sailor_cloud.clock import SystemClock
from sailor_cloud.launch.telemetry.notify import URL_VARIABLE
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.mock_cloud import MockCloud

pytest_plugins = ["sailor_cloud.testing.pytest_plugin"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clouds"), pytest.mark.timeout(900)]
STEPS = 120
PATIENCE_S = 400.0


class CloudRun:
    """`sailor-cloud` on a fake cloud, in processes of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*warm(COMMAND_LINE), *arguments],
            env={**os.environ, "SAILOR_CLOUD_HOME": str(self.home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    @property
    def folder(self) -> Path:
        (folder,) = (self.home / "runs").iterdir()
        return folder

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_lines(self.folder / "logs" / "events.jsonl") if event["event"] == kind]

    def journal(self, kind: str) -> list[dict[str, Any]]:
        return [entry["data"] for entry in read_lines(self.folder / "journal.jsonl") if entry["event"] == kind]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + PATIENCE_S
        process = self.processes[-1]
        while time.monotonic() < until and process.poll() is None:
            if (self.home / "runs").is_dir() and any((self.home / "runs").iterdir()) and condition():
                return
            time.sleep(0.05)
        process.kill()
        raise AssertionError(f"never came to {what}:\n{process.communicate()[0]}")

    def end(self) -> tuple[int, str]:
        process = self.processes[-1]
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def cloud(request: pytest.FixtureRequest) -> MockCloud:
    found = request.getfixturevalue("mock_gcp" if request.param is Provider("gcp") else "mock_aws")
    assert isinstance(found, MockCloud)
    return found


@pytest.fixture(scope="module")
def losses_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[PlanDocument], dict[int, float]]:
    """Return what gives the losses of undisturbed training: those of one run, because the clouds' jobs train alike."""
    known: dict[int, float] = {}

    def of(document: PlanDocument) -> dict[int, float]:
        if not known:
            known.update(undisturbed_losses(tmp_path_factory.mktemp("alone") / "undisturbed", document))
        return known

    return of


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    """What a webhook is told, by whichever controller."""
    with listener() as (url, got):
        monkeypatch.setenv(URL_VARIABLE, url)
        yield got


def test_preempted_refused_and_orphaned_a_run_ends_with_the_loss_of_an_undisturbed_one(
    cloud: MockCloud, losses_of: Callable[[PlanDocument], dict[int, float]], told: Received, tmp_path: Path
) -> None:
    provider = cloud.provider
    job, plan = write_crossing(tmp_path, provider, steps=STEPS, project=cloud.project, image=cloud.image)
    losses = losses_of(PlanDocument.from_json(plan.read_bytes()))
    run = CloudRun(tmp_path / "home")
    run.home.mkdir()
    (run.home / "budgets.yaml").write_text(f'- {{project: "{cloud.project}", month: "*", usd: 10000}}')
    options = ("--plan", str(plan), "--yes", "--allow-stale", "--allow-doubtful", "--ssh-from", "203.0.113.7/32")
    run.start("up", str(job), *options)
    try:
        run.wait_for(lambda: bool(run.events("checkpoint")), "a checkpoint on both zones")
        assert set(cloud.billed()) == {"a100", "v100"}

        # Both nodes are taken away, and there are no more A100s anywhere.
        for zone in ZONES[provider]:
            cloud.run_out(zone, TYPES[provider][0])
        for node in ("a100", "v100"):
            cloud.preempt(node)
        run.wait_for(lambda: any(event["generation"] == 2 for event in run.events("step")), "a second generation")
        assert {tuple(row) for refused in run.journal("no_capacity") for row in refused["refused"]} <= {
            (TYPES[provider][0], "A100-40", zone, "spot") for zone in ZONES[provider]
        }
        assert run.journal("no_capacity")

        run.processes[-1].kill()
        run.processes[-1].communicate()
        run.start("resume", run.folder.name)
        code, output = run.end()
        assert code == 0, output
    finally:
        for process in run.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    _check(run, cloud, losses)
    if provider == "gcp":
        (book,) = (run.home / "budgets").glob("*.json")
        (reservation,) = json.loads(book.read_text())["reservations"]
        assert reservation["spent_usd"] == json.loads((run.folder / "receipt.json").read_text())["spent_usd"]
    assert sorted(body["event"] for _, body in told) == ["finished", "preempted", "started"]


def _check(run: CloudRun, cloud: MockCloud, losses: dict[int, float]) -> None:
    steps = run.events("step")
    assert steps[-1]["step"] == STEPS
    for event in steps:
        assert event["loss"] == pytest.approx(losses[event["step"]], rel=2e-4)
    assert len(run.journal("generation_started")) >= 2
    assert run.journal("nodes_lost")
    assert {name for decided in run.journal("replanned") for name in decided["lost"]} >= {"a100", "v100"}
    assert cloud.billed() == {}
    assert cloud.left_of(run.folder.name) == ()
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert receipt["outcome"] == "completed"
    assert all(row["gone_at"] for row in receipt["resources"])
    assert len([row for row in receipt["resources"] if row["type"] == "node"]) >= 3
    assert 0 < receipt["spent_usd"] < receipt["budget_usd"]
    assert Ledger(run.folder / "ledger.jsonl", SystemClock()).usd_per_hour() == 0, "nothing is paid for any more"
    _check_bill(receipt, gateways=cloud.provider is Provider("aws"))


def _check_bill(receipt: dict[str, Any], *, gateways: bool) -> None:
    """Everything that the run paid for has a line of its own, and the lines make up what was spent."""
    lines = receipt["lines"]
    assert sum(line["usd"] for line in lines) == pytest.approx(receipt["spent_usd"])
    kinds = {line["part"] for line in lines if line["unit"] == "h"}
    assert ("nat-gateway" in kinds) is gateways
    assert {"disk-balanced of 100 GiB", "public-address"} <= kinds
    assert not any(line["open"] for line in lines)
    traffic = [line for line in lines if line["kind"] == "egress"]
    assert all(line["quantity"] > 0 for line in traffic)
    # A generation may end before anybody has looked a second time.
    assert any("metered" in line["what"] for line in traffic), traffic
    parts = [row for row in receipt["comparisons"] if row["unit"] == "USD" and not row["what"].startswith("whole run")]
    assert sum(row["actual"] for row in parts) == pytest.approx(receipt["spent_usd"])
