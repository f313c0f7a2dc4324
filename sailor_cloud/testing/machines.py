"""The machines of a fake cloud's instances: none at all, or a process that answers SSH on loopback."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local import vm
from sailor_cloud.provision.providers.local.spec import SPEC_VARIABLE, VmInfo, VmSpec
from sailor_cloud.testing.network_programs import write_network_programs
from sailor_runtime.stand_in import POWER_OFF

NODE = "vm"
# A public key without a private one: paper machines never get connections.
PAPER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
_EXPIRY = re.compile(r"OnCalendar=(\S+ \S+) UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRequest:
    """The machine that an instance's attributes request; `id` is the cloud's."""

    id: str
    name: str
    node: str
    public_key: str
    expires_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A running machine; without an address, the cloud makes one up."""

    address: str
    host_public_key: str


class Machines(Protocol):
    def start(self, wanted: MachineRequest) -> Machine: ...

    def stop(self, name: str) -> None: ...

    def runs(self, name: str) -> bool: ...


class PaperMachines:
    """Machines that exist only in the cloud's records."""

    def start(self, wanted: MachineRequest) -> Machine:
        return Machine(address="", host_public_key=PAPER_KEY)

    def stop(self, name: str) -> None:
        return

    def runs(self, name: str) -> bool:
        return True


_VM = (sys.executable, "-m", "sailor_cloud.provision.providers.local.vm")


class SshMachines:
    """SSH servers on separate loopback addresses, each with a folder as its disk.

    Their accelerators are ranks on the processor: the machine's `python3` is the caller's interpreter with `variables`
    in its environment. They end at their expiry, when they are stopped, and when their agent powers them off.
    """

    def __init__(self, root: Path, variables: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._variables = dict(variables or {})
        # Processes are found by their run, and two fakes on one machine must not stop each other's.
        self._own = secrets.token_hex(4)
        self._specs: dict[str, VmSpec] = {}
        self._mutex = threading.Lock()

    def start(self, wanted: MachineRequest) -> Machine:
        folder = self.root / wanted.name
        binaries = self.root / f"{wanted.name}.bin"
        spec = VmSpec(
            # Not the run's id, since the run must find its machines through the cloud, never among the processes here.
            run_id=f"{self.root.name}-{self._own}-{wanted.name}",
            node=NODE,
            index=0,
            folder=str(folder),
            log=str(self.root / f"{wanted.name}.log"),
            public_key=wanted.public_key,
            expires_at=wanted.expires_at,
        )
        self._write_python(binaries, wanted, spec)
        write_network_programs(binaries)
        with self._mutex:
            self._specs[wanted.id] = spec
        _start(spec, binaries)
        info = VmInfo.read(folder)
        assert info is not None, "a machine that answers has reported its address"
        return Machine(address=info.address, host_public_key=info.host_public_key)

    def stop(self, name: str) -> None:
        with self._mutex:
            spec = self._specs.pop(name, None)
        if spec is not None:
            vm.stop(spec)

    def runs(self, name: str) -> bool:
        spec = self._specs.get(name)
        info = VmInfo.read(spec.path) if spec is not None else None
        if info is None:
            # It is just starting.
            return True
        return processes.read(info.pid) is not None

    def stop_all(self) -> None:
        for name in list(self._specs):
            self.stop(name)

    def _write_python(self, binaries: Path, wanted: MachineRequest, spec: VmSpec) -> None:
        binaries.mkdir(mode=0o700, parents=True, exist_ok=True)
        variables = {name: value.format(node=wanted.node) for name, value in self._variables.items()}
        variables[POWER_OFF] = f"{SPEC_VARIABLE}={shlex.quote(spec.to_json())} {shlex.join((*_VM, 'stop'))}"
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
        program = binaries / "python3"
        program.write_text(f'#!/bin/sh\n{exports}exec "{sys.executable}" "$@"\n')
        program.chmod(0o700)


def _start(spec: VmSpec, binaries: Path) -> None:
    """Start a machine from a separate process, so that it is not a child of this one."""
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        [*_VM, "start"],
        env={**os.environ, "PATH": path, SPEC_VARIABLE: spec.to_json()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"a machine did not start: {done.stderr}")


def machine_of(kind: str, state: Mapping[str, Any]) -> MachineRequest:
    """Return the machine that an instance's Terraform attributes request."""
    if kind == "aws_instance":
        tags, text = state.get("tags") or {}, str(state.get("user_data") or "")
        keys = re.search(r"echo '(ssh-[^']*)'", text)
        found = _EXPIRY.search(text)
        expires_at = datetime.fromisoformat(f"{found[1]}+00:00") if found else datetime.max.replace(tzinfo=UTC)
        return MachineRequest(
            id=str(state["id"]),
            name=str(state["id"]),
            node=tags.get("sailor-cloud-node", ""),
            public_key=keys[1] if keys else "",
            expires_at=expires_at.isoformat(),
        )
    scheduling = (state.get("scheduling") or [{}])[0]
    return MachineRequest(
        id=str(state["id"]),
        name=str(state["name"]),
        node=(state.get("labels") or {}).get("sailor-cloud-node", ""),
        public_key=str((state.get("metadata") or {}).get("ssh-keys", "")).partition(":")[2],
        expires_at=scheduling.get("termination_time") or datetime.max.replace(tzinfo=UTC).isoformat(),
    )


def with_machine(kind: str, state: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """Return the state of an instance with the addresses of its machine."""
    known = {**state, "host_public_key": machine.host_public_key}
    if not machine.address:
        return known
    if kind == "aws_instance":
        return {**known, "public_ip": state["public_ip"] and machine.address, "private_ip": machine.address}
    faces = [
        {
            **face,
            "network_ip": machine.address,
            "access_config": [{**access, "nat_ip": machine.address} for access in face["access_config"]],
        }
        for face in state["network_interface"]
    ]
    return {**known, "network_interface": faces}
