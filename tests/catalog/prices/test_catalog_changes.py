"""What moved, and how prices were before."""

import itertools
from datetime import UTC, date, datetime

import pytest

from sailor_cloud.catalog import load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.prices import changes
from sailor_cloud.catalog.providers.fetched import Shape, make_offer
from sailor_cloud.model.offer import Market, Offer

ONE = "gcp/us-central1-a/a2-highgpu-1g/1xA100-40/on-demand"


def repriced(usd_per_hour: float, day: date, *, market: Market = Market.ON_DEMAND) -> Offer:
    zone = load().zone("us-central1-a")
    shape = Shape(instance_type="a2-highgpu-1g", accelerator="A100-40", accelerator_count=1, vcpus=12, memory_gib=85)
    return make_offer(zone, shape, market, usd_per_hour, as_of=day, source="test")


def refreshed(offers: list[Offer], taken_at: datetime, withdrawn: tuple[str, ...] = ()) -> None:
    catalog = load()
    snapshot.write(offers, withdrawn, [catalog.zone(name) for name in catalog.zones()], taken_at=taken_at)


@pytest.fixture
def two_refreshes() -> None:
    refreshed([repriced(4.0, date(2026, 11, 10))], datetime(2026, 11, 10, 8, tzinfo=UTC))
    refreshed(
        [repriced(2.0, date(2026, 11, 20))],
        datetime(2026, 11, 20, 8, tzinfo=UTC),
        withdrawn=("gcp/us-central1-a/a2-highgpu-2g/2xA100-40/spot",),
    )


@pytest.mark.usefixtures("two_refreshes")
def test_shipped_against_refreshed_shows_what_moved_by_how_much() -> None:
    found = changes.diff(changes.offers_known_on(None), changes.offers_known_on(date(2026, 11, 21)))
    moved = [change for change in found if change.relative is not None]
    assert [change.offer.id for change in moved] == [ONE]
    assert moved[0].relative == pytest.approx(2.0 / 3.673385 - 1)
    gone = [change.offer.id for change in found if change.after is None]
    assert gone == ["gcp/us-central1-a/a2-highgpu-2g/2xA100-40/spot"]


@pytest.mark.usefixtures("two_refreshes")
def test_two_dates_are_compared_as_they_were_known_then() -> None:
    before, after = (changes.offers_known_on(date(2026, 11, day)) for day in (15, 20))
    (moved,) = (change for change in changes.diff(before, after) if change.relative is not None)
    assert moved.before is not None
    assert moved.after is not None
    assert (moved.before.usd_per_hour, moved.after.usd_per_hour) == (4.0, 2.0)


@pytest.mark.usefixtures("two_refreshes")
def test_before_the_first_refresh_the_shipped_prices_were_known() -> None:
    assert changes.diff(changes.offers_known_on(None), changes.offers_known_on(date(2026, 11, 9))) == ()


@pytest.mark.usefixtures("two_refreshes")
def test_small_moves_can_be_left_out() -> None:
    before, after = changes.offers_known_on(None), changes.offers_known_on(date(2026, 11, 21))
    assert not [change for change in changes.diff(before, after, least=0.6) if change.relative is not None]


@pytest.mark.usefixtures("two_refreshes")
def test_history_joins_shipped_prices_and_every_refresh() -> None:
    points = changes.history("a2-highgpu-1g", regions=["us-central1"], market=Market.ON_DEMAND)
    series = [(point.day, point.usd_per_hour) for point in points if point.zone == "us-central1-a"]
    assert series == [(date(2026, 8, 3), 3.673385), (date(2026, 11, 10), 4.0), (date(2026, 11, 20), 2.0)]


def test_history_goes_back_before_the_shipped_offers() -> None:
    points = changes.history("a2-highgpu-1g", regions=["us-central1"], market=Market.SPOT, since=date(2024, 1, 1))
    recorded = [point for point in points if point.zone == ""]
    assert len(recorded) > 5
    assert all(point.day >= date(2024, 1, 1) for point in points)
    assert [point.day for point in recorded] == sorted(point.day for point in recorded)


def test_a_repeated_price_is_listed_once() -> None:
    points = changes.history("a2-highgpu-1g", regions=["us-central1"])
    for before, after in itertools.pairwise(points):
        if (before.region, before.zone, before.market) == (after.region, after.zone, after.market):
            assert before.usd_per_hour != after.usd_per_hour
