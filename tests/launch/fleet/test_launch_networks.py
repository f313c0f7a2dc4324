"""Which network NCCL uses on the nodes of a generation."""

from __future__ import annotations

from typing import Any

import pytest

from factories.nodes import local_node
from sailor_cloud.launch.fleet.run_spec import must_use_sockets
from sailor_cloud.model.offer import Provider


@pytest.mark.parametrize(
    ("nodes", "sockets"),
    [
        pytest.param([{"efa": True}, {"efa": True}], False, id="EFA in one zone"),
        pytest.param([{"efa": True}, {"efa": False}], True, id="a node that came without EFA"),
        pytest.param([{"efa": True}, {"efa": True, "zone": "use1-az6"}], True, id="EFA in two zones"),
        pytest.param([{"efa": True}, {"provider": Provider("gcp")}], True, id="another cloud"),
        pytest.param([{"provider": Provider("slurm")}] * 2, False, id="a cluster, which has its own network"),
        pytest.param([{"provider": Provider("local")}], False, id="this machine"),
    ],
)
def test_nodes_use_efa_only_if_all_have_it_in_one_zone(nodes: list[dict[str, Any]], sockets: bool) -> None:
    about = {"provider": Provider("aws"), "zone": "use1-az4"}
    made = [local_node(f"n{number}", **{**about, **node}) for number, node in enumerate(nodes)]
    assert must_use_sockets(made) is sockets
