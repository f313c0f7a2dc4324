"""The nodes of a run that accept SSH, and the run's SSH key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sailor_cloud.durable import write_atomically
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.host_keys import known_host_keys, learn_host_keys
from sailor_cloud.provision.access.instances import Instance, instances
from sailor_cloud.provision.access.login import login
from sailor_cloud.provision.access.tunnel import Tunnel, is_private, tunnel_to
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.rendering.root import PlacedNode, placed_nodes
from sailor_cloud.provision.scopes import journaled_scopes, scopes_of
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.state import ResourceState, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachableNode:
    """A running node. Training traffic uses `private_address`; commands start in `workdir`.

    On a local node SFTP takes paths relative to `workdir`, or absolute ones inside it. A node with a `tunnel` is
    reachable only through it: `address` identifies the node, but accepts no connections from here. `efa`: it has AWS's
    Elastic Fabric Adapter.
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
    tunnel: Tunnel | None = None
    efa: bool = False

    @classmethod
    def of(
        cls,
        placed: PlacedNode,
        *,
        address: str,
        port: int,
        user: str,
        host_public_key: str,
        private_address: str,
        workdir: str,
        created_at: datetime,
        tunnel: Tunnel | None = None,
        efa: bool = False,
    ) -> ReachableNode:
        """Return a node of a plan with its address and login."""
        return cls(
            id=placed.node.id,
            provider=placed.offer.provider,
            region=placed.offer.region,
            zone=placed.offer.zone,
            instance_type=placed.offer.instance_type,
            accelerator=placed.offer.accelerator,
            devices=placed.node.devices,
            address=address,
            port=port,
            user=user,
            host_public_key=host_public_key,
            private_address=private_address,
            workdir=workdir,
            created_at=created_at,
            tunnel=tunnel,
            efa=efa,
        )


def reachable_nodes(folder: RunFolder, document: PlanDocument) -> tuple[ReachableNode, ...]:
    """Return the plan's running nodes, in the plan's order; clouds report which of theirs run.

    Leaves out a node whose host key is not known yet. Raises ProvisionError if a cloud can't be asked.
    """
    placed = placed_nodes(document)
    here = [p for p in placed if providers.on_this_machine(p.offer.provider)]
    on_cloud = _cloud_nodes(folder, document, tuple(p for p in placed if p not in here))
    found = {p.node.id: providers.of(p.offer.provider).local_node(folder, p) for p in here} | on_cloud
    return tuple(node for p in placed if (node := found.get(p.node.id)) is not None)


def running_names(folder: RunFolder) -> frozenset[str]:
    """Return the existing nodes of the run, of any plan. Raises ProvisionError if a cloud can't be asked."""
    here = {
        found.node
        for _, machine_provider in providers.all_providers()
        for found in machine_provider.local_resources(folder)
    }
    scopes = journaled_scopes(read(folder.journal_file))
    return frozenset({*here, *(instance.node for instance in instances(scopes, folder.run_id))} - {""})


def ensure_ssh_key(folder: RunFolder) -> str:
    """Return the run's public key in OpenSSH form; the first call creates the key pair in the folder."""
    public_file = folder.public_key_file
    if not public_file.is_file() or not folder.ssh_key_file.is_file():
        import asyncssh

        key = asyncssh.generate_private_key("ssh-ed25519", comment=folder.run_id)
        write_atomically(folder.ssh_key_file, key.export_private_key().decode())
        write_atomically(public_file, key.export_public_key().decode())
    return public_file.read_text().strip()


def _cloud_nodes(folder: RunFolder, document: PlanDocument, placed: tuple[PlacedNode, ...]) -> dict[str, ReachableNode]:
    if not placed:
        return {}
    entries = read(folder.journal_file)
    scopes = journaled_scopes(entries) | scopes_of(document)
    running = [instance for instance in instances(scopes, folder.run_id) if instance.running and instance.address]
    learn_host_keys(folder, running)
    keys = known_host_keys(folder)
    wanted = {p.node.id: p for p in placed}
    rows = {row.key: row for row in fold(entries).resources if row.resource == NODE}
    private = is_private(document)
    return {
        instance.node: _cloud_node(
            wanted[instance.node],
            instance,
            keys[instance.id],
            rows.get(instance.node),
            tunnel_to(folder, instance, port=login(instance.machine).port) if private else None,
        )
        for instance in running
        if instance.node in wanted and instance.id in keys
    }


def _cloud_node(
    placed: PlacedNode, instance: Instance, host_public_key: str, row: ResourceState | None, tunnel: Tunnel | None
) -> ReachableNode:
    access = login(instance.machine)
    created_at = (row.created_at or row.intended_at) if row is not None else None
    return ReachableNode.of(
        placed,
        address=instance.address,
        port=access.port,
        user=access.user,
        host_public_key=host_public_key,
        private_address=instance.private_address,
        workdir=access.workdir,
        created_at=created_at or datetime.now(UTC),
        tunnel=tunnel,
        efa=instance.efa,
    )
