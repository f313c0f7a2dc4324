from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sailor_runtime.agent import rendezvous
from sailor_runtime.agent.rendezvous import Artefact, Rendezvous, RendezvousError

GROUPS = {"fast": ["n0", "n2"], "slow": ["n1"]}


def artefact(tmp_path: Path, **changes: Any) -> Artefact:
    spec = {"generation": 3, "plan_hash": "abc", "nodes": [{"id": f"n{i}", "address": ""} for i in range(3)]}
    told = {
        "artefact_version": 1,
        "groups": [{"name": name, "nodes": nodes} for name, nodes in GROUPS.items()],
        "master": "n1",
        "token": "secret",
        "spec": spec,
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(told | changes))
    return Artefact.read(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def test_a_node_is_its_place_in_its_group_and_not_what_a_scheduler_counts(tmp_path: Path) -> None:
    plan = artefact(tmp_path)
    assert [plan.node("fast", 0), plan.node("fast", 1), plan.node("slow", 0)] == ["n0", "n2", "n1"]
    assert plan.first == "n0"
    with pytest.raises(RendezvousError, match=r"no node 1 of group 'slow'; it has fast 0-1, slow 0-0"):
        plan.node("slow", 1)


def test_a_plan_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RendezvousError, match="has artefact_version 2, this runtime reads 1"):
        artefact(tmp_path, artefact_version=2)
    with pytest.raises(RendezvousError, match="is not a plan for a job"):
        artefact(tmp_path, spec={})


def test_a_plan_without_a_token_uses_the_job_s_and_without_any_nobody_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_JOB_TOKEN", "drawn")
    assert artefact(tmp_path, token="").token == "drawn"
    assert artefact(tmp_path).token == "secret"
    monkeypatch.delenv("SAILOR_JOB_TOKEN")
    plan = artefact(tmp_path, token="")
    for node in ("n0", "n1"):
        with pytest.raises(RendezvousError, match="no token and SAILOR_JOB_TOKEN is not set"):
            Rendezvous(plan, node, f"127.0.0.1:{free_port()}", lambda nodes: None).join(1)


def test_all_nodes_get_one_spec_with_everybodys_address(tmp_path: Path) -> None:
    plan, meeting, specs = artefact(tmp_path), f"127.0.0.1:{free_port()}", {}
    lost: list[str] = []
    broke = threading.Event()

    def told(nodes: list[str]) -> None:
        lost.extend(nodes)
        broke.set()

    ends = {node: Rendezvous(plan, node, meeting, told if node == "n0" else lambda nodes: None) for node in plan.nodes}

    def join(node: str) -> None:
        specs[node] = ends[node].join(20)

    threads = [threading.Thread(target=join, args=(node,)) for node in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(specs.values())) == 1
    spec = json.loads(specs["n0"])
    assert {node["id"]: node["address"] for node in spec["nodes"]} == dict.fromkeys(("n0", "n1", "n2"), "127.0.0.1")
    assert spec["master_address"] == "127.0.0.1"
    assert 29500 <= spec["master_port"] <= 29599
    # A node that ends on purpose says so; one whose connection breaks is lost.
    ends["n2"].leave()
    [peer] = ends["n1"]._peers.values()
    peer.shutdown(socket.SHUT_RDWR)
    assert broke.wait(10)
    assert lost == ["n1"]
    for end in ends.values():
        end.leave()


def test_a_node_that_is_alone_waits_for_nobody(tmp_path: Path) -> None:
    plan = artefact(
        tmp_path, groups=[{"name": "slow", "nodes": ["n1"]}], spec={"generation": 1, "plan_hash": "", "nodes": []}
    )
    begun = time.monotonic()
    assert json.loads(Rendezvous(plan, "n1", f"127.0.0.1:{free_port()}", lambda nodes: None).join(20))
    assert time.monotonic() - begun < 5


def test_nodes_that_do_not_come_are_named(tmp_path: Path) -> None:
    meeting = f"127.0.0.1:{free_port()}"
    with pytest.raises(RendezvousError, match="these nodes did not come in time: n1, n2"):
        Rendezvous(artefact(tmp_path), "n0", meeting, lambda nodes: None).join(0.1)
    with pytest.raises(RendezvousError, match="no answer at"):
        Rendezvous(artefact(tmp_path), "n1", meeting, lambda nodes: None).join(0.1)
    with pytest.raises(RendezvousError, match="must be HOST:PORT"):
        Rendezvous(artefact(tmp_path), "n1", "somewhere", lambda nodes: None)


def test_peers_with_invalid_messages_are_rejected_and_the_others_meet(tmp_path: Path) -> None:
    plan, port = artefact(tmp_path), free_port()
    answers: list[bytes] = []

    def stranger() -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
                    peer.sendall(b'{"node": "n1", "plan_hash": "another", "port": 1}\n')
                    answers.append(peer.recv(100))
                    return
            except OSError:
                continue

    threading.Thread(target=stranger).start()
    with pytest.raises(RendezvousError, match="n1, n2"):
        Rendezvous(plan, "n0", f"127.0.0.1:{port}", lambda nodes: None).join(0.5)
    assert answers == [b""]


@pytest.mark.parametrize(
    "word",
    [
        b"[" * 4096,
        b'{"node": "n1", "plan_hash": "abc", "port": 1}\n',
        b'{"node": "n1", "plan_hash": "abc", "port": 1, "token": "guess"}\n',
        b'{"node": "n1", "plan_hash": "abc", "port": 1, "token": "\\ud800"}\n',
    ],
)
def test_a_plans_hash_is_no_credential_and_deep_brackets_end_no_agent(tmp_path: Path, word: bytes) -> None:
    port = free_port()

    def stranger() -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
                    peer.sendall(word)
                    peer.recv(100)
                    return
            except OSError:
                continue

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises(RendezvousError, match="n1, n2"):
        Rendezvous(artefact(tmp_path), "n0", f"127.0.0.1:{port}", lambda nodes: None).join(0.3)
    thread.join()


def test_silent_or_slow_unknown_peers_delay_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MOST_PENDING", 8)
    plan, port, specs = artefact(tmp_path), free_port(), {}
    ends = {node: Rendezvous(plan, node, f"127.0.0.1:{port}", lambda nodes: None) for node in plan.nodes}

    def join(node: str) -> None:
        specs[node] = ends[node].join(20)

    threads = {node: threading.Thread(target=join, args=(node,)) for node in ends}
    threads["n0"].start()
    strangers: list[socket.socket] = []
    while len(strangers) < 20:
        try:
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        except OSError:
            continue
    begun = time.monotonic()
    strangers[-1].sendall(b" ")
    threads["n1"].start()
    threads["n2"].start()
    for thread in threads.values():
        thread.join()
    assert len(specs) == 3
    # One after the other they would have had five seconds each.
    assert time.monotonic() - begun < 5
    for one in (*strangers, *ends.values()):
        one.close() if isinstance(one, socket.socket) else one.leave()


def test_a_peer_that_never_ends_its_message_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_MESSAGE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as there:
        there.sendall(b" ")
        [(peer, address, message)] = rendezvous._first_messages(server, time.monotonic() + 0.3)
        assert (address, message) == ("127.0.0.1", {})
        peer.close()
