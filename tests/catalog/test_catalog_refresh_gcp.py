"""Prices read from Google with its real clients, against a local server that pages, throttles, fails and lies."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from factories.cloud_prices import google_world
from sailor_cloud.catalog import load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.providers.gcp import account as gcp_account
from sailor_cloud.catalog.refresh import Refreshed, Refusal, refresh
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import CredentialsError, DataError
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.testing.google.prices import FakeGoogle, Fault, machine_type, sku

NOW = datetime(2026, 11, 21, 6, tzinfo=UTC)
A2 = "gcp/us-central1-a/a2-highgpu-1g/1xA100-40/on-demand"
V100 = "gcp/us-central1-a/n1-standard-8/1xV100-16/on-demand"


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    quick = gcp_account.RetryLimits(call_s=5.0, first_pause_s=0.001, longest_pause_s=0.002, total_s=2.0)
    monkeypatch.setattr(gcp_account, "PATIENCE", quick)
    with FakeGoogle(google_world()) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def run(*regions: str) -> Refreshed:
    return refresh(
        providers=[Provider("gcp")], regions=regions, clock=FixedClock(NOW), progress=lambda what, done, total: None
    )


def test_prices_are_put_together_from_the_skus_of_all_parts(google: FakeGoogle) -> None:
    result = run()
    assert result.complete
    assert result.offers[Provider("gcp")] == 8
    catalog = load()
    assert catalog.offer(A2).usd_per_hour == pytest.approx(3.673385)
    assert catalog.offer(V100).usd_per_hour == pytest.approx(2.859998)
    assert catalog.offer(A2).as_of_from == NOW.date()
    assert catalog.offer(A2).source == "cloud-billing-catalog"


def test_a_type_sold_on_spot_alone_is_not_listed_on_demand(google: FakeGoogle) -> None:
    place = {"regions": ["us-central1"]}
    google.world.skus += [
        sku("A3 Instance Core running in Americas", 0.03, **place),
        sku("A3 Instance Ram running in Americas", 0.004, **place),
        sku("Nvidia H100 80GB GPU running in Americas", 9.0, **place, group="GPU"),
        sku("Spot Preemptible A3 Instance Core running in Americas", 0.01, **place, spot=True),
        sku("Spot Preemptible A3 Instance Ram running in Americas", 0.001, **place, spot=True),
        sku("Nvidia H100 80GB GPU attached to Spot Preemptible VMs running in Americas", 3, **place, spot=True),
    ]
    google.world.machine_types["us-central1-a"] += [
        machine_type(f"a3-highgpu-{count}g", 26 * count, 234 * count, accelerator="nvidia-h100-80gb", count=count)
        for count in (1, 8)
    ]
    run()
    offers = [o for o in load().offers(zones=["us-central1-a"], accelerators=["H100-80"]) if o.as_of_from == NOW.date()]
    assert {(offer.accelerator_count, offer.market) for offer in offers} == {
        (1, Market.SPOT),
        (8, Market.SPOT),
        (8, Market.ON_DEMAND),
    }


def test_every_page_of_every_listing_is_read(google: FakeGoogle) -> None:
    google.page_size = 1
    assert run().offers[Provider("gcp")] == 8
    assert sum(path.endswith("/skus") for path in google.requests) == len(google.world.skus)


def test_throttling_and_server_faults_are_waited_out(google: FakeGoogle) -> None:
    google.faults = [Fault("/skus", 429, times=2), Fault("machineTypes", 500), Fault("acceleratorTypes", 503)]
    assert run().complete
    assert all(fault.times == 0 for fault in google.faults)


def test_a_listing_that_keeps_failing_changes_nothing_and_is_named(google: FakeGoogle) -> None:
    google.faults = [Fault("/skus", 400, times=9)]
    result = run()
    assert result.folder is None
    assert not result.complete
    assert "prices of the Cloud Billing Catalog" in result.missing[0]
    assert snapshot.latest() is None


def test_a_listing_that_breaks_off_withdraws_nothing(google: FakeGoogle) -> None:
    google.page_size = 1
    google.faults = []
    run()
    before = load().offers()
    google.faults = [Fault("acceleratorTypes", 400, times=9)]
    assert run().folder is None
    assert load().offers() == before


def test_a_server_that_never_answers_is_abandoned(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    hasty = gcp_account.RetryLimits(call_s=0.2, first_pause_s=0.001, longest_pause_s=0.002, total_s=0.3)
    monkeypatch.setattr(gcp_account, "PATIENCE", hasty)
    google.silent_path = "/skus"
    result = run()
    assert result.folder is None
    assert "Cloud Billing" in result.missing[0]


def test_a_zero_price_is_refused_and_the_older_price_stays(google: FakeGoogle) -> None:
    for row in google.world.skus:
        if row["description"] == "Nvidia Tesla A100 GPU running in Americas":
            row["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = {"units": "0", "nanos": 0}
    result = run()
    assert result.refused[Refusal.ZERO_PRICE] == 1
    assert result.refused[Refusal.NO_PRICE] == 2
    stale = load().offer(A2)
    assert (stale.usd_per_hour, stale.as_of_from.isoformat()) == (3.673385, "2026-08-03")


def test_skus_without_a_price_or_a_region_are_refused(google: FakeGoogle) -> None:
    broken = [row for row in google.world.skus if row["description"].startswith("A2 Instance")]
    del broken[0]["pricingInfo"]
    broken[1]["serviceRegions"] = []
    result = run()
    assert result.refused[Refusal.INCOMPLETE] == 2
    assert load().offer(A2).as_of_from < NOW.date()


def test_an_unknown_accelerator_is_counted(google: FakeGoogle) -> None:
    google.world.skus.append(sku("Nvidia X1000 GPU running in Americas", 9.0, regions=["us-central1"], group="GPU"))
    result = run()
    assert result.complete
    assert result.refused[Refusal.UNKNOWN_SKU] == 1


def test_a_price_far_from_all_known_ones_is_refused(google: FakeGoogle) -> None:
    for row in google.world.skus:
        if row["description"] == "Nvidia Tesla V100 GPU running in Americas":
            row["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = {"units": "900", "nanos": 0}
    assert run().refused[Refusal.IMPLAUSIBLE] == 2
    assert load().offer(V100).usd_per_hour == 2.859998


def test_spot_above_on_demand_is_refused(google: FakeGoogle) -> None:
    for row in google.world.skus:
        if "V100 GPU attached to Spot" in row["description"]:
            row["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"] = {"units": "3", "nanos": 0}
    assert run().refused[Refusal.ABOVE_ON_DEMAND] == 2


def test_only_the_regions_asked_for_change(google: FakeGoogle) -> None:
    result = run("us-west1")
    assert result.offers[Provider("gcp")] == 2
    catalog = load()
    assert catalog.offer("gcp/us-west1-b/n1-standard-8/1xV100-16/on-demand").as_of_from == NOW.date()
    assert catalog.offer(V100).as_of_from < NOW.date()


def test_a_refresh_of_one_region_keeps_what_was_refreshed_before(google: FakeGoogle) -> None:
    run("us-central1")
    later = FixedClock(NOW.replace(day=22))
    refresh(providers=[Provider("gcp")], regions=["us-west1"], clock=later, progress=lambda what, done, total: None)
    assert load().offer(A2).as_of_from == NOW.date()


def test_offers_that_a_zone_no_longer_lists_are_withdrawn_and_can_return(google: FakeGoogle) -> None:
    gone = "gcp/us-central1-b/n1-standard-8/1xV100-16/on-demand"
    assert load().offer(gone)
    run("us-central1")
    with pytest.raises(DataError, match="no offer"):
        load().offer(gone)
    google.world.machine_types["us-central1-b"] = google.world.machine_types["us-central1-a"]
    google.world.accelerator_types["us-central1-b"] = google.world.accelerator_types["us-central1-a"]
    refresh(
        providers=[Provider("gcp")],
        regions=["us-central1"],
        clock=FixedClock(NOW.replace(day=22)),
        progress=lambda what, done, total: None,
    )
    assert load().offer(gone).as_of_from.day == 22


def test_an_unreachable_zone_is_named_and_keeps_its_prices(google: FakeGoogle) -> None:
    google.world.unreachable.add("us-central1-b")
    result = run()
    assert any("us-central1-b" in fault for fault in result.missing)
    assert result.folder is not None
    assert not result.complete
    assert load().offer("gcp/us-central1-b/a2-highgpu-1g/1xA100-40/on-demand").as_of_from < NOW.date()
    assert load().offer(A2).as_of_from == NOW.date()


def test_bundled_local_ssd_is_part_of_the_price(google: FakeGoogle) -> None:
    ultra = machine_type("a2-ultragpu-1g", 12, 170, accelerator="nvidia-a100-80gb", count=1, local_ssds=1)
    google.world.machine_types["us-central1-a"].append(ultra)
    google.world.skus += [
        sku("Nvidia Tesla A100 80GB GPU running in Americas", 3.92808, regions=["us-central1"], group="GPU"),
        sku("SSD backed Local Storage", 0.08, regions=["us-central1"], group="LocalSSD", unit="GiBy.mo"),
    ]
    run()
    offer = load().offer("gcp/us-central1-a/a2-ultragpu-1g/1xA100-80/on-demand")
    assert offer.usd_per_hour == pytest.approx(5.068798, abs=1e-4)


def test_no_shape_exceeds_the_ceilings_of_its_accelerators(google: FakeGoogle) -> None:
    big = [machine_type(f"n1-standard-{n}", n, n * 3.75) for n in (16, 32, 64, 96)]
    google.world.machine_types["us-central1-a"] += big
    run()
    shapes = {
        (offer.instance_type, offer.accelerator_count)
        for offer in load().offers(zones=["us-central1-a"], accelerators=["V100-16"], priced_since=NOW.date())
    }
    assert shapes == {("n1-standard-8", 1), ("n1-standard-16", 2), ("n1-standard-32", 4), ("n1-standard-64", 8)}


def test_a_zone_that_the_shipped_data_lacks_becomes_known(google: FakeGoogle) -> None:
    google.world.machine_types["us-central1-z"] = google.world.machine_types["us-central1-a"]
    google.world.accelerator_types["us-central1-z"] = google.world.accelerator_types["us-central1-a"]
    assert "us-central1-z" not in load().zones()
    run()
    assert load().region_of("us-central1-z") == "us-central1"


def test_an_unknown_region_is_counted_not_taken_over(google: FakeGoogle) -> None:
    google.world.machine_types["mars-north1-a"] = google.world.machine_types["us-central1-a"]
    google.world.accelerator_types["mars-north1-a"] = google.world.accelerator_types["us-central1-a"]
    assert run().refused[Refusal.UNKNOWN_REGION] == 1
    assert not load().offers(zones=["mars-north1-a"])


def test_a_refused_account_says_what_to_do(google: FakeGoogle) -> None:
    google.faults = [Fault("machineTypes", 403, times=9)]
    with pytest.raises(CredentialsError, match=r"refused to read machine types.*gcloud auth"):
        run()
    assert snapshot.latest() is None


def test_missing_credentials_say_which_and_how(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(CredentialsError, match=r"no Google Cloud credentials; run 'gcloud auth application-default"):
        run()


def test_a_missing_project_is_asked_for(google: FakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    with pytest.raises(CredentialsError, match="set GOOGLE_CLOUD_PROJECT or give --project"):
        run()


def test_spot_and_on_demand_of_one_shape_come_together(google: FakeGoogle) -> None:
    run()
    spot, on_demand = (load().offer(A2.replace("on-demand", market)) for market in ("spot", "on-demand"))
    assert spot.market is Market.SPOT
    assert spot.usd_per_hour < on_demand.usd_per_hour
