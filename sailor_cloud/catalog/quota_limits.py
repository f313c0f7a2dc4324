"""Reads the limits of an account's quotas from the providers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sailor_cloud.catalog.quotas import QuotaNeed, QuotaStatus
from sailor_cloud.model.offer import Provider

Limit = tuple[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The account's quotas against the needs, and what could not be read."""

    rows: tuple[QuotaStatus, ...]
    missing: tuple[str, ...]


def read_quotas(
    wanted: Iterable[QuotaNeed],
    *,
    project: str | None = None,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Quotas:
    """Return limit and use of every quota wanted. Raises CredentialsError where a provider needs some.

    AWS tells limits only; what runs already is not taken off there. `progress` is told before each request how many
    are done, of how many, and what is asked for.
    """
    rows = tuple(wanted)
    missing: list[str] = []
    limits: dict[tuple[Provider, str, str], Limit] = {}
    regions = sorted({need.region for need in rows if need.provider is Provider.GCP})
    codes = [need for need in rows if need.provider is Provider.AWS]
    of = len(regions) + len(codes)
    if regions:
        limits |= _gcp(regions, project, missing, lambda done, what: progress(done, of, what))
    if codes:
        limits |= _aws(codes, missing, lambda done, what: progress(len(regions) + done, of, what))
    return Quotas(rows=tuple(_status(need, limits) for need in rows), missing=tuple(missing))


def _status(need: QuotaNeed, limits: Mapping[tuple[Provider, str, str], Limit]) -> QuotaStatus:
    limit, used = limits.get((need.provider, need.region, need.quota), (None, None))
    return QuotaStatus(need=need, limit=limit, used=used)


def _gcp(
    regions: Iterable[str], project: str | None, missing: list[str], progress: Callable[[int, str], None]
) -> dict[tuple[Provider, str, str], Limit]:
    from sailor_cloud.catalog.refresh.gcp_account import GcpAccount, gcp_errors

    account = GcpAccount(project)
    limits: dict[tuple[Provider, str, str], Limit] = {}
    for done, region in enumerate(regions):
        what = f"quotas of {region or account.project}"
        progress(done, what)
        with gcp_errors(what, missing):
            quotas = account.region_quotas(region) if region else account.project_quotas()
            limits |= {(Provider.GCP, region, quota.metric): (quota.limit, quota.usage) for quota in quotas}
    return limits


def _aws(
    needs: Iterable[QuotaNeed], missing: list[str], progress: Callable[[int, str], None]
) -> dict[tuple[Provider, str, str], Limit]:
    from sailor_cloud.catalog.refresh.aws_account import AwsAccount, aws_errors

    account = AwsAccount()
    limits: dict[tuple[Provider, str, str], Limit] = {}
    for done, need in enumerate(needs):
        what = f"quota {need.quota} of {need.region}"
        progress(done, what)
        with aws_errors(what, missing):
            limits[Provider.AWS, need.region, need.quota] = (account.quota(need.region, need.quota), None)
    return limits
