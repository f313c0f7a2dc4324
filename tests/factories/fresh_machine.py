"""A fresh machine for bring-up: Debian's packages in a container that systemd boots, with cloud-init or guest agent.

Needs root, debootstrap, systemd-container, slirp4netns and iproute2. The machine has a network of its own, in which
169.254.169.254 answers as a metadata server; it reaches the package registries as this machine does, and SSH into it
comes through a port of loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PROGRAMS = ("debootstrap", "systemd-nspawn", "slirp4netns", "ip")
SUITE = "bookworm"
_PACKAGES = "cloud-init openssh-server sudo python3 procps iproute2 google-guest-agent locales"
_METADATA = "169.254.169.254"


def base_system(folder: Path) -> Path:
    """Return a root filesystem with what Ubuntu's cloud images have, too; made once, which takes two minutes."""
    root, done = folder / SUITE, folder / f"{SUITE}.done"
    if done.is_file():
        return root
    shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "check": True}
    subprocess.run(["debootstrap", "--variant=minbase", "--include=systemd-sysv,dbus", SUITE, str(root)], **quiet)
    shutil.copyfile("/etc/resolv.conf", root / "etc/resolv.conf")
    # What is installed must not start on this machine.
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    install = f"apt-get update && apt-get install -y --no-install-recommends {_PACKAGES}"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["chroot", str(root), "sh", "-c", install], env=environment, **quiet)
    policy.unlink()
    done.touch()
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshMachine:
    """A machine that boots: its disk as this machine sees it, its port for SSH here, and what it has told its cloud."""

    root: Path
    port: int
    console: Path
    guest_attributes: dict[str, str]

    def wait_for(self, condition: Callable[[], bool], what: str, *, limit_s: float = 240.0) -> None:
        until = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < until, f"{what} took too long; the console's end:\n{self.console_text()[-4000:]}"
            time.sleep(0.5)

    def console_text(self) -> str:
        return self.console.read_text(errors="replace").replace("\r", "")


@contextmanager
def fresh_machine(
    base: Path,
    folder: Path,
    *,
    user_data: str | None = None,
    metadata: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    read_only: tuple[Path, ...] = (),
) -> Iterator[FreshMachine]:
    """Boot a machine and power it off at the end.

    `user_data` is for cloud-init; with `metadata`, the attributes of an instance of Google Cloud, its guest agent runs
    instead. `files` are on the disk at boot; `read_only` are folders of this machine that it has at the same place.
    """
    name = f"sc-bringup-{os.getpid()}"
    with ExitStack() as stack:
        root = stack.enter_context(_disk(base, folder))
        _prepare(root, user_data, files or {}, guest_agent=metadata is not None)
        port = stack.enter_context(_network(name, folder))
        told: dict[str, str] = {}
        if metadata is not None:
            stack.enter_context(_metadata_server(name, metadata, told))
        console = folder / "console.log"
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--resolv-conf=off"]
        command += [
            f"--machine={name}",
            "--hostname=fresh",
            f"--directory={root}",
            f"--network-namespace-path=/run/netns/{name}",
        ]
        command += [f"--bind-ro={path}" for path in read_only]
        with console.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--boot"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        stack.callback(_ended, process)
        yield FreshMachine(root=root, port=port, console=console, guest_attributes=told)


@contextmanager
def _disk(base: Path, folder: Path) -> Iterator[Path]:
    upper, work, root = (folder / part for part in ("changes", "work", "root"))
    for part in (upper, work, root):
        part.mkdir()
    options = f"lowerdir={base},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(root)], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def _prepare(root: Path, user_data: str | None, files: Mapping[str, str], *, guest_agent: bool) -> None:
    seed = root / "var/lib/cloud/seed/nocloud"
    seed.mkdir(parents=True)
    (seed / "meta-data").write_text("instance-id: i-fresh\nlocal-hostname: fresh\n")
    (seed / "user-data").write_text(user_data if user_data is not None else "#cloud-config\n{}\n")
    settings = "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nlocale: false\npreserve_hostname: true\n"
    (root / "etc/cloud/cloud.cfg.d/99-bringup.cfg").write_text(settings)
    (root / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n")
    (root / "etc/hostname").write_text("fresh\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 fresh\n")
    # An image holds no host keys of its own.
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    if not guest_agent:
        for unit in ("google-guest-agent", "google-startup-scripts", "google-shutdown-scripts"):
            (root / f"etc/systemd/system/{unit}.service").symlink_to("/dev/null")
    for path, content in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)


