from __future__ import annotations

from datetime import date

import pytest

from sailor_cloud.provision.providers.slurm import inventory
from sailor_cloud.provision.providers.slurm.commands import NodeRow


def test_two_sizes_of_one_gpu_are_distinguished_by_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"n{size}|idle|gpu|ib,a100-{size}|gpu:a100:4|64|512000" for size in (40, 80)]
    monkeypatch.setattr(inventory, "node_rows", lambda: tuple(NodeRow(line) for line in lines))
    monkeypatch.setattr(inventory, "cluster_name", lambda: "lab")
    found = inventory.read_cluster(
        accelerators=["A100-40", "A100-80"], checkpoints="/shared", python="python3", as_of=date(2026, 11, 21)
    )
    groups = found.inventory.groups.values()
    assert {(one.accelerator, one.constraint, one.gres) for one in groups} == {
        ("A100-40", "a100-40", "gpu:a100"),
        ("A100-80", "a100-80", "gpu:a100"),
    }
