"""A Price List service for moto, which has none."""

from sailor_cloud.testing.moto_pricing.models import PricingBackend, pricing_backends

__all__ = ["PricingBackend", "pricing_backends"]
