"""Clouds answer long before what they were asked to delete is gone; a removal waits for that."""

from __future__ import annotations

from typing import Any

import pytest

from factories.cloud_runs import INSTANCE, PROJECT, reached
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.scopes import remove_from, scopes_named, sweep_scopes
from sailor_cloud.testing.terraform.cloud import FakeCloud

RUN = "slow-20261121-051313-a1b2"
LABELS = {"sailor-cloud-run": RUN, "sailor-cloud-node": "n0"}


def bought(cloud: FakeCloud, provider: Provider) -> None:
    """A node, and the network that it stands in."""
    if provider == Provider("gcp"):
        text = " ".join(f"{name}={value}" for name, value in LABELS.items())
        project = {"project": PROJECT}
        wide = cloud.create("google_compute_network", {"name": "net", "description": text}, project)
        narrow = {"name": "subnet", "description": text, "region": "us-central1", "network": wide["self_link"]}
        subnet = cloud.create("google_compute_subnetwork", narrow, project)
        node: dict[str, Any] = {
            "name": "node",
            "zone": "us-central1-a",
            "labels": LABELS,
            "network_interface": [{"subnetwork": subnet["self_link"]}],
        }
        cloud.create(INSTANCE[provider], node, project)
        return
    region = {"region": "us-east-1"}
    vpc = cloud.create("aws_vpc", {"tags": LABELS}, region)
    zone = {"availability_zone_id": "use1-az4"}
    subnet = cloud.create("aws_subnet", {"tags": LABELS, "vpc_id": vpc["id"], **zone}, region)
    wanted = {"tags": LABELS, "subnet_id": subnet["id"], "instance_type": "t3.micro"}
    cloud.create(INSTANCE[provider], wanted, region)


@pytest.mark.parametrize("looks", [0, 1, 3])
@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")])
def test_containers_of_a_node_are_deleted_once_the_node_is_gone(provider: Provider, looks: int) -> None:
    with reached(provider) as cloud:
        before = set(cloud.resources)
        bought(cloud, provider)
        cloud.deletion_looks = looks
        gcp = provider == Provider("gcp")
        scopes = scopes_named("project", [PROJECT]) if gcp else scopes_named("region", ["us-east-1"])
        found = sweep_scopes(scopes, run_id=RUN).found
        assert remove_from(found, poll_s=0.0) == ()
        assert sweep_scopes(scopes, run_id=RUN).found == ()
        assert set(cloud.resources) == before
