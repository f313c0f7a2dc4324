"""What a job needs of an account's quotas, and the account's values, read from the providers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sailor_cloud.catalog import providers
from sailor_cloud.catalog.account.quotas import Counted, QuotaLimits, QuotaNeed, QuotaRule, QuotaScope, QuotaStatus
from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.model.job import Cloud, Job
from sailor_cloud.model.offer import Market, Offer, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The account's quotas and the needs, and what could not be read."""

    rows: tuple[QuotaStatus, ...]
    missing: tuple[str, ...]


def needs(job: Job, catalog: Catalog, rules: Iterable[QuotaRule]) -> tuple[QuotaNeed, ...]:
    """Return the quotas that apply to a job's resources, and the most that it may use of each.

    vCPUs are those of the allowed offer with the most of them per device.
    """
    totals: dict[tuple[Provider, str, str], QuotaNeed] = {}
    by_accelerator: dict[tuple[Provider, str], list[QuotaRule]] = {}
    for rule in rules:
        by_accelerator.setdefault((rule.provider, rule.accelerator), []).append(rule)
    for provider, zone, accelerator, devices, markets in _wanted(job):
        for rule in by_accelerator.get((provider, accelerator), []):
            if not markets or rule.market not in {None, *markets}:
                continue
            offers = [
                offer
                for offer in catalog.offers(zones=[zone], accelerators=[accelerator])
                if offer.instance_type.startswith(rule.instance_prefix)
            ]
            if rule.instance_prefix and not offers:
                continue
            region = "" if rule.scope is QuotaScope.PROJECT else catalog.region_of(zone)
            per_device = _vcpus_per_device(offers) if rule.counts is Counted.VCPUS else 1.0
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
    """Return every quota for accelerators in a provider's regions, with a need of 0."""
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


def read_quotas(
    wanted: Iterable[QuotaNeed],
    *,
    cloud: Cloud | None = None,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Quotas:
    """Return limit and use of every quota wanted. Raises CredentialsError if a provider needs credentials.

    `cloud` names accounts if the credentials alone do not. `progress` gets, before each request, the number of finished
    requests, their total, and the subject.
    """
    rows = tuple(wanted)
    missing: list[str] = []
    reads = [
        read
        for provider in dict.fromkeys(need.provider for need in rows)
        for own in ([need for need in rows if need.provider is provider],)
        for read in providers.of(provider).quota_reads(own, cloud or Cloud(), missing)
    ]
    limits: dict[tuple[Provider, str, str], tuple[float, float | None]] = {}
    for done, (what, read) in enumerate(reads):
        progress(done, len(reads), what)
        limits |= read()
    return Quotas(rows=tuple(_status(need, limits) for need in rows), missing=tuple(missing))


def _status(need: QuotaNeed, limits: QuotaLimits) -> QuotaStatus:
    limit, used = limits.get((need.provider, need.region, need.quota), (None, None))
    return QuotaStatus(need=need, limit=limit, used=used)


def _wanted(job: Job) -> Iterator[tuple[Provider, str, str, int, tuple[Market, ...]]]:
    """Yield the devices of each zone, with the markets whose quotas apply to them."""
    for resource in job.resources:
        buys = {Market.SPOT, Market.ON_DEMAND, *providers.of(resource.provider).buys}
        bought = (market.quota for market in resource.markets if market in buys)
        markets = tuple(sorted({market for market in bought if market is not None}))
        for zone in sorted(set(resource.zones)):
            for accelerator, devices in sorted(resource.accelerators.items()):
                yield resource.provider, zone, accelerator, devices, markets


def _vcpus_per_device(offers: Iterable[Offer]) -> float:
    return max((offer.vcpus / offer.accelerator_count for offer in offers), default=0.0)
