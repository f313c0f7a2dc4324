"""The fake price services behave as the real ones do where sailor-cloud relies on it."""

import json
from collections.abc import Iterator

import boto3
import pytest
from botocore.exceptions import ClientError
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import InternalServerError, NotFound
from google.auth.credentials import AnonymousCredentials
from google.cloud import billing_v1, compute_v1
from moto import mock_aws

from factories.cloud_prices import aws_market, google_world
from sailor_cloud.testing.aws.prices import AwsFault, AwsWorld, aws_world, current, product
from sailor_cloud.testing.google.prices import FakeGoogle, Fault, sku


@pytest.fixture
def google() -> Iterator[FakeGoogle]:
    with FakeGoogle(google_world(), page_size=2) as server:
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with aws_world(aws_market()) as world, mock_aws():
        yield world


def reach(google: FakeGoogle) -> dict[str, object]:
    return {
        "client_options": ClientOptions(api_endpoint=google.endpoint),
        "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]
    }


def test_the_billing_client_reads_all_pages_of_skus(google: FakeGoogle) -> None:
    client = billing_v1.CloudCatalogClient(transport="rest", **reach(google))
    found = list(client.list_skus(parent="services/6F81-5844-456A"))
    assert [row.description for row in found] == [row["description"] for row in google.world.skus]
    assert len(google.requests) == -(-len(google.world.skus) // 2)


def test_prices_survive_the_split_into_units_and_nanos(google: FakeGoogle) -> None:
    google.world.skus = [sku("x", price, regions=["r"]) for price in (0.031611, 2.48, 13.000000001)]
    client = billing_v1.CloudCatalogClient(transport="rest", **reach(google))
    found = client.list_skus(parent="services/x")
    tiers = [row.pricing_info[0].pricing_expression.tiered_rates[0].unit_price for row in found]
    assert [tier.units + tier.nanos / 1e9 for tier in tiers] == pytest.approx([0.031611, 2.48, 13.000000001])


def test_the_compute_client_sees_zones_with_and_without_types(google: FakeGoogle) -> None:
    google.world.unreachable.add("us-east1-b")
    client = compute_v1.MachineTypesClient(**reach(google))
    found = dict(client.aggregated_list(project="p"))
    assert [kind.name for kind in found["zones/us-west1-b"].machine_types] == ["n1-standard-8"]
    assert found["zones/us-east1-b"].warning.code == "UNREACHABLE"


def test_a_fault_ends_after_its_number_of_times(google: FakeGoogle) -> None:
    google.faults = [Fault("/skus", 500)]
    client = billing_v1.CloudCatalogClient(transport="rest", **reach(google))
    with pytest.raises(InternalServerError):
        list(client.list_skus(parent="services/x"))
    assert list(client.list_skus(parent="services/x"))


def test_an_unknown_resource_is_not_found(google: FakeGoogle) -> None:
    with pytest.raises(NotFound):
        compute_v1.RegionsClient(**reach(google)).get(project="p", region="nowhere")


def test_products_are_filtered_and_paged(aws: AwsWorld) -> None:
    aws.page_size = 1
    client = boto3.client("pricing", region_name="us-east-1")
    filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}]
    pages = list(client.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters))
    types = [json.loads(row)["product"]["attributes"]["instanceType"] for page in pages for row in page["PriceList"]]
    assert types == ["p3.2xlarge", "p3.8xlarge", "p4d.24xlarge"]
    assert len(pages) == 3


def test_spot_history_offerings_and_quotas_are_those_of_the_world(aws: AwsWorld) -> None:
    aws.quotas["L-7212CCBC"] = 64.0
    ec2 = boto3.client("ec2", region_name="us-east-1")
    history = ec2.describe_spot_price_history(InstanceTypes=["p3.2xlarge"])["SpotPriceHistory"]
    assert [(row["AvailabilityZone"], row["SpotPrice"]) for row in history] == [("us-east-1a", "0.9500")]
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone-id", Filters=[{"Name": "instance-type", "Values": ["p3.*"]}]
    )
    assert {row["InstanceType"] for page in pages for row in page["InstanceTypeOfferings"]} == {
        "p3.2xlarge",
        "p3.8xlarge",
    }
    quotas = boto3.client("service-quotas", region_name="us-east-1")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-7212CCBC")["Quota"]["Value"] == 64.0


def test_a_requested_fault_reaches_the_client_with_its_code(aws: AwsWorld) -> None:
    aws.faults.append(AwsFault("DescribeSpotPriceHistory", "UnauthorizedOperation"))
    ec2 = boto3.client("ec2", region_name="us-east-1")
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.describe_spot_price_history()
    assert ec2.describe_spot_price_history()["SpotPriceHistory"]


def test_moto_is_itself_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with aws_world(AwsWorld(products=[product("r", "t", 1.0)])):
        assert current().products
    with pytest.raises(RuntimeError, match="no AwsWorld is set up"):
        current()
    with mock_aws():
        rows = boto3.client("ec2", region_name="us-east-1").describe_spot_price_history(
            InstanceTypes=["t3.micro"], MaxResults=5
        )["SpotPriceHistory"]
        assert {row["SpotPrice"] for row in rows} == {"0.00001"}
