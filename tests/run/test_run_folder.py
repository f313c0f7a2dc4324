"""The folder of a run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.documents import document
from sailor_cloud.clock import FixedClock
from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import RequestError
from sailor_cloud.run.folder import RunFolder, RunLockedError, new_run_id, resource_name

CLOCK = FixedClock(datetime(2026, 11, 21, 5, 13, 13, tzinfo=UTC))

HOLD = """
import sys
from pathlib import Path
from sailor_cloud.run.folder import RunFolder
with RunFolder(run_id="held", path=Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_run_id_names_the_job_the_time_and_a_suffix() -> None:
    assert new_run_id("opt-350m", clock=CLOCK, suffix="a1b2") == "opt-350m-20261121-051313-a1b2"


def test_two_runs_of_the_same_second_differ() -> None:
    assert len({new_run_id("job", clock=CLOCK) for _ in range(20)}) > 1


def test_resource_names_repeat_for_a_run_and_fit_every_cloud() -> None:
    long_run = new_run_id("j" * 40, clock=CLOCK, suffix="a1b2")
    assert resource_name(long_run, "n0") == resource_name(long_run, "n0")
    assert resource_name(long_run, "n0") != resource_name(new_run_id("j" * 40, clock=CLOCK, suffix="a1b3"), "n0")
    assert len(resource_name(long_run, "n249")) < 63


def test_everything_in_the_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path / "runs")
        folder.write_document(document())
        with folder.lock():
            modes = {entry.relative_to(folder.path): mode(entry) for entry in folder.path.rglob("*")}
    finally:
        os.umask(previous)
    assert mode(folder.path) == 0o700
    assert {path.name for path in modes} >= {"plan.json", "lock", "logs", "results", "checkpoints", "nodes"}
    for path, bits in modes.items():
        assert bits == (0o700 if (folder.path / path).is_dir() else 0o600), path


def test_a_run_is_created_once(tmp_path: Path) -> None:
    RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    with pytest.raises(RequestError, match="run 'job-20261121-051313-a1b2' exists already in"):
        RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)


def test_runs_are_listed_by_age_whatever_their_jobs_are_called(tmp_path: Path) -> None:
    for name in ("b-20261121-000000-0001", "a-20261122-000000-0001", "c-20261120-235959-0001"):
        RunFolder.create(name, root=tmp_path)
    assert [folder.run_id[0] for folder in RunFolder.list(root=tmp_path)] == ["c", "b", "a"]
    assert RunFolder.list(root=tmp_path / "none") == ()


def test_a_run_opens_by_a_beginning_that_fits_it_alone(tmp_path: Path) -> None:
    for name in ("job-20261121-000000-0001", "job-20261122-000000-0001"):
        RunFolder.create(name, root=tmp_path)
    assert RunFolder.open("job-20261122", root=tmp_path).run_id == "job-20261122-000000-0001"
    with pytest.raises(RequestError, match="'job' begins the names of 2 runs"):
        RunFolder.open("job", root=tmp_path)


def test_a_beginning_that_fits_one_unfinished_run_alone_is_enough_to_continue_it(tmp_path: Path) -> None:
    ended, other = (RunFolder.create(f"job-2026112{day}-000000-0001", root=tmp_path) for day in (1, 2))
    ended.receipt_file.touch()
    assert RunFolder.open("job", root=tmp_path, unfinished=True).run_id == other.run_id
    assert RunFolder.open(ended.run_id, root=tmp_path, unfinished=True).run_id == ended.run_id
    with pytest.raises(RequestError, match="'job' begins the names of 2 runs"):
        RunFolder.open("job", root=tmp_path)


def test_an_unknown_run_names_the_one_that_may_be_meant(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"there is no run 'jab'; .* holds none"):
        RunFolder.open("jab", root=tmp_path)
    RunFolder.create("job-20261121-000000-0001", root=tmp_path)
    with pytest.raises(RequestError, match="did you mean job-20261121-000000-0001"):
        RunFolder.open("jop-20261121-000000-0001", root=tmp_path)


def test_a_run_is_found_in_the_home_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))
    folder = RunFolder.create("job-20261121-000000-0001")
    assert folder.path == tmp_path / "home" / "runs" / "job-20261121-000000-0001"
    assert RunFolder.list() == (folder,)


def test_a_home_relative_to_the_working_folder_gives_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAILOR_CLOUD_HOME", "home")
    assert RunFolder.create("job-20261121-000000-0001").path == tmp_path / "home" / "runs" / "job-20261121-000000-0001"


def test_the_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder.create("job-20261121-000000-0001", root=tmp_path)
    with pytest.raises(RequestError, match="has no plan"):
        folder.read_document()
    folder.write_document(document())
    assert folder.read_document() == document()


