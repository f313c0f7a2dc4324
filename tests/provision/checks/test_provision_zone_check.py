"""A zone that no source saw sell a type is asked for before anything is bought, and never refused for that alone."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from moto import mock_aws

from factories.cloud_plans import cloud_document, cloud_offer
from factories.cloud_prices import aws_market, google_world
from factories.documents import document
from sailor_cloud.catalog.providers.gcp import account as gcp_account
from sailor_cloud.errors import NotSoldError
from sailor_cloud.model.offer import Offer, Provider, ZoneConfidence
from sailor_cloud.provision.checks.zone_check import check_zones
from sailor_cloud.testing.aws.prices import AwsWorld, aws_world
from sailor_cloud.testing.google.prices import FakeGoogle, Fault


def unchecked(provider: Provider, zone: str, instance_type: str, accelerator: str, count: int = 1) -> Offer:
    offer = cloud_offer(f"{zone}/{instance_type}", provider, zone, instance_type, accelerator, count)
    return replace(offer, zone_confidence=ZoneConfidence.UNCHECKED)


P3 = unchecked(Provider("aws"), "use1-az6", "p3.2xlarge", "V100-16")
A2 = unchecked(Provider("gcp"), "us-central1-b", "a2-highgpu-1g", "A100-40")


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    quick = gcp_account.RetryLimits(call_s=5.0, first_pause_s=0.001, longest_pause_s=0.002, total_s=2.0)
    monkeypatch.setattr(gcp_account, "PATIENCE", quick)
    with FakeGoogle(google_world()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with aws_world(aws_market()) as world, mock_aws():
        yield world


@pytest.mark.usefixtures("aws")
def test_aws_is_queried_for_its_offerings() -> None:
    (note,) = check_zones(cloud_document(("n0", P3), ("n1", P3)))
    assert note == "aws says that it sells p3.2xlarge in use1-az6, which no source had seen"


@pytest.mark.usefixtures("google")
def test_google_is_asked_for_machine_and_accelerator_types() -> None:
    (note,) = check_zones(cloud_document(("n0", A2)))
    assert note == "gcp says that it sells a2-highgpu-1g in us-central1-b, which no source had seen"


@pytest.mark.usefixtures("aws", "google")
@pytest.mark.parametrize(
    "offer",
    [
        unchecked(Provider("aws"), "use1-az4", "p3.2xlarge", "V100-16"),
        unchecked(Provider("gcp"), "us-west1-b", "a2-highgpu-1g", "A100-40"),
        unchecked(Provider("gcp"), "us-central1-b", "n1-standard-8", "V100-16"),  # neither machine nor card is there
    ],
    ids=lambda offer: offer.id,
)
def test_types_that_the_provider_does_not_sell_are_refused_by_name(offer: Offer) -> None:
    other = P3 if offer.provider == Provider("aws") else A2
    wanted = f"{offer.provider} does not sell {offer.instance_type} in {offer.zone}; leave the zone out"
    with pytest.raises(NotSoldError, match=wanted) as refused:
        check_zones(cloud_document(("n0", other), ("n1", offer)))
    assert refused.value.offers == (offer.id,)


@pytest.mark.usefixtures("aws")
def test_zones_that_were_confirmed_are_not_queried() -> None:
    seen = replace(unchecked(Provider("aws"), "use1-az4", "p3.2xlarge", "V100-16"), zone_confidence=ZoneConfidence.SEEN)
    assert check_zones(cloud_document(("n0", seen))) == ()
    assert check_zones(document()) == ()


def test_without_an_account_to_query_a_note_replaces_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    (note,) = check_zones(cloud_document(("n0", P3)))
    assert note.startswith("no source has seen aws sell p3.2xlarge in use1-az6, and it can't be asked (no AWS cred")


def test_a_zone_that_can_not_be_read_is_reported_and_not_refused(google: FakeGoogle) -> None:
    google.faults = [Fault("machineTypes", 400, times=9)]
    (note,) = check_zones(cloud_document(("n0", A2)))
    assert "and it can't be asked (gcp machine types of Compute Engine" in note
