"""GetProducts, with term-match filters and pages."""

from __future__ import annotations

import json
from typing import Any

from moto.core.responses import BaseResponse

from sailor_cloud.testing.aws import prices as aws_prices


class PricingResponse(BaseResponse):
    def __init__(self) -> None:
        super().__init__(service_name="pricing")

    def get_products(self) -> str:
        world = aws_prices.current()
        world.fail_if_told("GetProducts")
        request = json.loads(self.body)
        wanted = {row["Field"]: row["Value"] for row in request.get("Filters", [])}
        rows = [product for product in world.products if _matches(product, wanted)]
        start = int(request.get("NextToken") or 0)
        end = start + world.page_size
        answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": rows[start:end]}
        if end < len(rows):
            answer["NextToken"] = str(end)
        return json.dumps(answer)


def _matches(product: str, wanted: dict[str, str]) -> bool:
    try:
        attributes = json.loads(product)["product"]["attributes"]
    except (ValueError, KeyError, TypeError):
        return True
    return all(attributes.get(name, value) == value for name, value in wanted.items())
