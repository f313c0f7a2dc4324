"""From a fresh machine to a Python that imports torch, as on a node of each cloud but for GPU and distribution.

No part of CI: `make test-bringup` needs root and the package registries. `docs/bringup.md` says what it shows.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.cloud_runs import INSTANCE, cloud_run, without_bucket
from factories.fresh_machine import PROGRAMS, FreshMachine, base_system, fresh_machine
from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.agents import AgentLink
from sailor_cloud.launch.fleet.bundle import pack_runtime
from sailor_cloud.launch.fleet.packages import prepared_python
from sailor_cloud.launch.fleet.software import TORCH, Software
from sailor_cloud.launch.fleet.ssh import NodeConnection
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.providers.aws import access as aws_access

ROOT = Path(__file__).parents[2]
ASKED = os.environ.get("SAILOR_CLOUD_TEST_BRINGUP") == "1"
# More options for the node's pip, such as "--extra-index-url https://…" or "--find-links /folder"; folders are shared.
PIP = os.environ.get("SAILOR_CLOUD_BRINGUP_PIP", "")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Holds the locks that apt's daily update and unattended upgrades hold, as long as they do on a slow day.
HOLD = """
import fcntl, sys, time
files = [open(path, "a") for path in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(15)
"""

pytestmark = [
    pytest.mark.skipif(not ASKED, reason="needs root and the package registries; run 'make test-bringup'"),
    pytest.mark.timeout(1500),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    machine: FreshMachine
    provider: Provider
    key_file: Path
    state: dict[str, Any]

    def reachable(self) -> ReachableNode:
        """The node as the controller knows it, with the host key that its cloud was told."""
        return ReachableNode(
            id="n0",
            provider=self.provider,
            region="r",
            zone="z",
            instance_type="t",
            accelerator="CPU",
            devices=1,
            address="127.0.0.1",
            port=self.machine.port,
            user="sailor",
            host_public_key=self.told_host_key(),
            private_address="10.0.2.100",
            workdir="/home/sailor",
            created_at=datetime.now(UTC),
        )

    def told_host_key(self) -> str:
        if self.provider == "gcp":
            return f"ssh-ed25519 {self.machine.guest_attributes['hostkeys/ssh-ed25519']}"
        found = aws_access._PRINTED.search(self.machine.console_text())
        assert found is not None, self.machine.console_text()[-2000:]
        return next(line.strip() for line in found[1].splitlines() if line.startswith("ssh-ed25519"))

    def has_told(self) -> bool:
        if self.provider == "gcp":
            return "hostkeys/ssh-ed25519" in self.machine.guest_attributes
        return "-----END SSH HOST KEY KEYS-----" in self.machine.console_text()


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert os.geteuid() == 0, "make test-bringup mounts and boots a root filesystem: run it as root"
    assert not missing, f"apt-get install debootstrap systemd-container slirp4netns iproute2: {missing} are missing"


@pytest.fixture(scope="module", params=["gcp", "aws"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A machine that booted with what the run's Terraform gave an instance of the cloud."""
    provider = Provider(request.param)
    offer = GCP_OFFERS[0] if provider == "gcp" else AWS_OFFERS[1]
    base = base_system(ROOT / ".bringup")
    folder = tmp_path_factory.mktemp(f"machine-{provider}")
    document = without_bucket(cloud_document(("n0", offer), image=None))
    with cloud_run(provider, tmp_path_factory.mktemp("run"), document=document) as run:
        applied_or_raise(run.apply())
        (state,) = (s for s in run.cloud.of_type(INSTANCE[provider]).values() if run.run.run_id in str(s))
        boot = {"metadata": state["metadata"]} if provider == "gcp" else {"user_data": state["user_data"]}
        with fresh_machine(base, folder, files=_files(), read_only=_shared(), **boot) as machine:
            found = Node(machine=machine, provider=provider, key_file=run.run.folder.ssh_key_file, state=state)
            machine.wait_for(found.has_told, "the host key")
            yield found


def _files() -> dict[str, str]:
    """What lets pip of the node reach what pip of this machine reaches."""
    files = {"etc/pip.conf": "[global]\n"}
    if CERTIFICATES.is_file():
        files["etc/ssl/bringup.pem"] = CERTIFICATES.read_text()
        files["etc/pip.conf"] += "cert = /etc/ssl/bringup.pem\n"
    words = PIP.split()
    for option in ("--extra-index-url", "--index-url", "--find-links"):
        values = [value for name, value in pairwise(words) if name == option]
        if values:
            files["etc/pip.conf"] += f"{option.removeprefix('--')} = {' '.join(values)}\n"
    return files


def _shared() -> tuple[Path, ...]:
    """Return the folders of this machine that pip's options name; an index and its files stand side by side."""
    paths = [Path(word.removeprefix("file://")) for word in PIP.split()]
    return tuple({path.parent if path.name == "simple" else path for path in paths if path.is_absolute()})


def on_node(node: Node, work: Any) -> Any:
    """Do something over an SSH connection to the node, made as the controller makes it."""

    async def connected() -> Any:
        connection = NodeConnection(node.reachable(), node.key_file)
        await connection.open(120.0)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(connected())


def shell(node: Node, script: str) -> str:
    return str(on_node(node, lambda connection: connection.run(["sh", "-c", script])))


def test_user_sailor_becomes_root_without_a_password(node: Node) -> None:
    assert shell(node, "whoami; sudo -n whoami; pwd").split() == ["sailor", "root", "/home/sailor"]


def test_ports_of_collectives_are_settled_at_boot(node: Node) -> None:
    script = node.machine.root / "var/lib/sailor-cloud/orphaned.sh"
    node.machine.wait_for(script.is_file, "the boot script")
    assert shell(node, "cat /proc/sys/net/ipv4/ip_local_port_range").split() == ["32768", "60999"]
    assert not (node.machine.root / "etc/nccl.conf").exists()


def test_the_timer_that_ends_the_node_runs(node: Node) -> None:
    if node.provider == "gcp":
        pytest.skip("Compute Engine ends instances itself, by their termination time")
    timer = shell(
        node, "systemctl show sailor-cloud-expiry.timer --property=ActiveState,TimersCalendar,TimersMonotonic"
    )
    assert "ActiveState=active" in timer
    assert re.search(r"OnCalendar=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", timer), timer
    assert "OnBootUSec=" in timer


def test_the_service_that_ends_an_orphaned_node_runs(node: Node) -> None:
    service = shell(node, "systemctl show sailor-cloud-orphaned.service --property=ActiveState,SubState")
    assert service.split() == ["ActiveState=active", "SubState=running"]


def test_a_node_without_a_driver_is_reported_before_anything_is_installed(node: Node) -> None:
    with pytest.raises(LaunchError, match="nvidia-smi names no NVIDIA driver"):
        on_node(node, lambda connection: prepared_python(connection, Software(), node="n0", poll_s=0.5))
    assert shell(node, "ls /home/sailor/software").count(".sh") >= 1
    assert shell(node, "dpkg -l python3-venv 2>/dev/null | grep -c ^ii || true").strip() == "0"


def test_torch_can_be_imported_although_the_machine_s_own_updates_hold_the_locks(node: Node) -> None:
    """And the agent starts on that interpreter. `cpu` stands in for the GPU that is not here."""
    (node.machine.root / "etc/environment").write_text("SAILOR_CLOUD_ACCELERATORS=cpu\n")
    locks = "/var/lib/apt/lists/lock /var/lib/dpkg/lock-frontend"
    shell(node, f"nohup sudo python3 -c {shlex.quote(HOLD)} {locks} > locks.log 2>&1 < /dev/null & sleep 1")
    assert shell(node, "cat locks.log") == "held\n"

    async def bring_up(connection: NodeConnection) -> tuple[str, str]:
        link = AgentLink(connection=connection, bundle=pack_runtime())
        await link.ensure_agent()
        python = await prepared_python(connection, link.software, node="n0")
        program = "import torch, deepspeed; print(torch.__version__, float(torch.ones(3).sum()))"
        return python, await connection.run([python, "-W", "ignore", "-c", program])

    python, output = on_node(node, bring_up)
    assert python.startswith("software/")
    version, total = output.split()[-2:]
    assert version.partition("+")[0] == TORCH
    assert total == "3.0"
    assert "hello" in shell(node, "cat agent.jsonl")
    log = shell(node, "cat software/*.log")
    assert "lock" in log, "apt waited"
    sys.stdout.write(f"\n{node.provider}: {python} imports torch {version}\n{log[:1500]}\n")
