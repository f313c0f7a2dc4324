"""Clients of the AWS APIs for prices and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sailor_cloud.catalog.account.quotas import QuotaLimits, QuotaNeed
from sailor_cloud.catalog.account.reservations import Reservation, ReservationKind
from sailor_cloud.errors import CredentialsError, MissingPackageError
from sailor_cloud.model.offer import Provider

HOW = "run 'aws configure' or 'aws sso login', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_REFUSED = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
# DescribeCapacityReservations still lists reservations in these states, which no longer exist and never will.
RESERVATION_GONE = ("cancelled", "expired", "failed", "payment-failed", "unsupported")
# A few regions serve the Price List API; this one has every price.
_PRICING_REGION = "us-east-1"


class AwsAccount:
    """An account, with the configuration that boto3 finds: environment, shared files, AWS_PROFILE, AWS_ENDPOINT_URL."""

    def __init__(self) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise MissingPackageError("boto3", "aws") from error
        self._session = boto3.Session()
        self._config = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=10)
        self._clients: dict[tuple[str, str], Any] = {}
        if self._session.get_credentials() is None:
            raise CredentialsError(f"no AWS credentials; {HOW}")

    def regions(self) -> tuple[str, ...]:
        """Return the regions that the account has enabled."""
        found = self._client("ec2", _PRICING_REGION).describe_regions()["Regions"]
        return tuple(sorted(region["RegionName"] for region in found))

    def zone_ids(self, region: str) -> dict[str, str]:
        """Return zone ids by this account's zone names."""
        found = self._client("ec2", region).describe_availability_zones()["AvailabilityZones"]
        return {zone["ZoneName"]: zone["ZoneId"] for zone in found}

    def offered_types(self, region: str, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield (instance type, zone id) for types that match one of the patterns."""
        pages = self._client("ec2", region).get_paginator("describe_instance_type_offerings")
        filters = [{"Name": "instance-type", "Values": list(patterns)}]
        for page in pages.paginate(LocationType="availability-zone-id", Filters=filters):
            for row in page["InstanceTypeOfferings"]:
                yield row["InstanceType"], row["Location"]

    def spot_prices(self, region: str, types: Sequence[str], now: datetime) -> Iterator[Mapping[str, Any]]:
        """Yield the current Linux spot price of each type and zone."""
        pages = self._client("ec2", region).get_paginator("describe_spot_price_history")
        for page in pages.paginate(InstanceTypes=list(types), ProductDescriptions=["Linux/UNIX"], StartTime=now):
            yield from page["SpotPriceHistory"]

    def products(self, region: str) -> Iterator[str]:
        """Yield a region's on-demand Linux products with GPUs, as JSON text."""
        pages = self._client("pricing", _PRICING_REGION).get_paginator("get_products")
        terms = {
            "regionCode": region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "instanceFamily": "GPU instance",
        }
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in terms.items()]
        for page in pages.paginate(ServiceCode="AmazonEC2", Filters=filters):
            yield from page["PriceList"]

    def capacity_reservations(self, region: str) -> Iterator[Mapping[str, Any]]:
        """Yield current and future On-Demand Capacity Reservations and Capacity Blocks."""
        pages = self._client("ec2", region).get_paginator("describe_capacity_reservations")
        for page in pages.paginate():
            yield from (row for row in page["CapacityReservations"] if row["State"] not in RESERVATION_GONE)

    def quota(self, region: str, code: str) -> float:
        """Return the value of an EC2 quota."""
        found = self._client("service-quotas", region).get_service_quota(ServiceCode="ec2", QuotaCode=code)
        return float(found["Quota"]["Value"])

    def _client(self, service: str, region: str) -> Any:
        key = (service, region)
        if key not in self._clients:
            self._clients[key] = self._session.client(service, region_name=region, config=self._config)
        return self._clients[key]


def read_limit(account: AwsAccount, need: QuotaNeed, what: str, missing: list[str]) -> QuotaLimits:
    """Return the limit of a quota; AWS does not report its use."""
    with aws_errors(what, missing):
        return {(need.provider, need.region, need.quota): (account.quota(need.region, need.quota), None)}
    return {}


def read_reservations(account: AwsAccount, region: str, missing: list[str]) -> list[Reservation]:
    """Return the account's reservations in a region."""
    with aws_errors(f"capacity reservations of {region}", missing):
        return [_reservation(row, region) for row in account.capacity_reservations(region)]
    return []


def _reservation(row: Mapping[str, Any], region: str) -> Reservation:
    """Read one row of DescribeCapacityReservations (EC2 API reference, CapacityReservation)."""
    block = row.get("ReservationType") == "capacity-block"
    return Reservation(
        provider=Provider("aws"),
        region=region,
        zone=row.get("AvailabilityZoneId") or row["AvailabilityZone"],
        id=row["CapacityReservationId"],
        kind=ReservationKind.CAPACITY_BLOCK if block else ReservationKind.ON_DEMAND,
        instance_type=row["InstanceType"],
        count=row["TotalInstanceCount"],
        free=row["AvailableInstanceCount"],
        state=row["State"],
        starts_at=row.get("StartDate"),
        ends_at=row.get("EndDate"),
        taken_unasked=not block and row.get("InstanceMatchCriteria") == "open",
    )


@contextmanager
def aws_errors(what: str, missing: list[str]) -> Iterator[None]:
    """Name what could not be read in `missing`. Raises CredentialsError if AWS refuses the credentials."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        raise CredentialsError(f"no AWS credentials; {HOW}") from error
    except ClientError as error:
        fault = error.response.get("Error", {})
        code = str(fault.get("Code", ""))
        if code in _REFUSED:
            raise CredentialsError(f"AWS refused to read {what}: {code}; {HOW}") from error
        missing.append(f"aws {what}: {code} ({fault.get('Message', 'no message')})")
    except BotoCoreError as error:
        missing.append(f"aws {what}: {error}")
