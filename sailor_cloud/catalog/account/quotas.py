"""Quotas: their names for accelerators, what a job needs of them, and what an account has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.files.tables import RowParser
from sailor_cloud.catalog.providers import tables
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider


class Counted(StrEnum):
    """What a quota counts."""

    DEVICES = "devices"
    VCPUS = "vcpus"


class QuotaScope(StrEnum):
    REGION = "region"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """The quota of an accelerator; `market` is None for a quota of both markets.

    It counts instance types that begin with `instance_prefix`.
    """

    provider: Provider
    accelerator: str
    instance_prefix: str
    market: Market | None
    quota: str
    counts: Counted
    scope: QuotaScope
    source: str
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNeed:
    """The most that a job may use of a quota; `region` is empty for a quota of the whole project."""

    provider: Provider
    region: str
    quota: str
    counts: Counted
    market: Market | None
    accelerators: tuple[str, ...]
    needed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaStatus:
    """A need and the account's quota; `limit` is None if it could not be read, `used` if it is not reported."""

    need: QuotaNeed
    limit: float | None
    used: float | None

    @property
    def enough(self) -> bool | None:
        if self.limit is None:
            return None
        return self.limit - (self.used or 0.0) >= self.need.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimit:
    """A limit on purchases; `covers` are accelerators, prefixes of instance types and markets (None: both markets)."""

    provider: Provider
    project: str
    region: str
    quota: str
    counts: Counted
    covers: frozenset[tuple[str, str, Market | None]]
    limit: float
    used: float
    read_on: date

    @property
    def remaining(self) -> float:
        return max(0.0, self.limit - self.used)

    @property
    def place(self) -> str:
        return self.region or "all regions"

    def units(self, offer: Offer) -> float:
        """Return how much of the quota one node of an offer takes, 0 if the quota does not apply to it."""
        if offer.provider is not self.provider or self.region not in ("", offer.region):
            return 0.0
        # A reservation of the account was counted when it was made.
        market = None if offer.terms is not None and offer.terms.held else offer.market.quota
        if market is None or not any(
            accelerator == offer.accelerator and covered in (None, market) and offer.instance_type.startswith(prefix)
            for accelerator, prefix, covered in self.covers
        ):
            return 0.0
        return float(offer.vcpus if self.counts is Counted.VCPUS else offer.accelerator_count)


# Limit and, if known, use, by provider, region and name of the quota.
QuotaLimits = Mapping[tuple[Provider, str, str], tuple[float, float | None]]


def load_rules(root: Path | None = None) -> tuple[QuotaRule, ...]:
    """Return the quota of every accelerator that has one. Raises DataError."""
    paths = tables("pricing", "quotas.csv", root=root or resources.data_root())
    # Data of providers from outside may lack the column.
    return tuple(rule for path in paths for rule in RowParser(QuotaRule).all(path, {"instance_prefix": ""}))
