"""Turns a plan into a Terraform root: the variables as JSON, and a copy of the HCL that the run keeps."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sailor_cloud import resources
from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.plan import Node
from sailor_cloud.provision.processes import RUN_TAG
from sailor_cloud.provision.providers.local.spec import MOST_NODES
from sailor_cloud.run.folder import RunFolder, private_dir

VARIABLES_FILE = "terraform.tfvars.json"
BACKEND_FILE = "backend.tf.json"
# The stacks, each with the modules that it calls, in the order in which they are destroyed: links and nodes first,
# what outlives the nodes last.
_MODULES: dict[str, tuple[str, ...]] = {
    "local": ("local-cluster",),
    "aws-links": (),
    "aws": ("aws-cluster", "placement"),
    "gcp": ("gcp-cluster", "placement"),
    "aws-data": (),
    "gcp-data": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One Terraform root of a run: `path` is the folder in which Terraform runs, `stack` where its HCL is from.

    The region of a link between two names both: `us-east-1--us-west-2`.
    """

    provider: Provider
    region: str
    path: Path
    stack: str

    @property
    def has_own_network(self) -> bool:
        """Whether other roots use the network that this one made, so that it must be destroyed after them."""
        if self.stack != "gcp":
            return False
        try:
            variables = json.loads((self.path / VARIABLES_FILE).read_text())
        except (OSError, ValueError):
            # Taken for the one that others need: it is destroyed after them, which is never wrong.
            return True
        return variables.get("network") is None

    @property
    def state_file(self) -> Path:
        return self.path / "terraform.tfstate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node of the plan with the offer that it is bought as and its place in the plan's order."""

    node: Node
    offer: Offer
    index: int
    network: NetworkAccess = NetworkAccess.PUBLIC_SSH


def placed_nodes(document: PlanDocument) -> tuple[PlacedNode, ...]:
    """Return the plan's nodes with their offers. Raises RequestError when there is no plan or an offer is missing."""
    if document.plan is None:
        raise RequestError("the plan document holds no plan: it is infeasible")
    offers = document.inputs.offers_by_id()
    missing = sorted({node.offer for node in document.plan.nodes} - offers.keys())
    if missing:
        raise RequestError(f"the plan document lacks the offers of its nodes: {', '.join(missing)}")
    network = document.job.cloud.network
    return tuple(
        PlacedNode(node=node, offer=offers[node.offer], index=index, network=network)
        for index, node in enumerate(document.plan.nodes)
    )


def local_variables(
    folder: RunFolder, nodes: tuple[PlacedNode, ...], *, public_key: str, expires_at: datetime
) -> dict[str, Any]:
    """Return the variables of `stacks/local`."""
    if len(nodes) > MOST_NODES:
        raise RequestError(f"the plan has {len(nodes)} local nodes, at most {MOST_NODES} have an address")
    return {
        "run_id": folder.run_id,
        "python": sys.executable,
        "public_key": public_key,
        "expires_at": f"{expires_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
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


def variables_text(variables: dict[str, Any]) -> str:
    return json.dumps(variables, indent=2, sort_keys=True) + "\n"


def root_of(folder: RunFolder, provider: Provider, region: str, *, stack: str | None = None) -> Root:
    """Return a root's place; `stack` is the cluster of the provider unless it is named."""
    name = stack or provider.value
    return Root(provider=provider, region=region, stack=name, path=folder.terraform_dir(name, region) / "stacks" / name)


def roots(folder: RunFolder) -> tuple[Root, ...]:
    """Return the roots that were written for the run, in the order in which they are destroyed."""
    found = []
    for stack in _MODULES:
        same = []
        for base in folder.terraform_dirs():
            if (base / "stacks" / stack / VARIABLES_FILE).is_file():
                provider = Provider(stack.partition("-")[0])
                same.append(root_of(folder, provider, base.name.removeprefix(f"{stack}-"), stack=stack))
        found += sorted(same, key=lambda root: root.has_own_network)
    return tuple(found)


def write_root(
    folder: RunFolder,
    provider: Provider,
    region: str,
    variables: dict[str, Any],
    *,
    stack: str | None = None,
    backend: dict[str, Any] | None = None,
) -> Root:
    """Copy the HCL into the run and write the variables, and the backend where the state is kept elsewhere.

    The copy lets `down` work after sailor-cloud was upgraded. Written again, the state beside it stays.
    """
    root = root_of(folder, provider, region, stack=stack)
    source = resources.data_root() / "terraform"
    base = folder.terraform_dir(root.stack, region)
    for part in (f"stacks/{root.stack}", *(f"modules/{name}" for name in _MODULES[root.stack])):
        for file in sorted((source / part).glob("*.tf*")):
            target = private_dir(base / part) / file.name
            shutil.copyfile(file, target)
            target.chmod(0o600)
    if backend is not None:
        write_atomically(root.path / BACKEND_FILE, variables_text(backend))
    write_atomically(root.path / VARIABLES_FILE, variables_text(variables))
    return root


def write_cli_config(folder: RunFolder) -> Path:
    """Write the run's own Terraform configuration file.

    One that the environment names but that is missing would make Terraform warn into every output.
    """
    private_dir(folder.terraform_config_file.parent)
    write_atomically(folder.terraform_config_file, "disable_checkpoint = true\n")
    return folder.terraform_config_file


def environment(folder: RunFolder) -> dict[str, str]:
    """Return the environment that Terraform runs in; the tag tells later whose it is."""
    # Inherited arguments and variables would change what was rendered, and its logs would hold secrets.
    dropped = ("TF_CLI_ARGS", "TF_VAR_", "TF_LOG", "TF_WORKSPACE", "TF_DATA_DIR")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    own = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1", RUN_TAG: folder.run_id}
    return {**inherited, **own, "TF_CLI_CONFIG_FILE": str(_cli_config(folder))}


def _cli_config(folder: RunFolder) -> Path:
    """Return the user's configuration of Terraform, which may name a mirror of providers, else the run's own."""
    named = os.environ.get("TF_CLI_CONFIG_FILE")
    chosen = Path(named) if named else Path.home() / ".terraformrc"
    return chosen if chosen.is_file() else folder.terraform_config_file
