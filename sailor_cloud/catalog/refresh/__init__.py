"""Reads today's prices from the providers' APIs into a new snapshot."""

from sailor_cloud.catalog.providers.fetched import Progress, Refusal
from sailor_cloud.catalog.refresh.refresh import Refreshed, refresh, write_known

__all__ = ["Progress", "Refreshed", "Refusal", "refresh", "write_known"]