def test_a_failed_write_leaves_the_old_text_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    write_atomically(target, "old")

    def broken(source: object, destination: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@contextlib.contextmanager
def held_elsewhere(folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lock of a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield other


def test_the_lock_names_the_process_that_holds_it_and_falls_with_it(tmp_path: Path) -> None:
    folder = RunFolder.create("held", root=tmp_path)
    with held_elsewhere(folder) as other:
        with pytest.raises(RunLockedError, match=f"held by process {other.pid} .*kill -INT {other.pid}"), folder.lock():
            pytest.fail("two processes hold the run")
        holder = folder.lock_holder()
        assert holder is not None
        assert holder.pid == other.pid
        other.kill()
    assert folder.lock_holder() is None
    with folder.lock():
        own = folder.lock_holder()
        assert own is not None
        assert own.pid == os.getpid()


def test_a_free_run_has_no_holder(tmp_path: Path) -> None:
    folder = RunFolder.create("free", root=tmp_path)
    assert folder.lock_holder() is None
    with folder.lock():
        pass
    assert folder.lock_holder() is None


def test_a_folder_that_can_not_be_made_names_itself_and_what_decides_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"can't make .*/file/runs/job-1: Not a directory; SAILOR_CLOUD_HOME names"):
        RunFolder.create("job-1", root=tmp_path / "file" / "runs")


@pytest.mark.parametrize("name", ["journal.jsonl", "plan.json", "lock", "terraform/gcp-x/terraform.tfstate"])
@pytest.mark.parametrize("kind", ["FIFO", "socket", "device"])
def test_a_non_file_is_named_and_never_opened(tmp_path: Path, name: str, kind: str) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    place = folder.path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "FIFO":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(place.parent):
            listening.bind(place.name)
    else:
        place.symlink_to("/dev/zero")
    other = RunFolder.create("other-20261121-051313-a1b2", root=tmp_path)
    then = f"then 'sailor-cloud down {folder.run_id}' and the other commands work again"
    message = f"{place} is not a file but a FIFO, a socket or a device; delete it, {then}"
    for look in (lambda: RunFolder.open("job", root=tmp_path), lambda: RunFolder.list(root=tmp_path)):
        with pytest.raises(RequestError) as caught:
            look()
        assert str(caught.value) == message
    assert RunFolder.open("other", root=tmp_path) == other
    assert RunFolder.list(root=tmp_path, checked=False) == (folder, other)
    place.unlink()
    assert RunFolder.list(root=tmp_path) == (folder, other)


def test_nodes_may_keep_what_they_like_in_their_own_folders(tmp_path: Path) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    folder.node_dir("n0").mkdir()
    os.mkfifo(folder.node_dir("n0") / "agent.pipe")
    assert RunFolder.open("job", root=tmp_path) == folder


@pytest.mark.parametrize(
    "name", ["journal.jsonl", "plan.json", "logs/events.jsonl", "terraform/gcp-x/terraform.tfstate"]
)
def test_a_huge_file_is_named_and_never_read(tmp_path: Path, name: str) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    place = folder.path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()
    os.truncate(place, 2**40)
    with pytest.raises(RequestError, match=rf"{place} is larger than 1 GiB; delete it, then 'sailor-cloud down"):
        RunFolder.open("job", root=tmp_path)
    os.truncate(place, 2**20)
    assert RunFolder.open("job", root=tmp_path) == folder


def test_logs_may_be_as_large_as_ranks_write_them(tmp_path: Path) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    log = folder.logs_dir / "n0" / "g1-rank0.log"
    log.parent.mkdir()
    log.touch()
    os.truncate(log, 2**35)
    (log.parent / "newest.log").symlink_to(log.name)
    # The shared folder of a cluster was removed.
    (folder.logs_dir / "n1").symlink_to(tmp_path / "shared" / "n1" / "logs", target_is_directory=True)
    assert RunFolder.open("job", root=tmp_path) == folder


@pytest.mark.parametrize("name", ["lock", "journal.jsonl", "reserve", "receipt.json"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_link_out_of_the_folder_is_named_and_never_followed(tmp_path: Path, name: str, exists: bool) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path / "runs")
    own = tmp_path / "own.txt"
    if exists:
        own.write_text("mine")
    (folder.path / name).symlink_to(own)
    message = f"{folder.path / name} is a link that leads out of the run's folder; delete it, then"
    with pytest.raises(RequestError, match=re.escape(message)):
        RunFolder.open("job", root=tmp_path / "runs")
    assert own.exists() is exists
    (folder.path / name).unlink()
    assert RunFolder.open("job", root=tmp_path / "runs") == folder


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells whether a process is stopped")
def test_a_stopped_holder_is_named_as_such(tmp_path: Path) -> None:
    folder = RunFolder.create("held", root=tmp_path)
    with held_elsewhere(folder) as other:
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        message = rf"it is stopped, as by Ctrl-Z; 'kill -CONT {other.pid}' continues it, 'kill -INT {other.pid}; kill"
        try:
            with pytest.raises(RunLockedError, match=message), folder.lock():
                pass
        finally:
            other.send_signal(signal.SIGCONT)
        with pytest.raises(RunLockedError, match="wait for it or interrupt it"), folder.lock():
            pass
        other.communicate()


def test_a_clusters_node_may_keep_what_it_likes_below_its_own_folder(tmp_path: Path) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    node = folder.cluster_dir / "n0"
    for name in ("logs", "code/0a1b", "packages/bin"):
        (node / name).mkdir(parents=True)
    # The packages of a command are a virtual environment, whose Python is a link.
    (node / "packages" / "bin" / "python3").symlink_to(sys.executable)
    (node / "code" / "0a1b" / "data").symlink_to(tmp_path / "data")
    for name in ("logs/g1-rank0.log", "code/0a1b/result.bin"):
        (node / name).touch()
        os.truncate(node / name, 2**40)
    assert RunFolder.open("job", root=tmp_path) == folder
    os.mkfifo(node / "agent.jsonl")
    with pytest.raises(RequestError, match=rf"{node / 'agent.jsonl'} is not a file but a FIFO"):
        RunFolder.open("job", root=tmp_path)


def test_a_link_to_itself_hides_no_run(tmp_path: Path) -> None:
    folder = RunFolder.create("job-20261121-051313-a1b2", root=tmp_path)
    (folder.path / "reserve").symlink_to("reserve")
    assert RunFolder.open("job", root=tmp_path) == folder
