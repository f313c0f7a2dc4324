"""On fake clouds: results are saved before their bucket goes, no secret leaves its place, no stranger gets a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncssh
import pytest

from factories.quick_clouds import OPTIONS, cloud_plan, quick_cloud_run
from factories.quick_runs import CLOCK, QuickRun, journal, trained
from sailor_cloud.clock import SystemClock
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.results import Fetch
from sailor_cloud.launch.telemetry.notify import TOKEN_VARIABLE, URL_VARIABLE
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.options import Ending
from sailor_cloud.run.receipt import Receipt
from sailor_cloud.testing.mock_cloud import MockCloud

pytest_plugins = ["sailor_cloud.testing.pytest_plugin"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clouds")]
PLANTED = "planted-secret-5c27e1"
SECRETS = (TOKEN_VARIABLE, "AWS_SECRET_ACCESS_KEY", "GOOGLE_OAUTH_ACCESS_TOKEN", "TF_VAR_password")
STEPS = 40


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def cloud(request: pytest.FixtureRequest) -> MockCloud:
    found = request.getfixturevalue("mock_gcp" if request.param is Provider("gcp") else "mock_aws")
    assert isinstance(found, MockCloud)
    return found


@pytest.fixture
def run(cloud: MockCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    # As the command line does before it writes anything.
    before = os.umask(0o077)
    with quick_cloud_run(tmp_path / "home", monkeypatch) as started:
        yield started
    os.umask(before)


def holding(folder: Path, secret: str) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and secret.encode() in path.read_bytes():
                found.append(path)
        except OSError:
            continue
    return found


def arguments() -> str:
    """Return the arguments of every process of this machine."""
    texts = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]


def assert_saved(folder: RunFolder, cloud: MockCloud, receipt: Receipt) -> None:
    """The trained model is on this disk, whole, and nothing of the run is in the cloud."""
    assert (folder.checkpoints_dir / "latest").read_text() == f"step-{STEPS}"
    assert (folder.checkpoints_dir / f"step-{STEPS}" / "__0_0").read_text() == f"weights of step {STEPS}"
    assert (receipt.outcome, receipt.clean, receipt.kept) == ("completed", True, ())
    assert cloud.left_of(folder.run_id) == ()
    assert not cloud.store.exists(resource_name(folder.run_id, "data"))


def test_results_are_fetched_and_no_secret_is_anywhere_but_in_its_place(
    run: QuickRun, cloud: MockCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:9/{PLANTED}")
    for name in SECRETS:
        monkeypatch.setenv(name, PLANTED)
    run.start(cloud_plan(cloud, steps=STEPS), options=OPTIONS)
    folder = run.wait_for(trained(5), "training")
    key = folder.ssh_key_file.read_text().splitlines()[1]
    for secret in (PLANTED, key):
        assert secret not in arguments()
        # What the provider was asked for: user data, metadata, tags.
        assert secret not in str(cloud.cloud.resources)
        assert holding(cloud.machines, secret) == []
    assert holding(folder.path, PLANTED) == []
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert_saved(folder, cloud, outcome.receipt)
    (fetched,) = (line for line in outcome.receipt.lines if line.key.startswith("results"))
    assert fetched.usd > 0
    assert "the trained model is in" in run.notes.text
    assert holding(run.home, PLANTED) == []
    assert holding(run.home, key) == [folder.ssh_key_file]
    assert open_to_others(run.home) == []


class Died(BaseException):
    """The controller is gone at this moment."""


def test_a_crash_between_results_and_the_end_of_their_bucket_loses_nothing_and_leaves_nothing(
    run: QuickRun, cloud: MockCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, called = Fetch._copied, Fetch.__call__

    def dies_before_it_is_written_down(self: Fetch, *details: object) -> str:
        copied(self, *details)  # type: ignore[arg-type]
        raise Died

    def dies_afterwards(self: Fetch) -> None:
        called(self)
        raise Died

    monkeypatch.setattr(Fetch, "_copied", dies_before_it_is_written_down)
    run.start(cloud_plan(cloud, steps=STEPS), options=OPTIONS)
    with pytest.raises(Died):
        pytest.fail(f"the results were not fetched: {run.end().message}\n{run.notes.text}")
    folder = run.folder
    assert folder is not None
    assert cloud.billed() == {}, "nodes go first, and cost nothing while results are fetched"
    assert cloud.store.of(resource_name(folder.run_id, "data"))

    monkeypatch.setattr(Fetch, "_copied", copied)
    monkeypatch.setattr(Fetch, "__call__", dies_afterwards)
    with pytest.raises(Died):
        take_down(folder, clock=CLOCK)
    assert cloud.store.exists(resource_name(folder.run_id, "data"))
    assert [entry["data"].get("checkpoint") for entry in journal(folder, "results_fetched")][-1] == f"step-{STEPS}"

    monkeypatch.setattr(Fetch, "__call__", called)
    assert_saved(folder, cloud, take_down(folder, clock=CLOCK))


def test_an_unknown_host_at_a_node_s_address_gets_nothing(run: QuickRun, cloud: MockCloud) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()

    def tamper(kind: str, name: str) -> None:
        if kind in ("google_compute_instance", "aws_instance"):
            cloud.cloud.update(kind, name, {**cloud.cloud.resources[kind, name], "host_public_key": other})

    cloud.on_create(tamper)
    run.start(cloud_plan(cloud, steps=STEPS), options=OPTIONS)
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "shows another host key than the one recorded for it; nothing was sent to it" in outcome.message
    assert run.folder is not None
    assert journal(run.folder, "generation_started") == []
    assert cloud.left_of(run.folder.run_id) == ()


def test_a_controller_whose_clock_is_an_hour_ahead_counts_by_the_clouds(
    run: QuickRun, cloud: MockCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda self: datetime.now(UTC) + timedelta(hours=1))
    run.start(cloud_plan(cloud, steps=STEPS), options=OPTIONS)
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert "ahead of the cloud's; the cloud's is used" in run.notes.text
    assert run.folder is not None
    (compared,) = journal(run.folder, "clock_compared")
    assert compared["data"]["ahead_s"] == pytest.approx(3600, abs=2)
    times = [outcome.receipt.written_at, *(row.gone_at for row in outcome.receipt.resources if row.gone_at)]
    assert all(abs(datetime.now(UTC) - at) < timedelta(minutes=5) for at in times)
    (started,) = journal(run.folder, "provision_started")
    assert datetime.fromisoformat(started["data"]["expires_at"]) < datetime.now(UTC) + timedelta(hours=1)


def test_a_run_whose_folder_is_lost_is_still_removed_by_its_controller(
    run: QuickRun, cloud: MockCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "_SETTLE_S", 0.0)
    run.start(cloud_plan(cloud, steps=100_000), options=OPTIONS)
    folder = run.wait_for(trained(5), "training")
    assert cloud.left_of(folder.run_id) != ()
    # As if its disk were no longer mounted.
    folder.path.rename(run.home.parent / "lost")
    outcome = run.end()
    assert outcome.ending is Ending.FAILED
    # The bucket has checkpoints, which nobody has fetched.
    left = {kind for kind, _ in cloud.cloud.owned_by(folder.run_id)}
    assert left <= {"google_storage_bucket", "aws_s3_bucket"}, left
    assert not outcome.receipt.clean
