"""A price that may be wrong never wins a plan silently."""

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from sailor_cloud import resources
from sailor_cloud.catalog import Catalog, load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.prices.doubts import explained
from sailor_cloud.model.offer import Confidence, Doubt, Market, Offer, Provider, ZoneConfidence
from sailor_cloud.model.regions import Zone

HEADER = (
    "provider,region,zone,instance_type,accelerator,accelerator_count,vcpus,memory_gib,market,usd_per_hour,"
    "as_of_from,as_of_to,source,confidence,zone_confidence,outlier\n"
)
SHIPPED = load(resources.data_root())


def row(
    zone: str,
    market: str,
    usd: float,
    *,
    confidence: str = "medium",
    outlier: str = "no",
    instance_type: str = "p4d.24xlarge",
    source: str = "mine",
) -> str:
    """One price of us-east-1; the shipped spot advisor says 67 % off for p4d.24xlarge there, 86 % for p3.8xlarge."""
    return (
        f"aws,us-east-1,{zone},{instance_type},A100-40,8,96,1152,{market},{usd},2026-11-01,2026-11-01,{source},"
        f"{confidence},seen,{outlier}\n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "offers").mkdir(parents=True)
    return tmp_path / "mine"


def counted(folder: Path, *rows: str) -> Offer:
    """Return the spot offer of use1-az1 where these prices are known."""
    (folder / "offers" / "aws.csv").write_text(HEADER + "".join(rows))
    (found,) = load(pricing=folder).offers(zones=["use1-az1"], markets=[Market.SPOT])
    return found


ON_DEMAND = row("use1-az1", "on-demand", 22)


def test_an_outlier_counts_as_the_highest_price_known_in_its_region(folder: Path) -> None:
    neighbours = row("use1-az2", "spot", 8), row("use1-az4", "spot", 9)
    found = counted(folder, ON_DEMAND, row("use1-az1", "spot", 4, outlier="yes"), *neighbours)
    assert found.usd_per_hour == 9
    assert found.listed is not None
    assert (found.listed.usd_per_hour, found.listed.doubts) == (4, (Doubt.OUTLIER,))
    assert found.listed.counted_from is Market.SPOT
    assert explained(found) == (
        "p4d.24xlarge spot in use1-az1 is listed at 4.00 USD/h (mine), an outlier; "
        "plans count 9.00, the highest spot price known in us-east-1"
    )


def test_without_another_price_a_doubted_one_counts_as_on_demand(folder: Path) -> None:
    other_type = row("use1-az2", "spot", 9, instance_type="p4de.24xlarge")
    found = counted(folder, ON_DEMAND, row("use1-az1", "spot", 4, confidence="low"), other_type)
    assert found.usd_per_hour == 22
    assert found.listed is not None
    assert found.listed.counted_from is Market.ON_DEMAND


def test_prices_that_are_doubted_themselves_say_nothing_about_another(folder: Path) -> None:
    doubted = row("use1-az2", "spot", 8, confidence="low")
    assert counted(folder, ON_DEMAND, row("use1-az1", "spot", 4, outlier="yes"), doubted).usd_per_hour == 22


def test_without_any_other_price_the_listed_one_counts_and_stays_doubted(folder: Path) -> None:
    found = counted(folder, row("use1-az1", "spot", 4, confidence="low"))
    assert found.usd_per_hour == 4
    assert explained(found).endswith("of low confidence; no higher price is known")


def test_a_doubted_price_never_counts_less_than_it_is_listed_at(folder: Path) -> None:
    found = counted(folder, ON_DEMAND, row("use1-az1", "spot", 22, confidence="low"), row("use1-az2", "spot", 8))
    assert found.usd_per_hour == 22


@pytest.mark.parametrize(
    ("instance_type", "usd", "doubted"),
    [
        ("p4d.24xlarge", 3.31, False),  # 84.95 % under on-demand
        ("p4d.24xlarge", 3.29, True),  # 85.05 %, and the advisor says 67 %
        ("p3.8xlarge", 3.0, False),  # 86.4 %, and the advisor says 86 %
        ("p3.8xlarge", 1.9, True),  # 91.4 %: the advisor puts it at 1.6 times as much
        ("p9.24xlarge", 3.0, True),  # nobody else says anything
    ],
)
def test_a_price_far_under_on_demand_wants_a_second_source(
    folder: Path, instance_type: str, usd: float, doubted: bool
) -> None:
    rows = (
        row("use1-az1", "on-demand", 22, instance_type=instance_type),
        row("use1-az1", "spot", usd, instance_type=instance_type),
    )
    found = counted(folder, *rows)
    assert (found.listed is not None) == doubted
    assert found.usd_per_hour == (22 if doubted else usd)


@pytest.mark.parametrize(("source", "usd", "doubted"), [("a", 3.5, False), ("mine", 3.5, True), ("a", 4.6, True)])
def test_the_price_history_is_a_second_source_if_it_is_another_and_agrees(
    folder: Path, source: str, usd: float, doubted: bool
) -> None:
    (folder / "price_history.csv").write_text(
        "provider,region,instance_type,accelerator,day,on_demand_usd_per_hour,spot_usd_per_hour,source\n"
        f"aws,us-east-1,p4d.24xlarge,A100-40,2026-10-02,22,{usd},{source}\n"
        "aws,us-east-1,p4d.24xlarge,A100-40,2026-10-01,22,99,a\n"
    )
    found = counted(folder, ON_DEMAND, row("use1-az1", "spot", 3))
    assert (found.listed is not None) == doubted


@pytest.mark.parametrize(("usd", "doubted"), [(0.3, False), (0.2, True)])
def test_the_shipped_price_is_a_second_source_for_a_refreshed_one(usd: float, doubted: bool) -> None:
    """p3.2xlarge in use1-az1 is shipped at 0.3707, 88 % under on-demand; the advisor says 80 %."""
    (shipped,) = SHIPPED.offers(zones=["use1-az1"], instance_types=["p3.2xlarge"], markets=[Market.SPOT])
    assert shipped.listed is not None
    today = date(2026, 11, 20)
    listed = replace(shipped, usd_per_hour=usd, source="api", as_of_from=today, as_of_to=today, listed=None)
    zone = Zone(provider=Provider("aws"), region="us-east-1", name="use1-az1")
    snapshot.write([listed], (), [zone], taken_at=datetime(2026, 11, 20, tzinfo=UTC))
    assert (load().offer(shipped.id).listed is not None) == doubted


def test_the_cheap_p4d_of_use1_az1_does_not_count_less_than_its_neighbours() -> None:
    prices = {o.zone: o for o in SHIPPED.offers(instance_types=["p4d.24xlarge"], markets=[Market.SPOT])}
    doubted = prices.pop("use1-az1")
    assert doubted.listed is not None
    assert (doubted.listed.usd_per_hour, doubted.outlier) == (2.4655, True)
    assert doubted.usd_per_hour == max(o.usd_per_hour for o in prices.values() if o.region == "us-east-1")


def test_the_counted_price_is_never_below_the_listed_one_and_changes_only_by_doubts() -> None:
    for offer in SHIPPED.offers():
        suspicious = offer.outlier or offer.confidence is Confidence.LOW
        if offer.listed is None:
            assert not suspicious, offer.id
            continue
        assert offer.usd_per_hour >= offer.listed.usd_per_hour
        assert suspicious or offer.listed.doubts == (Doubt.FAR_UNDER_ON_DEMAND,)


def test_a_type_that_is_sold_on_spot_alone_is_held_to_its_share_of_a_larger_node() -> None:
    """GCP sells 8 H100 on demand and fewer on spot only."""
    (spot,) = SHIPPED.offers(zones=["europe-north1-c"], instance_types=["a3-highgpu-2g"])
    (whole,) = SHIPPED.offers(zones=["europe-north1-c"], instance_types=["a3-highgpu-8g"], markets=[Market.ON_DEMAND])
    assert spot.listed is not None
    assert spot.usd_per_hour == pytest.approx(whole.usd_per_hour * 2 / 8)
    assert SHIPPED.on_demand_usd_per_hour(spot) == pytest.approx(whole.usd_per_hour * 2 / 8)


def test_examples_and_unchecked_zones_are_not_doubted() -> None:
    assert {offer.listed for offer in SHIPPED.offers(provider=Provider("local"))} == {None}
    unchecked = [o for o in SHIPPED.offers() if o.zone_confidence is ZoneConfidence.UNCHECKED]
    assert any(offer.listed is None for offer in unchecked)


def test_a_catalog_without_doubtful_offers_still_knows_their_on_demand_price() -> None:
    def spot(catalog: Catalog) -> set[str]:
        return {offer.zone for offer in catalog.offers(instance_types=["p4d.24xlarge"], markets=[Market.SPOT])}

    strict = SHIPPED.without_doubtful()
    assert spot(SHIPPED) - spot(strict) >= {"use1-az1", "euw2-az2"}
    assert "use1-az2" in spot(strict)
    assert {offer.listed for offer in strict.offers()} == {None}
    odd = next(offer for offer in SHIPPED.offers(markets=[Market.SPOT]) if offer.listed is not None)
    assert strict.on_demand_usd_per_hour(odd) == SHIPPED.on_demand_usd_per_hour(odd)
