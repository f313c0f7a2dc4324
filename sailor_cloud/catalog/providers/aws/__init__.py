"""AWS: prices of the Price List and the spot price history, zones by zone id, and quotas by code and region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sailor_cloud.catalog.providers import CatalogProvider, JobExample
from sailor_cloud.model.offer import Market
from sailor_cloud.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from sailor_cloud.catalog.account.quotas import QuotaLimits, QuotaNeed
    from sailor_cloud.catalog.account.reservations import Reservation
    from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.model.regions import Zone


class Aws(CatalogProvider):
    # The upper end, 20 % a month, of the highest closed band of the spot advisor, for an average over all types.
    preemptions_per_hour = 0.20 / HOURS_PER_MONTH
    reserves = frozenset({Market.RESERVATION, Market.CAPACITY_BLOCK})
    buys = reserves
    # EC2 accepts two RunInstances a second and region, and an instance needs about a minute
    # (docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html, looked up 2026-11-24).
    nodes_at_once = 120
    shared_rate = False
    caps_spot_prices = True
    publisher = "Amazon Web Services"
    public_prices = True
    price_lists = True
    bucket_scheme = "s3"
    general_curves = False  # they were measured on GCP or on premises, behind other network cards
    has_account = True
    example = JobExample(zones=("use1-az1", "use1-az2"))

    def zone_hint(self, name: str, zones: Iterable[Zone]) -> str:
        """Return a hint for a zone name such as us-east-1a, which means another zone in every AWS account."""
        ids = [zone.name for zone in zones if zone.region == name[:-1]]
        if not ids:
            return ""
        return (
            "zone names with a letter mean another zone in every AWS account; name one of the zone ids "
            f"{', '.join(ids)}, which 'aws ec2 describe-availability-zones' lists with your names"
        )

    def prices(self, request: PriceRequest, progress: Progress) -> Fetched:
        from sailor_cloud.catalog.providers.aws.account import AwsAccount
        from sailor_cloud.catalog.providers.aws.prices import fetch

        return fetch(AwsAccount(), request, progress)

    def sold(self, offers: Sequence[Offer], cloud: Cloud, missing: list[str]) -> Mapping[str, bool]:
        from sailor_cloud.catalog.providers.aws.account import AwsAccount
        from sailor_cloud.catalog.providers.aws.prices import sold

        return sold(AwsAccount(), offers, missing)

    def quota_reads(
        self, needs: Sequence[QuotaNeed], cloud: Cloud, missing: list[str]
    ) -> Sequence[tuple[str, Callable[[], QuotaLimits]]]:
        """Return the requests for limits; AWS does not report their use."""
        from sailor_cloud.catalog.providers.aws.account import AwsAccount, read_limit

        account = AwsAccount()
        return [
            (what, partial(read_limit, account, need, what, missing))
            for need in needs
            for what in (f"quota {need.quota} of {need.region}",)
        ]

    def reservations(self, regions: Sequence[str], cloud: Cloud, missing: list[str]) -> Sequence[Reservation]:
        from sailor_cloud.catalog.providers.aws.account import AwsAccount, read_reservations

        account = AwsAccount()
        return [row for region in regions for row in read_reservations(account, region, missing)]


PROVIDER = Aws()
