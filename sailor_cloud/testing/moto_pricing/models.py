"""The backend; what it serves is set by sailor_cloud.testing.aws.prices."""

from __future__ import annotations

from moto.core.base_backend import BackendDict, BaseBackend


class PricingBackend(BaseBackend):
    """The Price List of a region of the API; its products are those of the current AwsWorld."""


pricing_backends = BackendDict(PricingBackend, "pricing")
