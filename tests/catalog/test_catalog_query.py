"""Questions to the catalog."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor_cloud import resources
from sailor_cloud.catalog import Service, load
from sailor_cloud.catalog.job_check import resource_problems
from sailor_cloud.catalog.listing import SortKey, listing
from sailor_cloud.catalog.prices.doubts import age_days, is_stale
from sailor_cloud.errors import DataError, MissingPriceError
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Market, Precision, Provider
from sailor_cloud.model.provider import names

CATALOG = load(resources.data_root())
JOB = """
name: one
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 128}
resources:
  - {provider: gcp, zones: [us-central1-a], accelerators: {A100-40: 8}}
"""


@pytest.mark.parametrize(
    ("region", "instance_type", "accelerator", "usd_per_hour", "source"),
    [
        ("us-east-1", "p3.2xlarge", "V100-16", 3.06, "skypilot-catalog@00148f2a"),
        ("us-central1", "a2-highgpu-1g", "A100-40", 3.673385, "karpenter-gcp@373e2baa"),
        ("us-central1", "n1-standard-8", "V100-16", 2.859998, "gcosts@4445d8f1+skypilot-catalog@006059e0"),
    ],
)
def test_reference_prices_come_out_with_their_source(
    region: str, instance_type: str, accelerator: str, usd_per_hour: float, source: str
) -> None:
    offers = [
        offer
        for offer in CATALOG.offers(
            instance_types=[instance_type], accelerators=[accelerator], markets=[Market.ON_DEMAND]
        )
        if offer.region == region
    ]
    assert {(offer.usd_per_hour, offer.source) for offer in offers} == {(usd_per_hour, source)}
    assert CATALOG.source(source).citation != source


ZONES = st.sets(st.sampled_from(CATALOG.zones()), max_size=4)
ACCELERATORS = st.sets(st.sampled_from(CATALOG.accelerator_names()), max_size=3)


@settings(deadline=None)
@given(
    provider=st.none() | st.sampled_from([Provider(name) for name in names()]),
    zones=st.none() | ZONES,
    accelerators=st.none() | ACCELERATORS,
    markets=st.none() | st.sets(st.sampled_from(Market)),
    most=st.none() | st.floats(0, 100),
    since=st.none() | st.dates(date(2024, 1, 1), date(2026, 12, 1)),
)
def test_a_query_returns_exactly_what_meets_every_condition(
    provider: Provider | None,
    zones: set[str] | None,
    accelerators: set[str] | None,
    markets: set[Market] | None,
    most: float | None,
    since: date | None,
) -> None:
    found = CATALOG.offers(
        provider=provider,
        zones=zones,
        accelerators=accelerators,
        markets=markets,
        max_usd_per_hour=most,
        priced_since=since,
    )
    expected = [
        offer
        for offer in CATALOG.offers()
        if (provider is None or offer.provider is provider)
        and (zones is None or offer.zone in zones)
        and (accelerators is None or offer.accelerator in accelerators)
        and (markets is None or offer.market in markets)
        and (most is None or offer.usd_per_hour <= most)
        and (since is None or offer.as_of_from >= since)
    ]
    assert list(found) == expected
    assert list(found) == sorted(found, key=lambda offer: offer.id)


def test_iterators_are_accepted_as_conditions() -> None:
    assert CATALOG.offers(zones=iter(["us-central1-a"]), accelerators=(name for name in ["A100-40"]))


@pytest.mark.parametrize(
    ("zone", "accelerator", "nearest"),
    [
        ("us-west1-c", "V100-16", "us-west1-a"),  # in its own region
        ("europe-west4-c", "A100-40", "europe-west4-a"),
        ("europe-west1-b", "A100-40", "europe-west4-a"),  # Belgium: the Netherlands are nearer than anything else
        ("use1-az3", "A100-40", "use1-az1"),
        ("us-central1-a", "A10G-24", None),  # a GPU that AWS alone has
    ],
)
def test_the_nearest_zone_with_a_price_is_of_the_same_region_or_the_nearest_one(
    zone: str, accelerator: str, nearest: str | None
) -> None:
    assert not CATALOG.offers(zones=[zone], accelerators=[accelerator], markets=[Market.SPOT])
    assert CATALOG.nearest_sold(zone, accelerator, Market.SPOT) == nearest


def test_a_spot_price_is_never_taken_from_another_zone() -> None:
    zones = {offer.zone for offer in CATALOG.offers(instance_types=["p3.2xlarge"], markets=[Market.SPOT])}
    assert "use1-az1" in zones
    assert "use1-az4" not in zones


def test_the_frame_has_a_row_for_every_offer_with_its_price() -> None:
    frame = CATALOG.frame()
    assert frame["id"].tolist() == [offer.id for offer in CATALOG.offers()]
    assert frame["usd_per_hour"].tolist() == [offer.usd_per_hour for offer in CATALOG.offers()]


def test_an_offer_is_found_by_its_id() -> None:
    for offer in CATALOG.offers(zones=["us-central1-a"]):
        assert CATALOG.offer(offer.id) is offer
    with pytest.raises(DataError, match=r"no offer 'nonsense'.*prices list"):
        CATALOG.offer("nonsense")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: CATALOG.accelerator("V100"), "no accelerator 'V100'; did you mean .*'V100-16'"),
        (lambda: CATALOG.accelerator("xyz"), "known: A100-40"),
        (lambda: CATALOG.zone("us-centrl1-a"), "no zone 'us-centrl1-a'; did you mean 'us-central1-a'"),
        (lambda: CATALOG.region(Provider("aws"), "us-central1"), "no region 'us-central1' of aws"),
    ],
)
def test_unknown_names_are_refused_with_close_ones(ask: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ask()  # type: ignore[operator]


def test_a_missing_service_price_is_refused_with_the_regions_that_have_one() -> None:
    with pytest.raises(MissingPriceError, match="no price for disk-ssd in aws us-east-1; no region of aws has one"):
        CATALOG.services.price(Provider("aws"), "us-east-1", Service.DISK_SSD)
    with pytest.raises(MissingPriceError, match="no price for disk-ssd in gcp mars; known regions: africa-south1"):
        CATALOG.services.price(Provider("gcp"), "mars", Service.DISK_SSD)


def test_a_provider_wide_service_price_represents_every_region() -> None:
    assert CATALOG.services.price(Provider("aws"), "eu-west-3", Service.PUBLIC_ADDRESS).usd_per_unit == 0.005


@pytest.mark.parametrize(
    ("offer_id", "last_fresh_day", "first_stale_day"),
    [
        ("gcp/us-central1-a/a2-highgpu-1g/1xA100-40/on-demand", date(2026, 11, 1), date(2026, 11, 2)),
        ("gcp/us-central1-a/a2-highgpu-1g/1xA100-40/spot", date(2026, 8, 10), date(2026, 8, 11)),
    ],
)
def test_on_demand_goes_stale_after_90_days_and_spot_after_7(
    offer_id: str, last_fresh_day: date, first_stale_day: date
) -> None:
    offer = CATALOG.offer(offer_id)
    assert not is_stale(offer, last_fresh_day)
    assert is_stale(offer, first_stale_day)


def test_age_counts_from_the_older_of_two_dates() -> None:
    offer = CATALOG.offer("aws/use1-az1/p3.2xlarge/1xV100-16/on-demand")
    assert (offer.as_of_from, offer.as_of_to) == (date(2026, 1, 21), date(2026, 5, 22))
    assert age_days(offer, date(2026, 5, 22)) == 121
    assert is_stale(offer, date(2026, 5, 22))


def test_local_example_prices_never_go_stale() -> None:
    for offer in CATALOG.offers(provider=Provider("local")):
        assert not is_stale(offer, date(2099, 1, 1))


def test_the_list_puts_the_cheapest_per_unit_of_work_first() -> None:
    rows = listing(
        CATALOG,
        as_of=date(2026, 11, 21),
        sort=SortKey.USD_PER_PFLOPS_HOUR,
        precision=Precision.BF16,
        regions=["us-central1"],
    )
    values = [row.usd_per_pflops_hour for row in rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known)
    assert None in values
    assert values[-1] is None
    first = rows[0]
    rate = CATALOG.accelerator(first.offer.accelerator).peak_tflops_bf16
    assert rate is not None
    per_device = first.offer.usd_per_hour / first.offer.accelerator_count
    assert first.usd_per_pflops_hour == pytest.approx(per_device / rate * 1000)


def test_a_jobs_unknown_names_are_all_reported_with_hints() -> None:
    job = parse_job(
        JOB.replace("us-central1-a", "us-centrl1-a, use1-az1")
        .replace("A100-40: 8", "A100: 8, K80-12: 1")
        .replace("accelerators", "instance_types: [a2-higgpu-1g], accelerators")
    )
    found = {problem.path: f"{problem.message} ({problem.hint})" for problem in resource_problems(job, CATALOG)}
    assert "did you mean 'us-central1-a'" in found["resources[0].zones[0]"]
    assert "is a zone of aws, not of gcp" in found["resources[0].zones[1]"]
    assert "'A100-40'" in found["resources[0].accelerators.A100"]
    assert "not a known accelerator offered by gcp" in found["resources[0].accelerators.K80-12"]
    assert "did you mean 'a2-highgpu-1g'" in found["resources[0].instance_types[0]"]


def test_a_zone_name_of_an_aws_account_gets_a_hint_with_the_zone_ids_of_its_region() -> None:
    job = parse_job(JOB)
    aws = job.resources[0].model_copy(update={"provider": Provider("aws"), "zones": ("us-west-2b", "mars-1a")})
    problems = resource_problems(job.model_copy(update={"resources": (aws,)}), CATALOG)
    hints = {problem.path: problem.hint for problem in problems}
    assert "usw2-az1, usw2-az2, usw2-az3" in hints["resources[0].zones[0]"]
    assert "use1-az1" not in hints["resources[0].zones[0]"]
    assert "zone ids" not in hints["resources[0].zones[1]"]


def test_a_sound_job_has_no_problems() -> None:
    assert resource_problems(parse_job(JOB), CATALOG) == []


def test_interruptions_are_reported_for_spot_only() -> None:
    spot, on_demand = (CATALOG.offer(f"aws/use1-az1/p3.2xlarge/1xV100-16/{market}") for market in ("spot", "on-demand"))
    found = CATALOG.interruptions.of(spot)
    assert found is not None
    assert 0 <= found.low < found.high <= 1
    assert found.source == "spotinfo@84440056"
    assert CATALOG.interruptions.of(on_demand) is None


def test_an_unknown_accelerator_names_the_users_prices_that_replaced_the_shipped_ones(tmp_path: Path) -> None:
    job = parse_job(JOB.replace("A100-40: 8", "K80-12: 1"))
    with resources.data_folders(pricing=tmp_path):
        (problem,) = resource_problems(job, CATALOG)
    assert f"in {tmp_path}, whose offers replace the shipped ones" in problem.message
