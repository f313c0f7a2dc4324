from __future__ import annotations

import datetime
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import distributed_c10d

from factories.run_specs import run_spec
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.store import open_store

TIMEOUT = datetime.timedelta(seconds=30)


def free_port() -> int:
    with socket.create_server(("", 0)) as one:
        return int(one.getsockname()[1])


def test_the_store_listens_at_the_address_where_ranks_meet_and_nowhere_else() -> None:
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(open_store, "127.0.0.2", port, rank=0, size=2, timeout=TIMEOUT)
        other = open_store("127.0.0.2", port, rank=1, size=2, timeout=TIMEOUT)
        store = held.result()
    store.set("word", "said")
    assert other.get("word") == b"said"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_name_that_means_the_machine_alone_is_not_where_others_come() -> None:
    port = free_port()
    store = open_store("localhost", port, rank=0, size=1, timeout=TIMEOUT)
    with socket.create_connection(("127.0.0.3", port), timeout=10):
        assert store.port == port


def test_behind_an_address_that_the_machine_lacks_the_store_listens_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*arguments: object, **options: object) -> socket.socket:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    port = free_port()
    monkeypatch.setattr(socket, "create_server", lacking)
    store = open_store("127.0.0.1", port, rank=0, size=1, timeout=TIMEOUT)
    with socket.create_connection(("127.0.0.3", port), timeout=10):
        assert store.port == port


def test_a_port_that_somebody_has_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken, pytest.raises(OSError, match="Address already in use"):
        open_store("127.0.0.2", taken.getsockname()[1], rank=0, size=1, timeout=TIMEOUT)


def test_a_rank_waits_for_others_as_long_when_a_communicator_is_made_as_in_any_collective(tmp_path: Path) -> None:
    """NCCL makes it at its first use, and ranks find each other in the store then."""
    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=tmp_path)
    world = World(spec, 0, layout.atoms(spec), backend="gloo")
    try:
        # What a group looks into: the only place that torch keeps it.
        [_, store] = distributed_c10d._world.pg_map[world.everyone]
        assert store.timeout == datetime.timedelta(minutes=30)
    finally:
        world.close()
