"""What leaving a zone costs, and who pays."""

import pytest

from sailor_cloud import resources
from sailor_cloud.errors import DataError, MissingPriceError
from sailor_cloud.network import Payer, load
from sailor_cloud.network.estimates import Scope
from sailor_cloud.units import GB, GIB

NETWORK = load(resources.data_root())
PER_GIB = GB / GIB


def test_traffic_inside_a_zone_is_free() -> None:
    for zone in ("us-central1-a", "use1-az1", "local-a"):
        (price,) = NETWORK.egress(zone, zone)
        assert (price.usd_per_gb, price.scope) == (0.0, Scope.SAME_ZONE)


def test_gcp_bills_the_sender_per_gib_between_zones() -> None:
    (price,) = NETWORK.egress("us-central1-a", "us-central1-b")
    assert price.usd_per_gb == pytest.approx(0.01 * PER_GIB)
    assert (price.payer, price.payer_zone) == (Payer.SENDER, "us-central1-a")


def test_aws_bills_both_sides_between_zones() -> None:
    sender, receiver = NETWORK.egress("use1-az1", "use1-az2")
    assert (sender.payer, sender.payer_zone, sender.usd_per_gb) == (Payer.SENDER, "use1-az1", 0.01)
    assert (receiver.payer, receiver.payer_zone, receiver.usd_per_gb) == (Payer.RECEIVER, "use1-az2", 0.01)


@pytest.mark.parametrize(
    ("src", "dst", "usd_per_gb", "scope"),
    [
        ("us-central1-a", "us-west1-b", 0.02 * PER_GIB, Scope.OTHER_REGION),
        ("us-central1-a", "europe-west4-a", 0.05 * PER_GIB, Scope.OTHER_REGION),
        ("us-central1-a", "australia-southeast1-a", 0.10 * PER_GIB, Scope.OTHER_REGION),
        ("use1-az1", "usw2-az1", 0.02, Scope.OTHER_REGION),
        ("use1-az1", "use2-az1", 0.01, Scope.OTHER_REGION),
        ("use1-az1", "us-central1-a", 0.09, Scope.OTHER_CLOUD),
        ("us-central1-a", "use1-az1", 0.12 * PER_GIB, Scope.OTHER_CLOUD),
        ("local-a", "local-b", 0.01, Scope.OTHER_ZONE),
    ],
)
def test_prices_of_every_scope(src: str, dst: str, usd_per_gb: float, scope: Scope) -> None:
    (price,) = NETWORK.egress(src, dst)
    assert price.usd_per_gb == pytest.approx(usd_per_gb)
    assert (price.scope, price.payer_zone) == (scope, src)
    assert price.source
    assert price.as_of_from.year >= 2022


def test_an_unknown_price_is_never_zero() -> None:
    with pytest.raises(MissingPriceError, match=r"no egress price from local-a .* to us-central1-a"):
        NETWORK.egress("local-a", "us-central1-a")


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(DataError, match="no zone 'us-centrl1-a'"):
        NETWORK.egress("us-centrl1-a", "us-central1-a")


def test_every_pair_of_gcp_zones_has_a_price() -> None:
    zones = {zone.region: name for name, zone in NETWORK._zones.items() if zone.provider == "gcp"}
    assert len(zones) > 30
    for src in zones.values():
        for dst in zones.values():
            assert NETWORK.egress(src, dst)[0].usd_per_gb > 0 or src == dst


def test_aws_regions_without_a_price_are_few_and_refused() -> None:
    zones = {zone.region: name for name, zone in NETWORK._zones.items() if zone.provider == "aws"}
    missing = set()
    for src in zones.values():
        for dst in zones.values():
            try:
                NETWORK.egress(src, dst)
            except MissingPriceError:
                missing |= {src, dst}
    assert len(missing) < len(zones) / 2 or not missing
