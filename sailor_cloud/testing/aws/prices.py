"""Prices, spot history, offerings and quotas for moto, whose own are made up or missing.

`aws_world()` installs them temporarily, in process (`moto.mock_aws`) and in a `ThreadedMotoServer` alike.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from moto import backend_index
from moto.core.base_backend import BackendDict, BaseBackend
from moto.core.responses import ActionResult, BaseResponse
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend

from sailor_cloud.testing.moto_server import moto_gaps


@dataclass(slots=True)
class AwsFault:
    """Makes `times` calls of an operation end with an error code."""

    operation: str
    code: str
    times: int = 1


@dataclass(slots=True)
class SpotPrice:
    """One row of the spot price history; a blank price is omitted from the answer."""

    instance_type: str
    zone_name: str
    usd_per_hour: str
    timestamp: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclass(slots=True)
class AwsWorld:
    """The data of the fake services. `offerings` are (region, instance type, zone id)."""

    products: list[str] = field(default_factory=list)
    spot: list[SpotPrice] = field(default_factory=list)
    offerings: list[tuple[str, str, str]] = field(default_factory=list)
    quotas: dict[str, float] = field(default_factory=dict)
    faults: list[AwsFault] = field(default_factory=list)
    page_size: int = 2

    def raise_fault(self, operation: str) -> None:
        """Raise the error of the first remaining fault of an operation."""
        for fault in self.faults:
            if fault.operation == operation and fault.times > 0:
                fault.times -= 1
                raise EC2ClientError(fault.code, "said by a fault of the fake")


def product(region: str, instance_type: str, usd_per_hour: float, **attributes: str) -> str:
    """Return a product of the Price List in its API's form: JSON in a string."""
    term = {"priceDimensions": {"d": {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"}}}}
    return json.dumps(
        {
            "product": {
                "productFamily": "Compute Instance",
                "attributes": {"regionCode": region, "instanceType": instance_type, "capacitystatus": "Used"}
                | attributes,
            },
            "terms": {"OnDemand": {"t": term}},
            "publicationDate": "2026-11-20T00:00:00Z",
        }
    )


_worlds: list[AwsWorld] = []


def current() -> AwsWorld:
    """Return the world that the fake services serve now."""
    if not _worlds:
        raise RuntimeError("no AwsWorld is set up; use 'with aws_world(...)'")
    return _worlds[-1]


class PricingResponse(BaseResponse):
    """GetProducts, with term-match filters and pages."""

    def __init__(self) -> None:
        super().__init__(service_name="pricing")

    def get_products(self) -> str:
        current().raise_fault("GetProducts")
        request = json.loads(self.body)
        wanted = {row["Field"]: row["Value"] for row in request.get("Filters", [])}
        rows = [product for product in current().products if _matches(product, wanted)]
        return json.dumps({"FormatVersion": "aws_v1"} | _page(rows, request.get("NextToken"), "PriceList"))


def _matches(product: str, wanted: dict[str, str]) -> bool:
    try:
        attributes = json.loads(product)["product"]["attributes"]
    except (ValueError, KeyError, TypeError):
        return True
    return all(attributes.get(name, value) == value for name, value in wanted.items())


class PricingBackend(BaseBackend):
    """The Price List of a region of the API; its products are those of the current AwsWorld."""

    # The second base is moto's spelling of the first in its server.
    _url_module = SimpleNamespace(
        url_bases=[r"https?://api\.pricing\.(.+)\.amazonaws\.com", r"https?://pricing\.(.+)\.amazonaws\.com"],
        url_paths={"{0}/$": PricingResponse.dispatch},
    )


pricing_backends = BackendDict(PricingBackend, "pricing")


@contextmanager
def aws_world(world: AwsWorld) -> Iterator[AwsWorld]:
    """Serve a world through moto until the block ends."""
    pattern = re.compile(r"https?://(api\.)?pricing\.(.+)\.amazonaws\.com")
    patterns = [*backend_index.backend_url_patterns, ("pricing", pattern)]
    sys.modules["moto.pricing"] = sys.modules[__name__]  # where moto looks for a service's backend
    _worlds.append(world)
    with (
        patch.object(backend_index, "backend_url_patterns", patterns),
        moto_gaps(),
        patch.object(EC2Response, "describe_spot_price_history", _describe_spot_price_history),
        patch.object(EC2Response, "describe_instance_type_offerings", _describe_instance_type_offerings),
        patch.object(ServiceQuotasBackend, "get_service_quota", _get_service_quota),
    ):
        try:
            yield world
        finally:
            _worlds.pop()


def _page(rows: list[Any], token: str | None, key: str) -> dict[str, Any]:
    start = int(token or 0)
    end = start + current().page_size
    return {key: rows[start:end]} | ({"NextToken": str(end)} if end < len(rows) else {})


def _describe_spot_price_history(self: Any) -> Any:
    current().raise_fault("DescribeSpotPriceHistory")
    types = self._get_param("InstanceTypes", []) or []
    rows = [
        {
            "InstanceType": row.instance_type,
            "AvailabilityZone": row.zone_name,
            "ProductDescription": "Linux/UNIX",
            "Timestamp": row.timestamp,
        }
        | ({"SpotPrice": row.usd_per_hour} if row.usd_per_hour else {})
        for row in current().spot
        if row.zone_name.startswith(self.region) and (not types or row.instance_type in types)
    ]
    return ActionResult(_page(rows, self._get_param("NextToken"), "SpotPriceHistory"))


def _describe_instance_type_offerings(self: Any) -> Any:
    current().raise_fault("DescribeInstanceTypeOfferings")
    wanted = self._filters_from_querystring().get("instance-type", ["*"])
    rows = [
        {"InstanceType": name, "LocationType": "availability-zone-id", "Location": zone_id}
        for region, name, zone_id in current().offerings
        if region == self.region and any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    ]
    return ActionResult(_page(rows, self._get_param("NextToken"), "InstanceTypeOfferings"))


def _get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    if service_code != "ec2" or quota_code not in current().quotas:
        raise NoSuchResource
    value = current().quotas[quota_code]
    return {"ServiceCode": "ec2", "QuotaCode": quota_code, "QuotaName": quota_code, "Value": value}
