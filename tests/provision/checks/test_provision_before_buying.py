"""What providers will refuse is asked before anything is bought."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from google.auth.exceptions import RefreshError

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document, with_job
from factories.cloud_runs import CloudRun, cloud_run, without_bucket
from sailor_cloud.errors import CredentialsError, MissingPackageError, ProvisionError, RequestError
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.outcomes import Applied
from sailor_cloud.provision.providers import of
from sailor_cloud.provision.providers.gcp import policies
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.provision.scopes import scopes_of

SIX = without_bucket(cloud_document(*((f"n{index}", AWS_OFFERS[0]) for index in range(6)), image=None))


@pytest.fixture
def google(tmp_path: Path) -> Iterator[CloudRun]:
    document = without_bucket(cloud_document(("n0", GCP_OFFERS[0]), ("n1", GCP_OFFERS[2]), image=None))
    with cloud_run(Provider("gcp"), tmp_path, document=document) as run:
        yield run


def test_nodes_with_several_network_cards_must_find_an_elastic_address_each(tmp_path: Path) -> None:
    with cloud_run(Provider("aws"), tmp_path, document=SIX) as run:
        before = set(run.cloud.resources)
        with pytest.raises(RequestError) as caught:
            run.apply()
        assert str(caught.value) == (
            "plan.nodes: need 6 elastic IP addresses in us-east-1, one for each with several network cards; the "
            "account may have 5 and uses 0 (set 'cloud: {network: private}', or ask for more: quota L-0263D0A3 of EC2)"
        )
        assert run.journal().entries() == ()
        assert set(run.cloud.resources) == before

        # The account has more, but others use some of them.
        run.cloud.quotas["L-0263D0A3"] = 7.0
        for _ in range(2):
            run.cloud.create("aws_eip", {"tags": {"team": "another-team"}}, {"region": "us-east-1"})
        with pytest.raises(RequestError, match="the account may have 7 and uses 2"):
            run.apply()
        run.cloud.quotas["L-0263D0A3"] = 8.0
        assert isinstance(run.apply(), Applied)
        # What the run has itself is not asked for again.
        assert isinstance(run.apply(), Applied)


def test_a_security_group_must_let_every_node_on_another_cloud_in(tmp_path: Path) -> None:
    both = cloud_document(("n0", AWS_OFFERS[1]), ("n1", GCP_OFFERS[0]), ("n2", GCP_OFFERS[0]))
    here = [placed for placed in placed_nodes(both) if placed.offer.provider == "aws"]
    with cloud_run(Provider("aws"), tmp_path) as run:
        assert of("aws").refusals(both, here) == []
        run.cloud.quotas["L-0EA8095F"] = 5.0
        (told,) = of("aws").refusals(both, here)
    assert str(told) == (
        "plan.nodes: include 2 on another cloud; a security group in us-east-1 may let 1 of them in "
        "(take fewer and larger nodes there, or ask for more: quota L-0EA8095F of VPC)"
    )


DENIED = {"listPolicy": {"allValues": "DENY"}}
US = {"listPolicy": {"allowedValues": ["in:us-locations"]}}
CENTRAL = {"listPolicy": {"allowedValues": ["is:us-central1", "in:europe-west4-locations"]}}
OTHERS = {"listPolicy": {"allowedValues": ["projects/debian-cloud"]}}
OURS = {"listPolicy": {"allowedValues": ["is:projects/deeplearning-platform-release", "projects/debian-cloud"]}}
UNDER = {"listPolicy": {"allowedValues": ["under:folders/7"]}}


@pytest.mark.parametrize(
    ("constraint", "policy", "forbidden"),
    [
        ("compute.vmExternalIpAccess", DENIED, "nodes with a public address (give nodes no public address with"),
        ("compute.vmExternalIpAccess", {"listPolicy": {"allValues": "ALLOW"}}, None),
        ("compute.requireShieldedVm", {"booleanPolicy": {"enforced": True}}, "nodes without Secure Boot (ask for an"),
        ("compute.requireShieldedVm", {"booleanPolicy": {}}, None),
        ("compute.trustedImageProjects", OTHERS, "the image projects/deeplearning-platform-release/"),
        ("compute.trustedImageProjects", DENIED, "the image projects/deeplearning-platform-release/"),
        ("compute.trustedImageProjects", OURS, None),
        ("compute.trustedImageProjects", UNDER, None),
        ("gcp.resourceLocations", US, "nodes in europe-west4 (name regions that it allows"),
        ("gcp.resourceLocations", DENIED, "nodes in europe-west4 and us-central1 (name regions"),
        ("gcp.resourceLocations", CENTRAL, None),
    ],
)
def test_policies_of_an_organization_are_asked_for(
    constraint: str, policy: dict[str, Any], forbidden: str | None, google: CloudRun
) -> None:
    google.cloud.policies = {f"constraints/{constraint}": policy}
    placed = placed_nodes(google.document)
    found = [str(problem) for problem in of("gcp").refusals(google.document, placed)]
    if forbidden is None:
        assert found == []
        return
    (told,) = found
    assert told.startswith(f"plan.nodes: a policy of your organization, constraints/{constraint}, forbids {forbidden}")
    with pytest.raises(RequestError, match="a policy of your organization"):
        google.apply()
    assert google.journal().entries() == ()


def test_every_image_of_a_plan_must_be_of_an_allowed_project(google: CloudRun) -> None:
    google.cloud.policies = {"constraints/compute.trustedImageProjects": OURS}
    a100_and_v100 = cloud_document(("n0", GCP_OFFERS[0]), ("n1", GCP_OFFERS[1]), image=None)
    (told,) = of("gcp").refusals(a100_and_v100, placed_nodes(a100_and_v100))
    assert "forbids the image projects/ubuntu-os-cloud/" in str(told)


def test_policies_that_can_not_be_asked_for_are_no_refusal(google: CloudRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER", "http://127.0.0.1:1")
    assert of("gcp").refusals(google.document, placed_nodes(google.document)) == []


@pytest.mark.parametrize("error", [RefreshError("expired"), ProvisionError("no google-auth")])
def test_policies_are_no_refusal_where_the_caller_has_no_credentials_for_them(
    error: Exception, google: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "google_api", mock.Mock(side_effect=error))
    assert of("gcp").refusals(google.document, placed_nodes(google.document)) == []


def test_a_mistake_of_our_own_in_asking_for_policies_is_not_hidden(
    google: CloudRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "google_api", mock.Mock(side_effect=TypeError("a bug")))
    with pytest.raises(TypeError, match="a bug"):
        of("gcp").refusals(google.document, placed_nodes(google.document))


@pytest.mark.parametrize(
    ("quota", "limit", "told"),
    [
        ("SSD_TOTAL_GB", 500.0, "need 600 of quota SSD_TOTAL_GB in us-central1; the project may use 500 and uses 0"),
        ("IN_USE_ADDRESSES", 5.0, "need 6 of quota IN_USE_ADDRESSES in us-central1; the project may use 5 and uses 0"),
        ("CPUS", 40.0, "need 48 of quota CPUS in us-central1; the project may use 40 and uses 0"),
        ("A2_CPUS", 0.0, None),
        ("SSD_TOTAL_GB", 600.0, None),
    ],
)
def test_quotas_on_disks_addresses_and_vcpus_are_read_before_anything_is_bought(
    tmp_path: Path, quota: str, limit: float, told: str | None
) -> None:
    offer = replace(GCP_OFFERS[1], vcpus=8)
    document = without_bucket(cloud_document(*((f"n{index}", offer) for index in range(6)), image=None))
    with cloud_run(Provider("gcp"), tmp_path, document=document) as run:
        run.cloud.quotas[quota] = limit
        found = [problem.message for problem in of("gcp").refusals(document, placed_nodes(document))]
        assert found == ([] if told is None else [told])
        if told is not None:
            with pytest.raises(RequestError, match=r"console\.cloud\.google\.com/iam-admin/quotas"):
                run.apply()
            assert run.journal().entries() == ()


def test_nodes_without_public_addresses_need_no_elastic_one(tmp_path: Path) -> None:
    private = without_bucket(with_job(SIX, network=NetworkAccess.PRIVATE, image=None))
    with cloud_run(Provider("aws"), tmp_path, document=private) as run:
        assert isinstance(run.apply(), Applied)


def test_a_plan_on_a_cloud_whose_client_is_missing_can_t_begin_and_nothing_is_asked_twice(google: CloudRun) -> None:
    lacking = mock.patch.dict(sys.modules, {"google.cloud.compute_v1": None, "google.cloud": None})
    command = r"run pip install 'sailor-cloud\[gcp\]'"
    with lacking, pytest.raises(MissingPackageError, match=command):
        check_supported(google.document)
    # A credentials error is one that is not retried.
    with lacking, pytest.raises(CredentialsError, match=command):
        instances(scopes_of(google.document), google.run.folder.run_id)
