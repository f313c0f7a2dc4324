"""How to start, reach and remove nodes on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from sailor_cloud.errors import RequestError
from sailor_cloud.provision import processes
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.providers.interface import MachineProvider
from sailor_cloud.provision.providers.local import vm
from sailor_cloud.provision.providers.local.spec import MOST_NODES, VmInfo
from sailor_cloud.provision.providers.local.sweep import sweep_local, sweep_without_folder
from sailor_cloud.provision.rendering.preview import PlannedResource, priced_resource
from sailor_cloud.provision.rendering.root import Part, PlacedNode, Variables

if TYPE_CHECKING:
    from pathlib import Path

    from sailor_cloud.provision.live_resources import LiveResource
    from sailor_cloud.provision.rendering.preview import Bill
    from sailor_cloud.provision.rendering.rendered_roots import RunValues
    from sailor_cloud.run.folder import RunFolder


class Local(MachineProvider):
    machine = "terraform_data"
    modules = {Part.CLUSTER: ("local-cluster",)}  # noqa: RUF012 - a constant

    def cluster(self, run: RunValues, region: str, nodes: Sequence[PlacedNode], cidr: str) -> Variables:
        if len(nodes) > MOST_NODES:
            raise RequestError(f"the plan has {len(nodes)} local nodes, at most {MOST_NODES} have an address")
        folder = run.folder
        return {
            "run_id": folder.run_id,
            "python": sys.executable,
            "public_key": run.public_key,
            "expires_at": run.expiry,
            "nodes": {
                placed.node.id: {
                    "index": placed.index,
                    "zone": placed.offer.zone,
                    "instance_type": placed.offer.instance_type,
                    "folder": str(folder.node_dir(placed.node.id)),
                    "log": str(folder.logs_dir / f"vm-{placed.node.id}.log"),
                }
                for placed in nodes
            },
        }

    def resources(self, bill: Bill) -> list[PlannedResource]:
        nodes = bill.variables["nodes"]
        return [priced_resource("terraform_data", node, ("machine", bill.machines[node])) for node in nodes]

    def local_resources(self, folder: RunFolder) -> tuple[LiveResource, ...]:
        return sweep_local(folder.run_id, nodes_dir=folder.nodes_dir)

    def resources_without_folder(self, runs: Path) -> tuple[LiveResource, ...]:
        return sweep_without_folder(runs)

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        nodes = sorted({(resource.run_id, resource.node) for resource in resources})
        problems = [
            vm.remove(run_id, node, None if folder is None else folder.node_dir(node)) for run_id, node in nodes
        ]
        return [problem for problem in problems if problem]

    def local_node(self, folder: RunFolder, placed: PlacedNode) -> ReachableNode | None:
        workdir = folder.node_dir(placed.node.id)
        info = VmInfo.read(workdir)
        if info is None or info.run_id != folder.run_id:
            return None
        supervisor = processes.read(info.pid)
        if supervisor is None or (supervisor.run_id, supervisor.node) != (folder.run_id, placed.node.id):
            return None
        return ReachableNode.of(
            placed,
            address=info.address,
            port=info.port,
            user=info.user,
            host_public_key=info.host_public_key,
            private_address=info.address,
            workdir=str(workdir),
            created_at=datetime.fromisoformat(info.started_at),
        )
