"""No secret leaves its place, nobody answers in a node's name, and nobody else can read or change a run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from factories.quick_runs import CLOCK, QuickRun, journal, planned, quick_run, trained
from factories.runs import assert_nothing_is_left
from sailor_cloud.durable import write_atomically
from sailor_cloud.launch.fleet import ssh
from sailor_cloud.launch.telemetry.notify import TOKEN_VARIABLE, URL_VARIABLE
from sailor_cloud.launch.watch import log_reader
from sailor_cloud.launch.watch.log_reader import Selection, show_logs
from sailor_cloud.launch.watch.status import WatchedRuns
from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local.spec import VmInfo
from sailor_cloud.report.run.dashboard import Dashboard
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.history import past_runs
from sailor_cloud.run.options import Ending

pytestmark = pytest.mark.slow
PLANTED = "planted-secret-8d1f0a"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    with quick_run(tmp_path, monkeypatch) as started:
        yield started


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def holding(folder: Path, secret: bytes) -> list[Path]:
    return [path for path in files_below(folder) if secret in path.read_bytes()]


def test_no_secret_is_in_files_logs_state_or_arguments(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://127.0.0.1:9/{PLANTED}")
    for name in (TOKEN_VARIABLE, "AWS_SECRET_ACCESS_KEY", "GOOGLE_OAUTH_ACCESS_TOKEN", "TF_VAR_password"):
        monkeypatch.setenv(name, PLANTED)
    run.start(planned(steps=60))
    folder = run.wait_for(trained(5), "training")
    key = folder.ssh_key_file.read_bytes().splitlines()[1]
    for process in processes.of_run(folder.run_id):
        assert PLANTED not in process.command
        assert key.decode() not in process.command
    on_nodes = [process.pid for process in processes.on_nodes(folder.run_id)]
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in on_nodes]
    assert environments
    assert not any(PLANTED.encode() in environment for environment in environments)
    assert holding(folder.path, key) == [folder.ssh_key_file]
    assert holding(folder.path, PLANTED.encode()) == []
    assert run.end().ending is Ending.COMPLETED
    assert holding(folder.path, PLANTED.encode()) == []
    assert holding(folder.path, key) == [folder.ssh_key_file]


def test_everything_in_a_run_is_for_its_owner_only(run: QuickRun) -> None:
    # As the command line does before it writes anything.
    before = os.umask(0o077)
    try:
        run.start(planned(steps=60))
        folder = run.wait_for(trained(5), "training")
        assert open_to_others(folder.path) == []
        run.end()
    finally:
        os.umask(before)
    assert open_to_others(folder.path) == []
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.ssh_key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE((run.home / "history.sqlite").stat().st_mode) == 0o600


def open_to_others(folder: Path) -> list[Path]:
    found = []
    for path in folder.rglob("*"):
        try:
            if path.lstat().st_mode & 0o077 and not path.is_symlink():
                found.append(path)
        except FileNotFoundError:
            continue
    return found


def test_another_host_key_stops_the_run_before_anything_is_sent(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncssh

    from sailor_cloud.launch.fleet import ssh_fleet

    found = ssh_fleet.SshFleet.create
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()

    async def tampered(self: ssh_fleet.SshFleet, *arguments: object, **options: object) -> object:
        applied = await found(self, *arguments, **options)  # type: ignore[arg-type]
        return replace(applied, nodes=tuple(replace(node, host_public_key=other) for node in applied.nodes))

    monkeypatch.setattr(ssh_fleet.SshFleet, "create", tampered)
    run.start(planned(steps=10))
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "shows another host key than the one recorded for it; nothing was sent to it" in outcome.message
    assert run.folder is not None
    assert journal(run.folder, "generation_started") == []
    assert_nothing_is_left(run.folder.path)


def test_a_host_key_that_changes_in_mid_run_stops_it(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncssh

    from sailor_cloud.launch.fleet import agents

    links: list[agents.AgentLink] = []
    ensure = agents.AgentLink.ensure_agent

    async def kept(self: agents.AgentLink) -> None:
        links.append(self)
        await ensure(self)

    monkeypatch.setattr(agents.AgentLink, "ensure_agent", kept)
    run.start(planned(steps=100_000))
    folder = run.wait_for(trained(3), "training")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    for link in links:
        link.connection.node = replace(link.connection.node, host_public_key=other)
        assert link.connection._connection is not None
        link.connection._connection.abort()
    outcome = run.end()
    assert outcome.ending is Ending.FAILED
    assert "shows another host key" in outcome.message
    assert_nothing_is_left(folder.path)


def test_the_dashboard_answers_the_token_alone_and_shows_the_run(run: QuickRun) -> None:
    run.start(planned(steps=40))
    run.end()
    folder = run.folder
    assert folder is not None
    with Dashboard(WatchedRuns([folder], clock=CLOCK)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            assert server.server_address[0] == "127.0.0.1"
            page = urllib.request.urlopen(server.url).read().decode()
            needed = re.findall(r"(?:src|href)=[\"'](?!#|data:)[^\"']+|@import|url\((?!#|data:)", page)
            assert needed == [], "everything the page needs is in it"
            (row,) = json.loads(urllib.request.urlopen(server.url.replace("/?", "/runs.json?")).read())
            assert (row["run_id"], row["step"]) == (folder.run_id, 40)
            one = server.url.replace("/?", f"/snapshot.json?run={folder.run_id}&")
            seen = json.loads(urllib.request.urlopen(one).read())
            assert (seen["step"], seen["steps"], seen["phase"], seen["outcome"]) == (40, 40, "gone", "completed")
            assert [node["name"] for node in seen["nodes"]] == ["n0", "n1"]
            assert {point["step"] for point in seen["steps_of"]} == set(range(1, 41))
            assert seen["timeline"][-1]["text"] == "everything is gone"
            address = server.url.partition("?")[0]
            for refused in (
                address,
                f"{address}snapshot.json?run={folder.run_id}",
                f"{address}runs.json",
                f"{address}?token=wrong",
            ):
                assert status_of(urllib.request.Request(refused)) == 403
            for unknown in ("../x", ""):
                other = server.url.replace("/?", f"/snapshot.json?run={unknown}&")
                assert status_of(urllib.request.Request(other)) == 404
            assert status_of(urllib.request.Request(server.url, headers={"Host": "evil.example"})) == 403
            assert status_of(urllib.request.Request(server.url, method="POST", data=b"")) == 501
        finally:
            server.shutdown()
            thread.join()


def status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_logs_are_read_from_living_nodes_and_from_the_folder_afterwards(run: QuickRun) -> None:
    run.start(planned(steps=60))
    folder = run.wait_for(trained(5), "training")
    alive = lines_of(folder, Selection(node="n1"))
    assert alive == ["n1 g1-rank1.log: rank 1 of generation 1 begins"]
    assert run.end().ending is Ending.COMPLETED
    assert lines_of(folder, Selection(rank=1)) == alive
    (past,) = past_runs(folder.path.parent)
    assert (past.outcome, past.steps, past.generations, past.clean) == ("completed", 60, 1, True)


def test_of_a_long_log_its_end_is_shown_and_kept(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = "rank 1 of generation 1 begins"
    run.start(planned(steps=60))
    folder = run.wait_for(trained(5), "training")
    monkeypatch.setattr(log_reader, "MOST_SHOWN_BYTES", 7)
    monkeypatch.setattr(ssh, "MOST_LOG_BYTES", 18)
    end = ["n1 g1-rank1.log: [23 bytes are left out]", "n1 g1-rank1.log: begins"]
    assert lines_of(folder, Selection(node="n1", rank=1)) == end
    assert run.end().ending is Ending.COMPLETED
    kept = (folder.logs_dir / "n1" / "g1-rank1.log").read_text()
    assert kept == f"[12 bytes are left out]\n{begins[12:]}\n"
    assert lines_of(folder, Selection(rank=1))[1:] == end[1:]


def lines_of(folder: RunFolder, selection: Selection) -> list[str]:
    lines: list[str] = []
    asyncio.run(
        show_logs(folder, selection, lambda node, log, line: lines.append(f"{node} {log}: {line}"), follow=False)
    )
    return lines


def test_a_node_that_publishes_nonsense_is_no_node(run: QuickRun) -> None:
    run.start(planned(steps=100_000))
    folder = run.wait_for(trained(3), "training")
    info = VmInfo.read(folder.node_dir("n1"))
    assert info is not None
    write_atomically(folder.node_dir("n1") / "node.json", "{}")
    run.interrupt()
    assert run.end().ending is Ending.INTERRUPTED
    assert_nothing_is_left(folder.path)
