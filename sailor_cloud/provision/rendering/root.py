"""Turns a plan into a Terraform root: the variables as JSON, and a copy of the HCL that the run keeps."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.plan import Node
from sailor_cloud.model.provider import names
from sailor_cloud.provision import providers
from sailor_cloud.provision.processes import RUN_TAG
from sailor_cloud.run.folder import RunFolder, private_dir

VARIABLES_FILE = "terraform.tfvars.json"
BACKEND_FILE = "backend.tf.json"

Variables = dict[str, Any]
# Stack and region.
Place = tuple[str, str]


class Part(StrEnum):
    """The content of a root, in order of destruction: links and nodes first, what outlives nodes last.

    Capacity that a run buys separately comes between the two.
    """

    LINKS = "links"
    CLUSTER = "cluster"
    CAPACITY = "capacity"
    DATA = "data"


def stack_of(provider: str, part: Part) -> str:
    """Return the folder under `stacks`: nodes have their provider's name, the rest is `PROVIDER-links` and so on."""
    return provider if part is Part.CLUSTER else f"{provider}-{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One Terraform root of a run: `path` is the folder in which Terraform runs, `stack` the source of its HCL.

    The region of a link names both ends: `us-east-1--us-west-2`.
    """

    provider: Provider
    region: str
    path: Path
    stack: str

    @property
    def part(self) -> Part:
        return next(part for part in Part if self.stack == stack_of(self.provider, part))

    @property
    def has_own_network(self) -> bool:
        """Whether other roots use this one's network, so that it must be destroyed after them."""
        try:
            return owns_network(json.loads((self.path / VARIABLES_FILE).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            # Assume that others need it: a later destruction is always safe.
            return True

    @property
    def state_file(self) -> Path:
        return self.path / "terraform.tfstate"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """A node of the plan with its offer and its index in the plan."""

    node: Node
    offer: Offer
    index: int
    network: NetworkAccess = NetworkAccess.PUBLIC_SSH


def placed_nodes(document: PlanDocument) -> tuple[PlacedNode, ...]:
    """Return the plan's nodes with their offers. Raises RequestError if there is no plan or an offer is missing."""
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


def owns_network(variables: Variables) -> bool:
    """Whether other roots of the run use the network that a root with these variables makes."""
    return "network" in variables and variables["network"] is None


def variables_text(variables: Variables) -> str:
    return json.dumps(variables, indent=2, sort_keys=True) + "\n"


def root_of(folder: RunFolder, provider: Provider, region: str, *, stack: str | None = None) -> Root:
    """Return a root's place; `stack` defaults to the provider's cluster."""
    name = stack or provider
    return Root(provider=provider, region=region, stack=name, path=folder.terraform_dir(name, region) / "stacks" / name)


def roots(folder: RunFolder) -> tuple[Root, ...]:
    """Return the roots that were written for the run, in order of destruction."""
    found = []
    for part, provider in product(Part, sorted(names())):
        stack = stack_of(provider, part)
        same = [
            root_of(folder, Provider(provider), base.name.removeprefix(f"{stack}-"), stack=stack)
            for base in folder.terraform_dirs()
            if (base / "stacks" / stack / VARIABLES_FILE).is_file()
        ]
        found += sorted(same, key=lambda root: root.has_own_network)
    return tuple(found)


def write_root(
    folder: RunFolder,
    provider: Provider,
    region: str,
    variables: Variables,
    *,
    stack: str | None = None,
    backend: Variables | None = None,
) -> Root:
    """Copy the HCL into the run and write the variables, and the backend if the state is kept elsewhere.

    With the copy, `down` works after an upgrade of sailor-cloud. A rewrite keeps the state.
    """
    root = root_of(folder, provider, region, stack=stack)
    machine_provider = providers.of(provider)
    base = folder.terraform_dir(root.stack, region)
    for part in (f"stacks/{root.stack}", *(f"modules/{name}" for name in machine_provider.modules[root.part])):
        for file in sorted((machine_provider.hcl / part).glob("*.tf*")):
            target = private_dir(base / part) / file.name
            shutil.copyfile(file, target)
            target.chmod(0o600)
    for file in sorted((machine_provider.hcl / "stacks" / root.stack).glob("*.py")):
        target = root.path / f"{file.stem}.zip"
        target.write_bytes(_package(file))
        target.chmod(0o600)
    if backend is not None:
        write_atomically(root.path / BACKEND_FILE, variables_text(backend))
    write_atomically(root.path / VARIABLES_FILE, variables_text(variables))
    return root


def _package(file: Path) -> bytes:
    """Return a function's code in the clouds' format: a zip with `main.py`, with equal bytes for equal code."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        about = zipfile.ZipInfo("main.py")
        about.external_attr = 0o644 << 16
        archive.writestr(about, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRoot:
    """A root with its variables and the plan's nodes in it; rendering it again gives the same bytes.

    `backend` is Terraform's configuration for a state outside the run's folder. The `region` of a link names both ends:
    `us-east-1--us-west-2`.
    """

    provider: Provider
    region: str
    part: Part
    variables: Variables
    nodes: tuple[PlacedNode, ...] = ()
    backend: Variables | None = None

    @property
    def stack(self) -> str:
        return stack_of(self.provider, self.part)

    @property
    def place(self) -> Place:
        return self.stack, self.region

    def write(self, folder: RunFolder, *, without: frozenset[str] = frozenset()) -> Root:
        """Write the root into the run, perhaps without some nodes."""
        variables = self.variables
        if without:
            nodes = {name: node for name, node in variables["nodes"].items() if name not in without}
            variables = {**variables, "nodes": nodes}
        return write_root(folder, self.provider, self.region, variables, stack=self.stack, backend=self.backend)

    def in_folder(self, folder: RunFolder) -> Root:
        return root_of(folder, self.provider, self.region, stack=self.stack)


def write_cli_config(folder: RunFolder) -> Path:
    """Write the run's own Terraform configuration file.

    If the environment named a missing file, Terraform would add a warning to every output.
    """
    private_dir(folder.terraform_config_file.parent)
    write_atomically(folder.terraform_config_file, "disable_checkpoint = true\n")
    return folder.terraform_config_file


def environment(folder: RunFolder) -> dict[str, str]:
    """Return the environment for Terraform; its tag identifies the run later."""
    # Inherited arguments and variables would change what was rendered, and Terraform's logs would contain secrets.
    dropped = ("TF_CLI_ARGS", "TF_VAR_", "TF_LOG", "TF_WORKSPACE", "TF_DATA_DIR")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    own = {"TF_IN_AUTOMATION": "1", "TF_INPUT": "0", "CHECKPOINT_DISABLE": "1", RUN_TAG: folder.run_id}
    return {**inherited, **own, "TF_CLI_CONFIG_FILE": str(_cli_config(folder))}


def _cli_config(folder: RunFolder) -> Path:
    """Return the user's Terraform configuration, which may name a mirror of providers, else the run's own."""
    named = os.environ.get("TF_CLI_CONFIG_FILE")
    chosen = Path(named) if named else Path.home() / ".terraformrc"
    return chosen if chosen.is_file() else folder.terraform_config_file
