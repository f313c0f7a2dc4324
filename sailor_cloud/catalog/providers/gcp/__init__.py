"""Google Cloud: prices of machine parts, and quotas by project and region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sailor_cloud.catalog.providers import CatalogProvider, JobExample
from sailor_cloud.model.offer import Market

if TYPE_CHECKING:
    from sailor_cloud.catalog.account.quotas import QuotaLimits, QuotaNeed
    from sailor_cloud.catalog.account.reservations import Reservation
    from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.model.offer import Offer


class Gcp(CatalogProvider):
    # The upper end of the 5 to 15 % a day in Google's documentation of preemptible VMs (2023), for an average over all
    # types; GPUs differ by zone and season.
    preemptions_per_hour = 0.15 / 24
    reserves = frozenset({Market.RESERVATION, Market.FLEX_START})
    buys = frozenset({Market.FLEX_START})
    # 1,500 requests a minute; each running operation takes one about every eight seconds
    # (cloud.google.com/compute/api-quota, looked up 2026-11-24).
    nodes_at_once = 200
    publisher = "Google Cloud"
    public_prices = True
    accelerators_apart = True
    bucket_scheme = "gs"
    nat_free_buckets = True  # Private Google Access
    spans_regions = True
    has_account = True
    example = JobExample(
        zones=("us-central1-a", "us-central1-b"),
        account=("gcp: {project: my-project}", "the project that pays"),
    )

    def account_of(self, cloud: Cloud) -> str:
        return cloud.gcp.project if cloud.gcp is not None else ""

    def prices(self, request: PriceRequest, progress: Progress) -> Fetched:
        from sailor_cloud.catalog.providers.gcp.account import GcpAccount
        from sailor_cloud.catalog.providers.gcp.prices import fetch

        return fetch(GcpAccount(self.account_of(request.cloud)), request, progress)

    def sold(self, offers: Sequence[Offer], cloud: Cloud, missing: list[str]) -> Mapping[str, bool]:
        from sailor_cloud.catalog.providers.gcp.account import GcpAccount
        from sailor_cloud.catalog.providers.gcp.prices import sold

        return sold(GcpAccount(self.account_of(cloud)), offers, missing)

    def quota_reads(
        self, needs: Sequence[QuotaNeed], cloud: Cloud, missing: list[str]
    ) -> Sequence[tuple[str, Callable[[], QuotaLimits]]]:
        from sailor_cloud.catalog.providers.gcp.account import GcpAccount, is_of_family, read_family_limits, read_limits

        account = GcpAccount(self.account_of(cloud))
        reads: list[tuple[str, Callable[[], QuotaLimits]]] = [
            (what, partial(read_limits, account, region, what, missing))
            for region in sorted({need.region for need in needs})
            for what in (f"quotas of {region or account.project}",)
        ]
        if any(is_of_family(need.quota) for need in needs):
            reads.append(("quotas on GPUs per family", partial(read_family_limits, account, missing)))
        return reads

    def reservations(self, regions: Sequence[str], cloud: Cloud, missing: list[str]) -> Sequence[Reservation]:
        from sailor_cloud.catalog.providers.gcp.account import GcpAccount, read_reservations

        return read_reservations(GcpAccount(self.account_of(cloud)), regions, missing)


PROVIDER = Gcp()
