"""Tests for the interface and the kind of network that NCCL and gloo use."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path
from typing import Any

import pytest

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import interfaces
from sailor_runtime.training.environment import prepare
from sailor_runtime.training.interfaces import agree_on_network, fabrics, interface_of

NAMES = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.7", "ib0": "10.1.0.7"}


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose address on the way to others is that of `ib0`; the name `head` means itself alone."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(NAMES, start=1)))
    monkeypatch.setattr(interfaces, "_address", NAMES.__getitem__)
    monkeypatch.setattr(interfaces, "_source_towards", lambda address: NAMES["ib0"])
    known = socket.getaddrinfo

    def resolved(host: str, *rest: Any, **more: Any) -> Any:
        return known("127.0.1.1" if host == "head" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def spec(folder: Path, own: str, other: str) -> RunSpec:
    whole = run_spec([(12, 1, [(0, 6, 1)])], directory=folder)
    [first] = whole.nodes
    nodes = (dataclasses.replace(first, address=own), dataclasses.replace(first, id="other", address=other))
    return dataclasses.replace(whole, nodes=nodes)


@pytest.mark.parametrize(
    ("own", "other", "interface"),
    [
        ("10.0.0.7", "10.0.0.8", "eth0"),
        ("10.1.0.7", "10.1.0.8", "ib0"),
        ("head", "10.1.0.8", "ib0"),
        ("127.0.0.2", "127.0.0.3", "lo"),
        ("203.0.113.5", "203.0.113.6", None),
    ],
)
def test_the_interface_is_the_one_with_the_nodes_address(
    tmp_path: Path, own: str, other: str, interface: str | None
) -> None:
    assert interface_of(spec(tmp_path, own, other), 0) == interface


def test_nccl_and_gloo_get_it_unless_the_cluster_has_chosen(tmp_path: Path) -> None:
    environ = {"GLOO_SOCKET_IFNAME": "bond0"}
    prepare(spec(tmp_path, "10.0.0.7", "10.0.0.8"), 0, tmp_path, environ)
    assert (environ["GLOO_SOCKET_IFNAME"], environ["NCCL_SOCKET_IFNAME"]) == ("bond0", "=eth0")
    prepare(spec(tmp_path, "127.0.0.2", "127.0.0.3"), 0, tmp_path, environ)
    assert (environ["GLOO_SOCKET_IFNAME"], environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


class Shared(dict[str, bytes]):
    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


@pytest.mark.parametrize(
    ("nodes", "chosen"),
    [
        ([{"InfiniBand fe80"}, {"InfiniBand fe80"}], None),
        ([{"InfiniBand fe80"}, set()], "Socket"),
        ([{"InfiniBand fe80"}, {"Ethernet fe80"}], "Socket"),
        ([{"InfiniBand fe80", "Ethernet fe80"}, {"InfiniBand fe80"}], None),
        ([set(), set()], None),
    ],
)
def test_all_ranks_use_one_kind_of_network(nodes: list[set[str]], chosen: str | None) -> None:
    store = Shared({f"fabrics/{rank}": "\n".join(own).encode() for rank, own in enumerate(nodes)})
    for rank, own in enumerate(nodes):
        environ: dict[str, str] = {}
        agree_on_network(store, rank, len(nodes), own, environ)
        assert environ.get("NCCL_NET") == chosen


def test_only_active_ports_are_fabrics(tmp_path: Path) -> None:
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = tmp_path / device / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        (port / "link_layer").write_text("InfiniBand\n")
        (port / "gids" / "0").write_text("fe80:0000:0000:0000:0002:c903:0010:abcd\n")
    assert fabrics(tmp_path) == {"InfiniBand fe80:0000:0000:0000"}


def test_ports_without_a_subnet_share_none(tmp_path: Path) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        port = tmp_path / name / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "link_layer").write_text("InfiniBand\n")
        (port / "gids" / "0").write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    assert len(fabrics(tmp_path)) == 2
    assert fabrics(tmp_path / "none") == set()
