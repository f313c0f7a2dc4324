"""Quotas: what an account may buy, against the most that a job may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.tables import records
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Confidence, Market, Provider


class Counted(StrEnum):
    """What a quota counts."""

    DEVICES = "devices"
    VCPUS = "vcpus"


class QuotaScope(StrEnum):
    REGION = "region"
    PROJECT = "project"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """Which quota an accelerator is bought under; `market` is None for a quota of both markets."""

    provider: Provider
    accelerator: str
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
    """A need beside what the account has; `limit` is None where it could not be read, `used` where it is not told."""

    need: QuotaNeed
    limit: float | None
    used: float | None

    @property
    def enough(self) -> bool | None:
        if self.limit is None:
            return None
        return self.limit - (self.used or 0.0) >= self.need.needed


_COLUMNS = ("provider", "accelerator", "market", "quota", "counts", "scope", "source", "confidence")


def load_rules(root: Path | None = None) -> tuple[QuotaRule, ...]:
    """Return the quota of every accelerator that has one. Raises DataError."""
    path = (root or resources.data_root()) / "pricing" / "quotas.csv"
    return tuple(records(path, _COLUMNS, _rule))


def needs(job: Job, catalog: Catalog, rules: Iterable[QuotaRule]) -> tuple[QuotaNeed, ...]:
    """Return the quotas that a job's resources fall under and the most that it may use of each.

    vCPUs are those of the instance with most of them per device among the offers that the job allows.
    """
    totals: dict[tuple[Provider, str, str], QuotaNeed] = {}
    by_accelerator: dict[tuple[Provider, str], list[QuotaRule]] = {}
    for rule in rules:
        by_accelerator.setdefault((rule.provider, rule.accelerator), []).append(rule)
    for provider, zone, accelerator, devices, markets in _wanted(job):
        for rule in by_accelerator.get((provider, accelerator), []):
            if rule.market is not None and rule.market not in markets:
                continue
            region = "" if rule.scope is QuotaScope.PROJECT else catalog.region_of(zone)
            per_device = _vcpus_per_device(catalog, zone, accelerator) if rule.counts is Counted.VCPUS else 1.0
            key = (provider, region, rule.quota)
            before = totals.get(key)
            totals[key] = QuotaNeed(
                provider=provider,
                region=region,
                quota=rule.quota,
                counts=rule.counts,
                market=rule.market,
                accelerators=tuple(sorted({*(before.accelerators if before else ()), accelerator})),
                needed=(before.needed if before else 0.0) + devices * per_device,
            )
    return tuple(totals[key] for key in sorted(totals))


def all_needs(rules: Iterable[QuotaRule], provider: Provider, regions: Iterable[str]) -> tuple[QuotaNeed, ...]:
    """Return every quota of a provider's regions that accelerators fall under, with nothing needed of them."""
    names: dict[tuple[str, str], list[QuotaRule]] = {}
    for rule in rules:
        if rule.provider is provider:
            places = [""] if rule.scope is QuotaScope.PROJECT else list(regions)
            for region in places:
                names.setdefault((region, rule.quota), []).append(rule)
    return tuple(
        QuotaNeed(
            provider=provider,
            region=region,
            quota=quota,
            counts=found[0].counts,
            market=found[0].market,
            accelerators=tuple(sorted({rule.accelerator for rule in found})),
            needed=0.0,
        )
        for (region, quota), found in sorted(names.items())
    )


def _wanted(job: Job) -> Iterator[tuple[Provider, str, str, int, tuple[Market, ...]]]:
    for resource in job.resources:
        for zone in sorted(set(resource.zones)):
            for accelerator, devices in sorted(resource.accelerators.items()):
                yield resource.provider, zone, accelerator, devices, resource.markets


def _vcpus_per_device(catalog: Catalog, zone: str, accelerator: str) -> float:
    offers = catalog.offers(zones=[zone], accelerators=[accelerator])
    return max((offer.vcpus / offer.accelerator_count for offer in offers), default=0.0)


def _rule(
    provider: str,
    accelerator: str,
    market: str,
    quota: str,
    counts: str,
    scope: str,
    source: str,
    confidence: str,
) -> QuotaRule:
    return QuotaRule(
        provider=Provider(provider),
        accelerator=accelerator,
        market=Market(market) if market else None,
        quota=quota,
        counts=Counted(counts),
        scope=QuotaScope(scope),
        source=source,
        confidence=Confidence(confidence),
    )
