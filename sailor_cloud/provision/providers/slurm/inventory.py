"""Writes the inventory of a Slurm cluster, as far as Slurm itself knows it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date

from sailor_cloud.errors import RequestError
from sailor_cloud.model.inventory import Inventory, NodeGroup, NodeRuntime
from sailor_cloud.model.provider import Provider
from sailor_cloud.provision.jobs import ImportedCluster
from sailor_cloud.provision.providers.slurm.commands import NOT_ANSWERING, NodeRow, cluster_name, node_rows

# Short names of accelerators, without their size.
_SHORT = {"titan": "titanrtx"}
# Accelerators of which plans take the kind with NVLink; a P100 of the price lists is a PCIe card.
_WITH_NVLINK = ("A100", "H100", "V100")
# Words in the names of GPUs, as NVML reports them to Slurm, that distinguish no accelerators.
_UNSPECIFIC = re.compile(r"nvidia|tesla|geforce|quadro|sxm\d*|pcie|hbm\d*e?")
# A part of a GPU, such as 1g.5gb or a100_3g.20gb (NVIDIA's MIG User Guide).
_MIG = re.compile(r"\d+g\.\d+gb")
# States of nodes that start no jobs until somebody repairs or resumes them (sinfo(1), "NODE STATE CODES").
_OUT_OF_SERVICE = ("down", "drain", "fail", "error", "inval", "future", "unknown")
# The network card, which Slurm does not report: a guess that the user must check.
GUESSED_GBIT_PER_S = 10.0
_GUESSED_LINK_GB_PER_S = 32.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Kind:
    """What equal nodes have in common; `gpus` are the GRES of whole GPUs."""

    partition: str
    gpus: tuple[str, ...]
    features: tuple[str, ...]
    cpus: int
    memory_mib: int

    @property
    def gres(self) -> str:
        return self.gpus[0] if self.gpus else ""


def read_cluster(*, accelerators: Collection[str], checkpoints: str, python: str, as_of: date) -> ImportedCluster:
    """Return the nodes with GPUs, in groups of equal partition, features and GRES.

    `accelerators` are the names that have profiles. Raises ProvisionError if Slurm does not answer, RequestError if it
    has no usable node.
    """
    notes: list[str] = []
    kinds = _kinds(node_rows(), notes)
    groups: dict[str, NodeGroup] = {}
    for kind, nodes in sorted(kinds.items()):
        if (accelerator := _accelerator(kind, nodes, accelerators, notes)) is None:
            continue
        # Among nodes of equal partition and GRES, a feature that only these have identifies them.
        rivals = [
            other.features
            for other in kinds
            if (other.partition, other.gres) == (kind.partition, kind.gres) and other.features != kind.features
        ]
        own = [one for one in kind.features if rivals and not any(one in others for others in rivals)]
        *type_, count = kind.gres.split(":")[1:] if kind.gres else ("1",)
        devices = int(count) if count.isdigit() else 1
        name = _group_name(
            type_[0] if type_ else kind.features[0] if kind.features else kind.partition, kind.partition, groups
        )
        groups[name] = NodeGroup(
            accelerator=accelerator,
            nodes=len(nodes),
            devices_per_node=devices,
            gbit_per_s=GUESSED_GBIT_PER_S,
            device_link_gb_per_s=_GUESSED_LINK_GB_PER_S if devices > 1 else None,
            vcpus=max(1, kind.cpus),
            memory_gib=max(1.0, round(kind.memory_mib / 1024, 1)),
            partition=kind.partition,
            constraint=own[0] if own else kind.features[0] if kind.features and not type_ else None,
            gres=":".join(["gpu", *type_]) if kind.gres else None,
            max_time=nodes[0].max_time_s,
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


def _kinds(rows: Sequence[NodeRow], notes: list[str]) -> dict[_Kind, list[NodeRow]]:
    """Return the nodes in service by kind. A node in several partitions counts once, in the first."""
    kinds: dict[_Kind, list[NodeRow]] = defaultdict(list)
    gone: list[NodeRow] = []
    parts: dict[str, list[NodeRow]] = defaultdict(list)
    for row in {row.name: row for row in reversed(rows)}.values():
        gpus = [one for one in row.gres if one.startswith("gpu:")]
        whole = tuple(one for one in gpus if not _MIG.search(one))
        for part in set(gpus) - set(whole):
            parts[part].append(row)
        if row.state.startswith(_OUT_OF_SERVICE) or row.state.endswith(NOT_ANSWERING):
            gone.append(row)
        elif whole or not gpus:
            kind = _Kind(
                partition=row.partition, gpus=whole, features=row.features, cpus=row.cpus, memory_mib=row.memory_mib
            )
            kinds[kind].append(row)
    notes += [f"left out {part} of {_names(parts[part])}: parts of GPUs have no profile" for part in sorted(parts)]
    if gone:
        notes.append(f"left out {_names(gone)}: down, draining or failing; raise 'nodes' once they are back")
    return kinds


def _names(rows: Sequence[NodeRow]) -> str:
    names = sorted(row.name for row in rows)
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _group_name(kind: str, partition: str, taken: Collection[str]) -> str:
    for name in (_plain(kind), _plain(f"{partition}-{kind}")):
        if name and name not in taken:
            return name
    return next(name for number in range(2, 10_000) if (name := _plain(f"{kind}-{number}")) not in taken)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")


def _accelerator(kind: _Kind, nodes: Sequence[NodeRow], known: Collection[str], notes: list[str]) -> str | None:
    """Return the accelerator that GRES or a feature names; a name with its size first, wherever it is."""
    type_ = [part for part in kind.gres.split(":")[1:] if not part.isdigit()]
    words = [_letters(word) for word in (*type_, *kind.features)]
    sized = {_letters(name): name for name in known}
    found = next((name for word in words if (name := sized.get(re.sub(r"gb?$", "", word)))), None)
    names = _names(nodes)
    if found is None:
        alike = next((alike for word in words if (alike := _of_any_size(word, known))), ())
        found = alike[0] if alike else None
        if others := " or ".join(alike[1:]):
            notes.append(f"{names}: assumed to be {found}; write {others} if they are")
    if found is None:
        what, features = kind.gres or "no GRES gpu", ",".join(kind.features) or "none"
        notes.append(f"left out {names}: {what} and features {features} name no known accelerator")
        return None
    if "pcie" in kind.gres.lower() and found.startswith(_WITH_NVLINK):
        notes.append(f"{names}: plans take these PCIe cards for {found} with NVLink, which is faster")
    if unused := ", ".join(kind.gpus[1:]):
        notes.append(f"left out {unused} of {names}: the nodes of a group have one kind of accelerator")
    return found


def _of_any_size(word: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the accelerators of a name without its size, that with the least memory first."""
    sizes = {name: name.rpartition("-") for name in known}
    named = {name: size for name, (stem, _, size) in sizes.items() if _letters(stem) == _SHORT.get(word, word)}
    return tuple(sorted((name for name, size in named.items() if size.isdigit()), key=lambda name: int(named[name])))


def _letters(name: str) -> str:
    """Return what distinguishes an accelerator: a10080gb for nvidia_a100-sxm4-80gb."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return "".join(word for word in words if not _UNSPECIFIC.fullmatch(word))
