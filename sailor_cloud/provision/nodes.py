"""The nodes of a run that can be reached by SSH, and the key that opens them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes
from sailor_cloud.provision.local.spec import VmInfo
from sailor_cloud.provision.render import PlacedNode, placed_nodes
from sailor_cloud.run.folder import RunFolder, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachableNode:
    """A node that runs. Training traffic goes to `private_address`; commands start in `workdir`.

    On a local node SFTP takes paths relative to `workdir`, or absolute ones inside it.
    """

    id: str
    provider: Provider
    region: str
    zone: str
    instance_type: str
    accelerator: str
    devices: int
    address: str
    port: int
    user: str
    host_public_key: str
    private_address: str
    workdir: str
    created_at: datetime


def reachable_nodes(folder: RunFolder, document: PlanDocument) -> tuple[ReachableNode, ...]:
    """Return the plan's nodes that run now, in the plan's order."""
    found = (_local_node(folder, placed) for placed in placed_nodes(document))
    return tuple(node for node in found if node is not None)


def ensure_ssh_key(folder: RunFolder) -> str:
    """Return the run's public key in OpenSSH form; the key pair is made at the first call and lives in the folder."""
    public_file = folder.ssh_key_file.with_name(f"{folder.ssh_key_file.name}.pub")
    if not public_file.is_file() or not folder.ssh_key_file.is_file():
        import asyncssh

        key = asyncssh.generate_private_key("ssh-ed25519", comment=folder.run_id)
        write_atomically(folder.ssh_key_file, key.export_private_key().decode())
        write_atomically(public_file, key.export_public_key().decode())
    return public_file.read_text().strip()


def _local_node(folder: RunFolder, placed: PlacedNode) -> ReachableNode | None:
    workdir = folder.node_dir(placed.node.id)
    info = VmInfo.read(workdir)
    if info is None or info.run_id != folder.run_id:
        return None
    supervisor = processes.read(info.pid)
    if supervisor is None or (supervisor.run_id, supervisor.node) != (folder.run_id, placed.node.id):
        return None
    return ReachableNode(
        id=placed.node.id,
        provider=placed.offer.provider,
        region=placed.offer.region,
        zone=placed.offer.zone,
        instance_type=placed.offer.instance_type,
        accelerator=placed.offer.accelerator,
        devices=placed.node.devices,
        address=info.address,
        port=info.port,
        user=info.user,
        host_public_key=info.host_public_key,
        private_address=info.address,
        workdir=str(workdir),
        created_at=datetime.fromisoformat(info.started_at),
    )
