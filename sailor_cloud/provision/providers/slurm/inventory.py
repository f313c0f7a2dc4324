"""Writes the inventory of a Slurm cluster, as far as Slurm itself knows it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from datetime import date

from sailor_cloud.errors import RequestError
from sailor_cloud.model.inventory import Inventory, NodeGroup, NodeRuntime
from sailor_cloud.model.provider import Provider
from sailor_cloud.provision.jobs import ImportedCluster
from sailor_cloud.provision.providers.slurm.commands import NodeRow, cluster_name, node_rows

# Clusters' names of GPUs in GRES and features, without the memory size if there is only one.
_NAMES = {
    "a100": "A100-40",
    "a100_80g": "A100-80",
    "h100": "H100-80",
    "h200": "H200-141",
    "l4": "L4-24",
    "t4": "T4-16",
    "v100": "V100-16",
    "v100_32g": "V100-32",
    "rtx3090": "RTX-3090-24",
    "titan": "Titan-RTX-24",
}
# GPUs of two memory sizes under one name.
_SIZES = {"A100-40": "A100-80", "V100-16": "V100-32"}
# The network card, which Slurm does not report: a guess that the user must check.
GUESSED_GBIT_PER_S = 10.0
_GUESSED_LINK_GB_PER_S = 32.0


def read_cluster(*, accelerators: Collection[str], checkpoints: str, python: str, as_of: date) -> ImportedCluster:
    """Return the nodes with GPUs, in groups of equal partition, features and GRES.

    `accelerators` are the names that have profiles. Raises ProvisionError if Slurm does not answer, RequestError if it
    has no usable node.
    """
    notes: list[str] = []
    rows: dict[tuple[str, str, tuple[str, ...], int, int], list[NodeRow]] = defaultdict(list)
    seen: set[str] = set()
    for row in node_rows():
        if row.name in seen:
            # A node in several partitions counts once, in the first.
            continue
        seen.add(row.name)
        gres = next((one for one in row.gres if one.startswith("gpu:")), "")
        rows[row.partition, gres, row.features, row.cpus, row.memory_mib].append(row)
    groups: dict[str, NodeGroup] = {}
    for (partition, gres, features, cpus, memory_mib), nodes in sorted(rows.items()):
        accelerator = _accelerator(gres, features, accelerators)
        names = f"{nodes[0].name} and {len(nodes) - 1} more" if len(nodes) > 1 else nodes[0].name
        if accelerator is None:
            what = gres or "no GRES gpu"
            notes.append(
                f"left out {names}: {what} and features {','.join(features) or 'none'} name no known accelerator"
            )
            continue
        if (other := _SIZES.get(accelerator)) in accelerators:
            notes.append(f"{names}: assumed to be {accelerator}; write {other} if they are")
        # Among nodes of equal partition and GRES, a feature that only these have identifies them.
        rivals = [key[2] for key in rows if key[:2] == (partition, gres) and key[2] != features]
        own = [one for one in features if rivals and not any(one in others for others in rivals)]
        *kind, count = gres.split(":")[1:] if gres else ("1",)
        devices = int(count) if count.isdigit() else 1
        name = _group_name(kind[0] if kind else features[0] if features else partition, partition, groups)
        groups[name] = NodeGroup(
            accelerator=accelerator,
            nodes=len(nodes),
            devices_per_node=devices,
            gbit_per_s=GUESSED_GBIT_PER_S,
            device_link_gb_per_s=_GUESSED_LINK_GB_PER_S if devices > 1 else None,
            vcpus=max(1, cpus),
            memory_gib=max(1.0, round(memory_mib / 1024, 1)),
            partition=partition,
            constraint=own[0] if own else features[0] if features and not kind else None,
            gres=":".join(["gpu", *kind]) if gres else None,
        )
    if not groups:
        reason = "; ".join(notes) or "sinfo shows no nodes at all"
        raise RequestError(f"Slurm has no node whose GPUs have a profile; {reason}")
    notes.append(
        f"gbit_per_s {GUESSED_GBIT_PER_S:g} and device_link_gb_per_s {_GUESSED_LINK_GB_PER_S:g} are guesses, since "
        "Slurm does not know; measure them with 'sailor-cloud profile --link-to', and add links between groups"
    )
    notes.append("usd_per_hour is 0; write what your site charges for an hour of a node")
    found = Inventory(
        name=_plain(cluster_name()) or "cluster",
        scheduler=Provider("slurm"),
        as_of=as_of,
        groups=groups,
        runtime=NodeRuntime(python=python),
        checkpoints=checkpoints,
    )
    return ImportedCluster(inventory=found, notes=tuple(notes))


def _group_name(kind: str, partition: str, taken: Collection[str]) -> str:
    for name in (_plain(kind), _plain(f"{partition}-{kind}")):
        if name and name not in taken:
            return name
    return next(name for number in range(2, 10_000) if (name := _plain(f"{kind}-{number}")) not in taken)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")


def _accelerator(gres: str, features: tuple[str, ...], known: Collection[str]) -> str | None:
    """Return the accelerator that GRES or a feature names: by our own name, or by the clusters' usual one."""
    by_name = {_letters(name): name for name in known}
    gres_parts = [part for part in gres.split(":")[1:] if not part.isdigit()]
    for word in (*gres_parts, *features):
        plain = _letters(word)
        found = by_name.get(plain) or by_name.get(plain.removesuffix("gb").removesuffix("g"))
        if found is not None:
            return found
    # A name with its size is more specific than one without, wherever it is.
    for word in (*gres_parts, *features):
        if (usual := _NAMES.get(word.lower().replace("-", "_"))) in known:
            return usual
    return None


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
