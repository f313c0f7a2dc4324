"""What is left of runs is found on both clouds, and deleted only where no live run owns it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from factories.cloud_runs import INSTANCE, PROJECT, CloudRun, cloud_run, waited
from factories.local_runs import CLOCK, LocalRun, local_run, started
from sailor_cloud.cli.main import cli
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch import down
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes
from sailor_cloud.provision.cleanup import reap
from sailor_cloud.provision.cleanup.reap import FoundLeftovers, Leftover, find_leftovers, remove_foreign
from sailor_cloud.provision.live_resources import LiveResource, Scopes
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.providers.local.sweep import sweep_without_folder
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.provision.terraform.progress import ProvisionInterrupted
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import Failure


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudRun]:
    with cloud_run(Provider(request.param), tmp_path / "runs") as made:
        yield made


def where(run: CloudRun) -> Scopes:
    if run.provider is Provider("gcp"):
        return scopes_named("project", [PROJECT])
    return scopes_named("region", ["us-east-1"])


def names(found: FoundLeftovers) -> tuple[list[str], list[str]]:
    return [leftover.run_id for leftover in found.reapable], [leftover.run_id for leftover in found.live]


def test_a_run_whose_controller_works_is_left_alone_and_one_whose_controller_died_is_found(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    folders = [run.run.folder]
    with run.run.folder.lock():
        assert names(find_leftovers(folders, clock=CLOCK)) == ([], [run.run.run_id])
    found = find_leftovers(folders, clock=CLOCK)
    assert names(found) == ([run.run.run_id], [])
    (leftover,) = found.reapable
    assert "no controller has worked on it" in leftover.why
    assert leftover.owner.lower().startswith("me")
    assert {resource.run_id for resource in leftover.resources} == {run.run.run_id}
    lately = find_leftovers(folders, clock=CLOCK, older_than=timedelta(hours=1))
    assert names(lately) == ([], [run.run.run_id])


def test_a_run_of_another_machine_is_left_alone_until_it_has_expired(run: CloudRun) -> None:
    applied_or_raise(run.apply())
    now = datetime.now(UTC)
    assert names(find_leftovers([], clock=CLOCK, scopes=where(run))) == ([], [run.run.run_id])
    old = find_leftovers([], clock=CLOCK, scopes=where(run), older_than=timedelta(0))
    assert names(old) == ([run.run.run_id], [])
    later = FixedClock(now + timedelta(hours=2))
    found = find_leftovers([], clock=later, scopes=where(run))
    assert names(found) == ([run.run.run_id], [])
    (leftover,) = found.reapable
    assert (leftover.folder, "expired" in leftover.why) == (None, True)

    # Clouds need a while, and may not answer at once.
    message = {Provider("gcp"): "sorry", Provider("aws"): "api error InternalError: sorry"}[run.provider]
    run.cloud.failures.append(Failure(type=INSTANCE[run.provider], message=message, operation="delete", times=1))
    pause = waited()
    assert remove_foreign(leftover, pause=pause) == ()
    assert run.cloud.owned_by(run.run.run_id) == ()
    assert set(run.cloud.resources) == run.foreign


def test_nothing_without_a_tag_of_a_run_is_found(run: CloudRun) -> None:
    found = find_leftovers([], clock=FixedClock(datetime(2030, 1, 1, tzinfo=UTC)), scopes=where(run))
    assert found == FoundLeftovers(reapable=(), live=(), problems=())


def left_by(run: LocalRun) -> Leftover:
    found = LiveResource(provider="gcp", region="r", type="t", name="x", run_id=run.run_id, project=PROJECT)
    return Leftover(run_id=run.run_id, folder=run.folder, resources=(found,), owner="", why="left")


def test_resources_left_by_a_receipt_are_reported_whether_found_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = SimpleNamespace(
        left=(
            SimpleNamespace(type="disk", name="there", found=True),
            SimpleNamespace(type="disk", name="unsure", found=False),
        ),
        unanswered=(),
    )
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    with local_run(tmp_path / "runs") as run:
        monkeypatch.setattr(
            reap, "find_leftovers", lambda *a, **o: FoundLeftovers(reapable=(left_by(run),), live=(), problems=())
        )
        monkeypatch.setattr(reap, "deletion_problems", lambda leftover: ())
        monkeypatch.setattr(down, "take_down", lambda *a, **o: receipt)
        done = CliRunner().invoke(cli, ["reap", "--yes"], standalone_mode=False)
    assert done.return_value == 1
    assert f"problem: {run.run_id}: still there: disk there" in done.output
    assert f"problem: {run.run_id}: not confirmed as gone: disk unsure" in done.output
    assert "deleted (verified" not in done.output


def test_ctrl_c_deletes_no_further_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def interrupted(folder: RunFolder, **options: object) -> None:
        begun.append(folder.run_id)
        raise ProvisionInterrupted("interrupted")

    monkeypatch.setattr(down, "take_down", interrupted)
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    with local_run(tmp_path / "runs") as first, local_run(tmp_path / "runs") as second:
        found = FoundLeftovers(reapable=(left_by(first), left_by(second)), live=(), problems=())
        monkeypatch.setattr(reap, "find_leftovers", lambda *a, **o: found)
        done = CliRunner().invoke(cli, ["reap", "--yes"])
        assert isinstance(done.exception, ProvisionInterrupted)
        assert done.exception.exit_code == 130
        assert begun == [first.run_id]
        done = CliRunner().invoke(cli, ["down", first.run_id])
        assert isinstance(done.exception, ProvisionInterrupted)
        assert f"'sailor-cloud down {first.run_id}' continues with it" in done.output


def test_the_command_deletes_after_confirmation_and_reports_what_it_leaves(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(run.run.folder.path.parent.parent))
    applied_or_raise(run.apply())
    runner = CliRunner()
    asked = runner.invoke(cli, ["reap"])
    assert asked.exit_code != 0
    assert run.run.run_id in asked.output
    assert run.nodes() == ["n0", "n1"]
    with run.run.folder.lock():
        kept = runner.invoke(cli, ["reap", "--yes"])
    assert "left alone: process" in kept.output
    assert "nothing to delete" in kept.output
    assert run.nodes() == ["n0", "n1"]
    done = runner.invoke(cli, ["reap", "--yes"])
    assert done.exit_code == 0, done.output
    assert "deleted (verified by a second query)" in done.output
    assert run.cloud.owned_by(run.run.run_id) == ()
    assert set(run.cloud.resources) == run.foreign
    assert run.run.folder.receipt_file.is_file()
    assert runner.invoke(cli, ["reap", "--json"]).exit_code == 0


def test_the_command_does_not_call_a_cloud_empty_that_refuses_it(
    run: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(run.run.folder.path.parent.parent))
    applied_or_raise(run.apply())
    api = serve_compute if run.provider is Provider("gcp") else serve_ec2
    with api(run.cloud, refused=True) as reach, in_environment(reach):
        done = CliRunner().invoke(cli, ["reap", "--yes"], standalone_mode=False)
    assert done.return_value == 1
    assert "nothing found to delete, but not every place has answered" in done.output
    assert "refused to list resources" in done.output
    assert run.nodes() == ["n0", "n1"]


def test_nodes_of_this_machine_are_found_without_the_folder_of_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_run(tmp_path / "mine" / "runs") as lost, local_run(tmp_path / "theirs" / "runs") as foreign:
        for one in (lost, foreign):
            started(one.folder)
            shutil.rmtree(one.folder.path)
        monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "mine"))
        assert names(find_leftovers([], clock=CLOCK, older_than=timedelta(hours=1))) == ([], [lost.run_id])
        until_expiry = find_leftovers([], clock=CLOCK)
        assert names(until_expiry) == ([], [lost.run_id])
        assert "its folder is gone; ends by itself at 20" in until_expiry.live[0].why
        found = find_leftovers([], clock=FixedClock(datetime.now(UTC) + timedelta(hours=1)))
        assert names(found) == ([lost.run_id], [])
        (leftover,) = found.reapable
        assert leftover.why == "of this machine, and its folder is gone"
        assert {resource.node for resource in leftover.resources} == {"n0"}
        assert CliRunner().invoke(cli, ["reap", "--yes"], standalone_mode=False).return_value == 0
        assert processes.of_run(lost.run_id)
        reap_all = ["reap", "--older-than", "0s", "--yes"]
        assert CliRunner().invoke(cli, reap_all, standalone_mode=False).return_value == 0
        assert processes.of_run(lost.run_id) == ()
        assert processes.of_run(foreign.run_id)
        assert names(find_leftovers([], clock=CLOCK)) == ([], [])


def test_nodes_of_a_renamed_run_are_left_alone(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with local_run(runs) as one:
        started(one.folder)
        one.folder.path.rename(runs / "mine")
        assert sweep_without_folder(runs) == ()
        shutil.rmtree(runs / "mine")
        assert sweep_without_folder(runs)


def test_a_run_is_not_called_gone_whose_disk_or_container_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    with local_run(runs) as one:
        started(one.folder)
        shutil.rmtree(one.folder.path)
        assert sweep_without_folder(runs)
        with monkeypatch.context() as container:
            container.setattr(processes, "_link", lambda name: "mnt:[1]" if name == "self/ns/mnt" else "mnt:[2]")
            assert sweep_without_folder(runs) == ()
        runs.rename(tmp_path / "unmounted")
        assert sweep_without_folder(runs) == ()


def test_a_fifo_in_one_run_s_folder_hides_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    with local_run(tmp_path / "runs") as good, local_run(tmp_path / "runs") as bad:
        started(good.folder)
        started(bad.folder)
        os.mkfifo(bad.folder.logs_dir / "pipe")
        done = CliRunner().invoke(cli, ["reap", "--yes"], standalone_mode=False)
        assert done.return_value == 1
        assert f"{bad.folder.logs_dir / 'pipe'} is not a file" in done.output
        assert processes.of_run(good.run_id) == ()
        assert processes.of_run(bad.run_id)
