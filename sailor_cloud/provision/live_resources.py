"""Looks for what is left of a run without asking Terraform."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes

LOCAL_REGION = "local"
# The region of what belongs to an account as a whole.
WHOLE_ACCOUNT = "global"
# The detail of a bucket that is not empty.
HOLDS_OBJECTS = "holds objects"
PROCESS = "process"
FOLDER = "folder"
RUN_LABEL = "sailor-cloud-run"
# Who confirms in journal and receipt that something is gone.
BY_TAG = "sweep by tag"
OWNER_LABEL = "sailor-cloud-owner"
EXPIRES_LABEL = "sailor-cloud-expires"
EXPIRES_FORM = "%Y-%m-%dt%H-%M-%Sz"
NODE_LABEL = "sailor-cloud-node"
_PAIR = re.compile(r"([\w-]+)=(\S*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveResource:
    """Something of a run that exists. `node` is empty where it belongs to no single node.

    `project` is Google Cloud's; `title` is what the resource is called where its name is the cloud's own choice.
    `owner` and `expires` are what its tags say of the run. `network` is what it stands in on AWS; `ending`: it still
    exists, and nothing can be done with it any more.
    """

    provider: str
    region: str
    type: str
    name: str
    run_id: str
    zone: str = ""
    node: str = ""
    detail: str = ""
    project: str = ""
    title: str = ""
    owner: str = ""
    expires: str = ""
    network: str = ""
    ending: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSweep:
    """What was found, and where could not be looked: with problems, an empty result proves nothing."""

    found: tuple[LiveResource, ...]
    problems: tuple[str, ...]


def sweep_local(run_id: str, *, nodes_dir: Path | None = None) -> tuple[LiveResource, ...]:
    """Return the processes that carry the run's tag and a node's, and the node folders; nothing means all is gone."""
    running = [
        _found(run_id, PROCESS, str(process.pid), process.node, process.command[:200])
        for process in processes.on_nodes(run_id)
    ]
    entries = sorted(nodes_dir.iterdir()) if nodes_dir is not None and nodes_dir.is_dir() else []
    folders = [_found(run_id, FOLDER, folder.name, folder.name, str(folder)) for folder in entries if folder.is_dir()]
    return (*running, *folders)


def labels_in(description: str) -> dict[str, str]:
    """Return the labels of what can have none, which a run writes into its description as NAME=VALUE."""
    return dict(_PAIR.findall(description))


def _found(run_id: str, kind: str, name: str, node: str, detail: str) -> LiveResource:
    return LiveResource(
        provider=Provider.LOCAL.value,
        region=LOCAL_REGION,
        type=kind,
        name=name,
        run_id=run_id,
        node=node,
        detail=detail,
    )
