"""The variables of the roots for Google Cloud and AWS."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, aws_document, cloud_document, gcp_document
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.render import variables_text
from sailor_cloud.provision.render_cloud import CloudRoot, cloud_roots

GOLDEN = Path(__file__).parent / "golden"
SETTINGS: dict[str, Any] = {
    "run_id": "opt-350m-20261121-051313-a1b2",
    "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg==",
    "expires_at": datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC),
    "ssh_from": "203.0.113.7/32",
}


def rendered(document: PlanDocument, **changes: Any) -> tuple[CloudRoot, ...]:
    return cloud_roots(document, **{**SETTINGS, **changes})


def with_cloud(document: PlanDocument, **changes: Any) -> PlanDocument:
    cloud = document.job.cloud.model_copy(update=changes)
    return replace(document, job=document.job.model_copy(update={"cloud": cloud}))


@pytest.mark.parametrize("name", ["gcp-us-central1", "gcp-europe-west4", "aws-us-east-1"])
def test_variables_are_as_agreed(name: str) -> None:
    both = (*rendered(gcp_document()), *rendered(aws_document()))
    texts = {f"{root.provider}-{root.region}": variables_text(root.variables) for root in both}
    assert texts[name] == (GOLDEN / f"{name}.tfvars.json").read_text()


def test_there_is_one_root_per_provider_and_region() -> None:
    document = cloud_document(*((f"n{index}", offer) for index, offer in enumerate(GCP_OFFERS + AWS_OFFERS)))
    roots = rendered(document)
    places = [(root.provider, root.region) for root in roots]
    assert places == [
        (Provider.AWS, "us-east-1"),
        (Provider.GCP, "europe-west4"),
        (Provider.GCP, "us-central1"),
    ]
    assert sorted(name for root in roots for name in root.variables["nodes"]) == ["n0", "n1", "n2", "n3", "n4"]


def test_one_region_makes_the_network_and_the_others_use_it() -> None:
    first, second = rendered(gcp_document())
    assert first.variables["network"] is None
    assert second.variables["network"] == f"projects/my-project/global/networks/{first.variables['name']}-net"
    assert first.variables["subnet_cidr"] != second.variables["subnet_cidr"]


def test_a_private_network_has_no_door_for_ssh() -> None:
    document = with_cloud(gcp_document(), network=NetworkAccess.PRIVATE)
    assert {root.variables["ssh_from"] for root in rendered(document, ssh_from=None)} == {None}


def test_a_spot_node_may_cost_what_the_worst_case_reckons_with() -> None:
    document = aws_document()
    assert document.cost is not None
    cost = replace(document.cost, usd_per_hour=2.0, worst_case_usd_per_hour=3.0)
    (root,) = rendered(replace(document, cost=cost))
    prices = {name: node["max_usd_per_hour"] for name, node in root.variables["nodes"].items()}
    assert prices == {"n0": 2.25, "n1": 2.25, "n2": 1.5}


def test_everything_that_the_job_lacks_is_told_at_once() -> None:
    document = cloud_document(("n0", GCP_OFFERS[0]), ("n1", AWS_OFFERS[0]))
    bare = replace(document, job=document.job.model_copy(update={"cloud": Cloud()}))
    with pytest.raises(RequestError) as caught:
        rendered(bare, ssh_from=None)
    assert [problem.path for problem in caught.value.problems] == [
        "cloud.owner",
        "cloud.gcp.project",
        "cloud.image",
        "--ssh-from",
    ]
    assert "cloud.image: is missing (add an AMI with NVIDIA drivers" in str(caught.value)


def test_an_accelerator_that_can_not_be_attached_is_refused() -> None:
    wrong = replace(GCP_OFFERS[1], accelerator="L4-24")
    with pytest.raises(RequestError, match=r"plan\.nodes\.n0: L4-24 can't be attached to n1-standard-8"):
        rendered(cloud_document(("n0", wrong)))


def test_owners_become_valid_labels_on_google_cloud_and_stay_as_they_are_on_aws() -> None:
    (google, _), (amazon,) = rendered(gcp_document()), rendered(aws_document())
    assert google.variables["labels"]["sailor-cloud-owner"] == "me_example_org"
    assert amazon.variables["labels"]["sailor-cloud-owner"] == "Me@example.org"
