"""Nodes of this machine, as a run sees them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import ReachableNode


def local_node(name: str, **changes: Any) -> ReachableNode:
    """Return a node of one CPU thread in the first local zone; nobody has to be there."""
    about: dict[str, Any] = {
        "id": name,
        "provider": Provider("local"),
        "region": "local",
        "zone": "local-a",
        "instance_type": "local-cpu-fast",
        "accelerator": "CPU-fast",
        "devices": 1,
        "address": "127.0.0.1",
        "port": 22,
        "user": "sailor",
        "host_public_key": "",
        "private_address": "127.0.0.1",
        "workdir": "",
        "created_at": datetime(2026, 11, 20, tzinfo=UTC),
    }
    return ReachableNode(**{**about, **changes})
