"""A local node: how it is entered, what runs on it, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import asyncssh
import pytest

from factories.local_runs import expiry, local_run, started, vm_command, vm_spec, wait_until
from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local.spec import PORT, SPEC_VARIABLE, VmInfo, VmSpec
from sailor_cloud.provision.providers.local.sweep import sweep_local
from sailor_cloud.run.folder import RunFolder

T = TypeVar("T")
# A process that leaves its session and its parent, as an agent does.
DETACHED = "setsid sh -c 'sleep 1000' </dev/null >/dev/null 2>&1 &"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with local_run(tmp_path) as run:
        yield run.folder


def on_node(folder: RunFolder, info: VmInfo, work: Callable[[Any], Awaitable[T]], *, key: Any = None) -> T:
    """Do some work over one SSH connection that trusts the published host key only."""

    async def connected() -> T:
        known = asyncssh.import_known_hosts(f"[{info.address}]:{info.port} {info.host_public_key}")
        keys = [key or asyncssh.read_private_key(folder.ssh_key_file)]
        async with asyncssh.connect(
            info.address,
            info.port,
            username=info.user,
            client_keys=keys,
            known_hosts=known,
            agent_path=None,
            config=None,
        ) as connection:
            return await work(connection)

    return asyncio.run(asyncio.wait_for(connected(), timeout=60))


def new_key() -> Any:
    return asyncssh.generate_private_key("ssh-ed25519")


def run_on(folder: RunFolder, info: VmInfo, command: str) -> str:
    async def work(connection: Any) -> str:
        return str((await connection.run(command, check=True)).stdout)

    return on_node(folder, info, work)


def stop(spec: VmSpec) -> None:
    done = vm_command("stop", spec)
    assert (done.returncode, done.stderr) == (0, "")


def alive(folder: RunFolder, node: str = "n0") -> set[int]:
    return {process.pid for process in processes.of_node(folder.run_id, node)}


def test_commands_run_in_the_nodes_folder_with_its_tags_and_a_login_environment_of_their_own(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not for the node")
    info = started(folder)
    assert run_on(folder, info, "pwd").strip() == str(folder.node_dir("n0"))
    variables = dict(line.split("=", 1) for line in run_on(folder, info, "env").splitlines())
    assert variables["SAILOR_CLOUD_RUN"] == folder.run_id
    assert variables["SAILOR_CLOUD_NODE"] == "n0"
    assert variables["HOME"] == str(folder.node_dir("n0"))
    assert variables["TMPDIR"] == str(folder.node_dir("n0") / "tmp")
    assert "AWS_SECRET_ACCESS_KEY" not in variables
    assert SPEC_VARIABLE not in variables


def test_output_input_and_status_of_a_command_come_through(folder: RunFolder) -> None:
    info = started(folder)

    async def work(connection: Any) -> Any:
        return await connection.run("cat; echo trouble >&2; exit 7", input="some text")

    result = on_node(folder, info, work)
    assert (result.stdout, result.stderr, result.exit_status) == ("some text", "trouble\n", 7)


def test_a_killed_command_reports_its_signal(folder: RunFolder) -> None:
    info = started(folder)

    async def work(connection: Any) -> Any:
        return await connection.run("kill -TERM $$")

    assert on_node(folder, info, work).exit_signal[0] == "TERM"


def test_another_key_is_refused(folder: RunFolder) -> None:
    info = started(folder)
    with pytest.raises(asyncssh.PermissionDenied):
        on_node(
            folder, info, lambda connection: connection.run("true"), key=asyncssh.generate_private_key("ssh-ed25519")
        )


def test_another_host_key_is_noticed(folder: RunFolder) -> None:
    info = started(folder)
    other = new_key().export_public_key().decode().strip()
    forged = VmInfo(**{**{name: getattr(info, name) for name in VmInfo.__slots__}, "host_public_key": other})
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        on_node(folder, forged, lambda connection: connection.run("true"))


def test_sftp_reaches_the_nodes_folder_and_nothing_else(folder: RunFolder) -> None:
    info = started(folder)
    inside = str(folder.node_dir("n0") / "deep" / "file")

    async def work(connection: Any) -> tuple[bytes, bytes, str]:
        async with connection.start_sftp_client() as sftp:
            await sftp.mkdir("deep")
            async with sftp.open("deep/file", "wb") as file:
                await file.write(b"by relative path")
            async with sftp.open(inside, "rb") as file:
                content = await file.read()
            for outside in ("../../plan.json", str(folder.ssh_key_file), "/etc/hostname", "tmp/../.."):
                with pytest.raises(asyncssh.SFTPError):
                    await sftp.open(outside, "rb")
            return content, Path(inside).read_bytes(), await sftp.realpath(".")

    content, on_disk, home = on_node(folder, info, work)
    assert content == on_disk == b"by relative path"
    assert home == str(folder.node_dir("n0"))


def test_nodes_of_a_run_have_addresses_of_their_own(folder: RunFolder) -> None:
    first, second = started(folder, "n0", index=0), started(folder, "n1", index=1)
    assert first.address != second.address
    assert first.host_public_key != second.host_public_key
    assert {first.port, second.port} == {PORT}
    assert all(info.address.startswith("127.") for info in (first, second))


def test_an_address_that_is_taken_is_left_alone(folder: RunFolder) -> None:
    spec = vm_spec(folder)
    with socket.socket() as stranger:
        stranger.bind((spec.address(0), PORT))
        stranger.listen()
        info = started(folder)
    assert info.address == spec.address(1) != spec.address(0)


def test_starting_a_running_node_again_adopts_it(folder: RunFolder) -> None:
    first = started(folder)
    assert started(folder) == first


def test_starting_a_dead_node_again_replaces_it(folder: RunFolder) -> None:
    first = started(folder)
    for pid in alive(folder):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(folder), "the node is dead")
    second = started(folder)
    assert second.pid != first.pid
    assert run_on(folder, second, "echo there") == "there\n"


def test_a_node_that_can_not_start_says_where_its_log_is(folder: RunFolder) -> None:
    spec = vm_spec(folder, index=300)
    done = vm_command("start", spec)
    assert done.returncode == 1
    assert done.stderr.startswith("node n0 ended with status")
    assert spec.log in done.stderr
    assert alive(folder) == set()


def test_starting_holds_no_pipe_of_the_caller(folder: RunFolder) -> None:
    done = vm_command("start", vm_spec(folder))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert alive(folder)


def test_stopping_ends_detached_processes_and_deletes_the_folder(folder: RunFolder) -> None:
    info = started(folder)
    run_on(folder, info, DETACHED)
    assert len(alive(folder)) >= 3
    stop(vm_spec(folder))
    assert sweep_local(folder.run_id, nodes_dir=folder.nodes_dir) == ()


def test_stopping_ends_what_ignores_the_polite_signal(folder: RunFolder) -> None:
    info = started(folder)
    run_on(folder, info, """setsid sh -c 'trap "" TERM HUP INT; sleep 1000' </dev/null >/dev/null 2>&1 &""")
    stop(vm_spec(folder))
    assert sweep_local(folder.run_id, nodes_dir=folder.nodes_dir) == ()


def test_stopping_ends_a_process_that_dropped_its_tags(folder: RunFolder, tmp_path: Path) -> None:
    info = started(folder)
    pid_file = tmp_path / "pid"
    run_on(folder, info, f"env -i setsid sh -c 'echo $$ > {pid_file}; exec sleep 1000' </dev/null >/dev/null 2>&1 &")
    wait_until(lambda: pid_file.is_file() and pid_file.read_text().strip() != "", "the process told its id")
    pid = int(pid_file.read_text())
    stray = processes.read(pid)
    assert stray is not None
    assert stray.run_id == ""
    stop(vm_spec(folder))
    assert processes.read(pid) is None


def test_stopping_a_dead_node_or_none_is_no_error(folder: RunFolder) -> None:
    started(folder)
    for pid in alive(folder):
        os.kill(pid, signal.SIGKILL)
    stop(vm_spec(folder))
    stop(vm_spec(folder))
    assert sweep_local(folder.run_id, nodes_dir=folder.nodes_dir) == ()


def test_stopping_leaves_other_nodes_and_other_runs_alone(folder: RunFolder, tmp_path: Path) -> None:
    with local_run(tmp_path) as other:
        started(folder, "n0")
        neighbour, foreign = started(folder, "n1", index=1), started(other.folder, "n0")
        stop(vm_spec(folder, "n0"))
        assert run_on(folder, neighbour, "echo there") == "there\n"
        assert run_on(other.folder, foreign, "echo there") == "there\n"


def test_a_node_ends_itself_with_everything_on_it_at_its_expiry(folder: RunFolder) -> None:
    expires_at, info = started_to_expire(folder)
    run_on(folder, info, DETACHED)
    assert len(alive(folder)) >= 3
    wait_until(lambda: not alive(folder), "everything on the node has ended")
    assert expiry(0.0) >= expires_at
    assert "ends: expired" in (folder.logs_dir / "vm-n0.log").read_text()


def started_to_expire(folder: RunFolder) -> tuple[datetime, VmInfo]:
    """Start a node whose end is near, but far enough for a busy machine to start it and something on it before."""
    for seconds in (3.0, 9.0, 27.0):
        begun = time.monotonic()
        expires_at = expiry(seconds)
        done = vm_command("start", vm_spec(folder, expires_at=expires_at))
        info = VmInfo.read(folder.node_dir("n0"))
        if done.returncode == 0 and info is not None and time.monotonic() - begun < seconds / 3:
            return expires_at, info
        wait_until(lambda: not alive(folder), "the node that was too slow has ended")
    raise AssertionError("no node starts within 9 s")


@pytest.mark.parametrize("victim", ["supervisor", "server"])
def test_killing_a_part_of_the_node_ends_all_of_it(folder: RunFolder, victim: str) -> None:
    info = started(folder)
    run_on(folder, info, DETACHED)
    below = {process.pid for process in processes.descendants(info.pid) if "local.server" in process.command}
    assert len(below) == 1
    os.kill(info.pid if victim == "supervisor" else below.pop(), signal.SIGKILL)
    wait_until(lambda: not alive(folder), "everything on the node has ended")
