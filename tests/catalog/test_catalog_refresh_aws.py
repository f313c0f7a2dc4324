"""Prices read from AWS with boto3, against moto with our own price list, spot history and offerings."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from moto import mock_aws

from factories.cloud_prices import aws_market
from sailor_cloud.catalog import load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.refresh import Refreshed, Refusal, refresh
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import CredentialsError, RequestError
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.testing.aws.prices import AwsFault, AwsWorld, SpotPrice, aws_world, product
from sailor_cloud.testing.moto_server import moto_server

NOW = datetime(2026, 11, 21, 6, tzinfo=UTC)
ON_DEMAND = "aws/use1-az6/p3.2xlarge/1xV100-16/on-demand"
SPOT = "aws/use1-az6/p3.2xlarge/1xV100-16/spot"


BOTH_WAYS = pytest.mark.parametrize("market", ["in process", "server"], indirect=True)


@pytest.fixture
def market(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with aws_world(aws_market()) as world:
        if getattr(request, "param", "in process") == "in process":
            with mock_aws():
                yield world
            return
        with moto_server() as address:
            monkeypatch.setenv("AWS_ENDPOINT_URL", address)
            yield world


def run(*regions: str) -> Refreshed:
    return refresh(
        providers=[Provider("aws")],
        regions=regions or ("us-east-1",),
        clock=FixedClock(NOW),
        progress=lambda what, done, total: None,
    )


@BOTH_WAYS
def test_on_demand_comes_from_the_price_list_and_zones_from_the_offerings(market: AwsWorld) -> None:
    result = run()
    assert result.complete
    offer = load().offer(ON_DEMAND)
    assert (offer.usd_per_hour, offer.as_of_from, offer.source) == (3.06, NOW.date(), "aws-price-list-api")
    assert load().offer("aws/use1-az1/p3.2xlarge/1xV100-16/on-demand").as_of_from == NOW.date()


@BOTH_WAYS
def test_spot_prices_belong_to_the_zone_id_of_the_accounts_zone_name(market: AwsWorld) -> None:
    run()
    offer = load().offer(SPOT)
    assert (offer.usd_per_hour, offer.source, offer.market) == (0.95, "ec2-spot-price-history", Market.SPOT)
    assert offer.as_of_from == NOW.date()
    other = load().offer("aws/use1-az1/p3.2xlarge/1xV100-16/spot")
    assert other.listed is not None
    assert (other.listed.usd_per_hour, other.listed.source) == (0.3707, "skypilot-catalog@00148f2a")


@BOTH_WAYS
def test_products_without_a_price_are_refused(market: AwsWorld) -> None:
    market.products.append('{"product": {"attributes": {"regionCode": "us-east-1"}}}')
    market.products.append("not json")
    result = run()
    assert result.refused[Refusal.ZERO_PRICE] == 1
    assert result.refused[Refusal.INCOMPLETE] == 2
    assert result.complete


@pytest.mark.parametrize(
    ("price", "age", "reason"),
    [
        ("0.0000", timedelta(hours=1), Refusal.ZERO_PRICE),
        ("0.00001", timedelta(hours=1), Refusal.BELOW_ONE_PERCENT),
        ("9.9000", timedelta(hours=1), Refusal.ABOVE_ON_DEMAND),
        ("0.9000", timedelta(days=91), Refusal.TOO_OLD),
    ],
)
def test_implausible_spot_prices_are_refused_and_counted(
    market: AwsWorld, price: str, age: timedelta, reason: Refusal
) -> None:
    before = load().offer(SPOT)
    del market.products[2]
    market.spot[0] = SpotPrice("p3.2xlarge", "us-east-1a", price, NOW - age)
    assert run().refused[reason] == 1
    assert load().offer(SPOT) == before


def test_a_row_without_a_price_is_refused(market: AwsWorld) -> None:
    market.spot[0].usd_per_hour = ""
    assert run().refused[Refusal.INCOMPLETE] == 1


def test_a_spot_price_rounded_above_on_demand_counts_as_on_demand(market: AwsWorld) -> None:
    market.spot[0].usd_per_hour = "3.06005"
    run()
    assert load().offer(SPOT).usd_per_hour == 3.06


def test_the_newest_of_several_rows_counts(market: AwsWorld) -> None:
    market.spot.append(SpotPrice("p3.2xlarge", "us-east-1a", "0.8000", NOW))
    market.spot.append(SpotPrice("p3.2xlarge", "us-east-1a", "0.7000", NOW - timedelta(days=2)))
    run()
    assert load().offer(SPOT).usd_per_hour == 0.8


def test_unknown_types_are_counted(market: AwsWorld) -> None:
    assert run().refused[Refusal.UNKNOWN_TYPE] == 1


def test_local_zones_are_left_out(market: AwsWorld) -> None:
    run()
    assert not [offer for offer in load().offers(instance_types=["p3.2xlarge"]) if "atl-1a" in offer.zone]


@BOTH_WAYS
def test_one_failing_region_is_named_and_the_others_are_kept(market: AwsWorld) -> None:
    market.faults.append(AwsFault("DescribeInstanceTypeOfferings", "InternalFault", times=1))
    result = run("us-east-1", "us-west-2")
    assert not result.complete
    assert result.folder is not None
    assert "us-east-1: instance type offerings" in result.missing[0]
    assert load().offer("aws/usw2-az1/p4d.24xlarge/8xA100-40/on-demand").as_of_from == NOW.date()
    assert load().offer(ON_DEMAND).as_of_from < NOW.date()


def test_an_unknown_region_is_refused_with_a_hint(market: AwsWorld) -> None:
    with pytest.raises(RequestError, match=r"'us-east-11' is no region of aws.*did you mean 'us-east-1'"):
        run("us-east-11")


def test_refused_credentials_say_what_to_do(market: AwsWorld) -> None:
    market.faults.append(AwsFault("DescribeInstanceTypeOfferings", "AuthFailure"))
    with pytest.raises(CredentialsError, match=r"AWS refused .*AuthFailure; run 'aws configure'"):
        run()
    assert snapshot.latest() is None


def test_missing_credentials_say_which_and_how(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CredentialsError, match="no AWS credentials; run 'aws configure'"):
        run()


def test_without_a_named_provider_those_without_credentials_are_skipped(
    market: AwsWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    market.products.append(product("us-west-2", "p3.2xlarge", 3.06))
    result = refresh(clock=FixedClock(NOW), regions=[], progress=lambda what, done, total: None)
    assert "no Google Cloud credentials" in result.skipped[Provider("gcp")]
    assert result.offers[Provider("aws")] > 0


def test_an_unknown_region_is_counted(market: AwsWorld) -> None:
    result = refresh(providers=[Provider("aws")], clock=FixedClock(NOW), progress=lambda what, done, total: None)
    assert result.complete
    assert result.refused[Refusal.UNKNOWN_REGION] > 0