@contextmanager
def _network(name: str, folder: Path) -> Iterator[int]:
    """Make a network namespace that reaches the world through this process's user space; yield the port for its SSH."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        inside = ["ip", "netns", "exec", name]
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "ip", "address", "add", f"{_METADATA}/32", "dev", "lo"], check=True)
        # A short path: sockets have names of 107 bytes at most.
        control = Path("/tmp") / f"{name}.sock"
        stack.callback(control.unlink, missing_ok=True)
        options = ["--configure", "--mtu=1400", "--disable-host-loopback", f"--api-socket={control}"]
        log = stack.enter_context((folder / "network.log").open("wb"))
        path = f"/run/netns/{name}"
        process = subprocess.Popen(["slirp4netns", *options, "--netns-type=path", path, "tap0"], stdout=log, stderr=log)
        stack.callback(_ended, process)
        port = _free_port()
        rule = {"proto": "tcp", "host_addr": "127.0.0.1", "host_port": port, "guest_port": 22}
        _told(control, {"execute": "add_hostfwd", "arguments": rule})
        yield port


def _told(control: Path, order: Mapping[str, Any]) -> None:
    until = time.monotonic() + 10.0
    while True:
        with socket.socket(socket.AF_UNIX) as ours:
            try:
                ours.connect(str(control))
            except OSError:
                assert time.monotonic() < until, "slirp4netns does not start"
                time.sleep(0.1)
                continue
            ours.sendall(json.dumps(order).encode())
            ours.shutdown(socket.SHUT_WR)
            answer = ours.recv(4096).decode()
            assert "error" not in answer, answer
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _metadata_server(name: str, attributes: Mapping[str, str], told: dict[str, str]) -> Iterator[None]:
    """Answer as Google Cloud's metadata server does, from a process inside the machine's network."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as lines:
        command = ["ip", "netns", "exec", name, sys.executable, __file__, json.dumps(dict(attributes))]
        process = subprocess.Popen(command, stdout=writer)
        os.close(writer)
        assert lines.readline() == "listening\n"

        def listen() -> None:
            for line in lines:
                path, value = json.loads(line)
                told[path] = value

        threading.Thread(target=listen, daemon=True).start()
        try:
            yield
        finally:
            _ended(process)


class _Metadata(BaseHTTPRequestHandler):
    """What the guest agent and the runner of startup scripts ask; a value that is put is printed."""

    attributes: dict[str, str]

    def do_GET(self) -> None:
        if "wait_for_change=true" in self.path and "last_etag=0" not in self.path and "last_etag=" in self.path:
            time.sleep(60.0)
        path = self.path.partition("?")[0].removeprefix("/computeMetadata/v1/").strip("/")
        instance = {"id": 4711, "attributes": self.attributes, "networkInterfaces": [], "hostname": "fresh"}
        whole = {"instance": instance, "project": {"projectId": "my-project", "attributes": {}}}
        value: Any = whole
        for part in filter(None, path.split("/")):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None:
            self._answer(404, b"", "text/plain")
        elif isinstance(value, str):
            self._answer(200, value.encode(), "application/text")
        else:
            self._answer(200, json.dumps(value).encode(), "application/json")

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        told = self.path.removeprefix("/computeMetadata/v1/instance/guest-attributes/")
        sys.stdout.write(json.dumps([told, content]) + "\n")
        sys.stdout.flush()
        self._answer(200, b"", "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("ETag", "e1")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        return


if __name__ == "__main__":
    _Metadata.attributes = json.loads(sys.argv[1])
    server = ThreadingHTTPServer((_METADATA, 80), _Metadata)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    server.serve_forever()
