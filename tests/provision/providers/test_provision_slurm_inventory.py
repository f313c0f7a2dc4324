from __future__ import annotations

from datetime import date

import pytest

from sailor_cloud import catalog
from sailor_cloud.errors import RequestError
from sailor_cloud.provision.jobs import ImportedCluster
from sailor_cloud.provision.providers.slurm import inventory
from sailor_cloud.provision.providers.slurm.commands import NodeRow


def imported(monkeypatch: pytest.MonkeyPatch, *lines: str) -> ImportedCluster:
    """The inventory of nodes, each with name, state, partition, features and GRES."""
    rows = tuple(NodeRow(f"{line}|64|512000|1-12:00:00") for line in lines)
    monkeypatch.setattr(inventory, "node_rows", lambda: rows)
    monkeypatch.setattr(inventory, "cluster_name", lambda: "lab")
    known = catalog.load().accelerator_names()
    return inventory.read_cluster(accelerators=known, checkpoints="/s", python="python3", as_of=date(2026, 11, 21))


def test_two_sizes_of_one_gpu_are_distinguished_by_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(monkeypatch, *(f"n{size}|idle|gpu|ib,a100-{size}|gpu:a100:4" for size in (40, 80)))
    groups = found.inventory.groups.values()
    assert {(one.accelerator, one.constraint, one.gres, one.max_time) for one in groups} == {
        ("A100-40", "a100-40", "gpu:a100", 129600),
        ("A100-80", "a100-80", "gpu:a100", 129600),
    }
    assert not [note for note in found.notes if "assumed" in note]


@pytest.mark.parametrize(
    ("gres", "accelerator"),
    [
        ("gpu:a100:8(S:0-1)", "A100-40"),
        ("gpu:a100_80g:8", "A100-80"),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-1)", "A100-80"),
        ("gpu:a100-sxm4-40gb:8", "A100-40"),
        ("gpu:nvidia_h100_80gb_hbm3:8", "H100-80"),
        ("gpu:nvidia_h200:8", "H200-141"),
        ("gpu:nvidia_l40s:8", "L40S-48"),
        ("gpu:tesla_t4:8", "T4-16"),
        ("gpu:tesla_v100-sxm2-32gb:8", "V100-32"),
        ("gpu:nvidia_geforce_rtx_3090:8", "RTX-3090-24"),
        ("gpu:titan:8", "Titan-RTX-24"),
    ],
)
def test_gpus_are_known_by_the_names_that_sites_and_nvml_give_them(
    monkeypatch: pytest.MonkeyPatch, gres: str, accelerator: str
) -> None:
    (group,) = imported(monkeypatch, f"n1|idle|gpu*|cpu|{gres}").inventory.groups.values()
    assert (group.accelerator, group.devices_per_node) == (accelerator, 8)
    assert group.gres == gres.rpartition(":8")[0]


def test_a_name_without_a_size_is_the_smallest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(monkeypatch, "n1|idle|gpu|(null)|gpu:v100:4")
    assert found.notes[0] == "n1: assumed to be V100-16; write V100-32 if they are"


def test_pcie_cards_of_an_accelerator_with_nvlink_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(monkeypatch, "n1|idle|gpu|(null)|gpu:nvidia_a100_80gb_pcie:2", "n2|idle|p|(null)|gpu:p100-pcie:2")
    told = [note for note in found.notes if "PCIe" in note]
    assert told == ["n1: plans take these PCIe cards for A100-80 with NVLink, which is faster"]


def test_the_least_of_unequal_nodes_is_read() -> None:
    row = NodeRow("n1|idle|gpu|(null)|gpu:a100:4|64+|512000+|infinite")
    assert (row.cpus, row.memory_mib, row.max_time_s) == (64, 512000, None)


def test_parts_of_gpus_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("n1|idle|gpu|a100|gpu:1g.5gb:56(S:0-1)", "n2|idle|gpu|a100|gpu:a100_3g.20gb:2(S:0),gpu:a100:4(S:0-1)")
    found = imported(monkeypatch, *lines)
    (group,) = found.inventory.groups.values()
    assert (group.nodes, group.devices_per_node, group.gres) == (1, 4, "gpu:a100")
    assert found.notes[:2] == (
        "left out gpu:1g.5gb:56 of n1: parts of GPUs have no profile",
        "left out gpu:a100_3g.20gb:2 of n2: parts of GPUs have no profile",
    )
    with pytest.raises(RequestError, match="no node whose GPUs have a profile; left out gpu:1g"):
        imported(monkeypatch, lines[0])


def test_a_second_kind_of_gpu_in_a_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported(monkeypatch, "n1|idle|gpu|(null)|gpu:h100:4(S:0),gpu:v100:4(S:1)")
    assert found.notes[0] == "left out gpu:v100:4 of n1: the nodes of a group have one kind of accelerator"


def test_nodes_that_start_no_jobs_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ("idle", "mixed", "allocated", "idle~", "drained", "draining", "down*", "idle*", "failing")
    found = imported(monkeypatch, *(f"n{at}|{state}|gpu|(null)|gpu:h100:8" for at, state in enumerate(states)))
    assert [group.nodes for group in found.inventory.groups.values()] == [4]
    assert found.notes[0] == "left out n4 and 4 more: down, draining or failing; raise 'nodes' once they are back"


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("infinite", None), ("n/a", None), ("30:00", 1800), ("1:00:00", 3600), ("2-00:00:00", 172800)],
)
def test_a_partitions_time_limit_is_read(limit: str, seconds: int | None) -> None:
    assert NodeRow(f"n1|idle|gpu|(null)|gpu:h100:8|64|512000|{limit}").max_time_s == seconds
