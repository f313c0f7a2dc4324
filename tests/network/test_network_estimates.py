"""The stated error of every estimate covers 9 of 10 measurements that the rule predicts without having seen them."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest

from sailor_cloud import resources
from sailor_cloud.network import Place, estimates, load
from sailor_cloud.network.estimates import distance_km
from sailor_cloud.network.link import Link
from sailor_cloud.network.records import Curve, CurveScope

SIZES = np.array([1e6, 4e6, 16e6, 64e6, 256e6])
NETWORK = load(resources.data_root())
CURVES = [curve for curves in NETWORK._curves.values() for curve in curves.values() if curve.measured]
MACHINES = {
    ("A100-40", 1): "a2-highgpu-1g",
    ("A100-40", 2): "a2-highgpu-2g",
    ("A100-40", 4): "a2-highgpu-4g",
    ("V100-16", 1): "n1-standard-8",
    ("V100-16", 2): "n1-standard-16",
    ("V100-16", 4): "n1-standard-32",
}


def rates(link: Link) -> np.ndarray:
    return SIZES / link.transfer_s(SIZES)


def measured_rates(curve: Curve) -> np.ndarray:
    return rates(estimates.measured_link(curve))


def p90(errors: Iterable[np.ndarray]) -> float:
    return float(np.quantile(np.concatenate([np.abs(error) for error in errors]), 0.9))


def zone_curves(*, across: bool) -> list[Curve]:
    return [
        curve
        for curve in CURVES
        if curve.scope is CurveScope.ZONES
        and curve.src_zone.startswith("us-")
        and (curve.src_zone[:-2] != curve.dst_zone[:-2]) == across
    ]


def spread(curves: list[Curve]) -> float:
    groups = defaultdict(list)
    for curve in curves:
        groups[curve.src_accelerator, curve.pairs].append(measured_rates(curve))
    return p90(rate / np.mean(group, axis=0) - 1 for group in groups.values() for rate in group)


def test_like_zone_pairs_of_a_region_spread_no_more_than_stated() -> None:
    assert 0.03 < spread(zone_curves(across=False)) <= estimates.MEASURED_ERROR


def test_like_pairs_across_regions_spread_no_more_than_stated() -> None:
    assert 0.1 < spread(zone_curves(across=True)) <= estimates.MEASURED_ACROSS_REGIONS_ERROR


def test_a_curve_from_anywhere_represents_another_zone() -> None:
    anywhere = {
        (curve.src_accelerator, curve.pairs): measured_rates(curve)
        for curve in CURVES
        if curve.scope is CurveScope.SAME_ZONE
    }
    errors = [
        anywhere[curve.src_accelerator, curve.pairs] / measured_rates(curve) - 1
        for curve in zone_curves(across=False)
        if (curve.src_zone, curve.dst_zone) != ("us-central1-a", "us-central1-a")
    ]
    assert 0.03 < p90(errors) <= estimates.ELSEWHERE_ERROR


def test_more_pairs_grow_in_proportion_up_to_the_instance_limit() -> None:
    found = {
        (curve.src_zone, curve.dst_zone, curve.src_accelerator, curve.pairs): curve
        for curve in zone_curves(across=False)
    }
    errors = []
    for (src, dst, accelerator, pairs), curve in found.items():
        if pairs > 1:
            fewer = estimates.measured_link(found[src, dst, accelerator, pairs // 2])
            guess = estimates.for_pairs(fewer, pairs).capped(limit(accelerator, pairs))
            errors.append(rates(guess) / measured_rates(curve) - 1)
    assert 0.2 < p90(errors) <= estimates.MORE_PAIRS_ERROR


def limit(accelerator: str, pairs: int) -> float:
    place = Place(zone="us-central1-a", node=None, accelerator=accelerator, instance_type=MACHINES[accelerator, pairs])
    instance = NETWORK.instance_of(place)
    assert instance is not None
    return instance.baseline_bytes_per_s


def test_instance_limits_predict_a_type_from_the_shape_of_the_others() -> None:
    same_zone = [curve for curve in CURVES if curve.scope is CurveScope.SAME_ZONE]
    errors = []
    for (accelerator, pairs), machine in MACHINES.items():
        place = Place(zone="us-central1-a", node=None, accelerator=accelerator, instance_type=machine)
        instance = NETWORK.instance_of(place)
        assert instance is not None
        rate = estimates.instance_rate_bytes_per_s(instance, instance, pairs, same_zone=True)
        others = [
            curve
            for curve in same_zone
            if curve.src_accelerator in estimates.SHAPE_ACCELERATORS - {accelerator}
            and curve.src_accelerator == curve.dst_accelerator
        ]
        guess = estimates.shaped_like_nearest(others, rate, pairs=pairs, error=0.0)
        actual = next(c for c in same_zone if (c.src_accelerator, c.pairs) == (accelerator, pairs))
        errors.append(rates(guess) / measured_rates(actual) - 1)
    assert 0.2 < p90(errors) <= estimates.INSTANCE_ERROR


# GB/s of both directions: NVLink as on the datasheet (A100, V100, GH, RTX-3090 bridge), PCIe 3.0 x16 for the others.
DEVICE_LINKS = {
    "A100-40": 600,
    "V100-16": 300,
    "GH-96": 900,
    "RTX-3090-24": 112.5,
    "RTX-2080-11": 32,
    "Titan-RTX-24": 32,
}


def test_device_links_predict_a_type_from_the_share_of_the_others() -> None:
    share = {}
    curves = {}
    for curve in CURVES:
        if curve.scope is CurveScope.SAME_NODE and curve.pairs == 1 and curve.src_accelerator in DEVICE_LINKS:
            share[curve.src_accelerator] = curve.max_bytes_per_s / (DEVICE_LINKS[curve.src_accelerator] / 2 * 1e9)
            curves[curve.src_accelerator] = curve
    assert np.median(list(share.values())) == pytest.approx(estimates.DEVICE_LINK_SHARE, abs=0.08)
    errors = []
    for accelerator, curve in curves.items():
        others = [value for name, value in share.items() if name != accelerator]
        rate = float(np.median(others)) * DEVICE_LINKS[accelerator] / 2 * 1e9
        shapes = [other for name, other in curves.items() if name != accelerator]
        guess = estimates.shaped_like_nearest(shapes, rate, pairs=1, error=0.0)
        errors.append(rates(guess) / measured_rates(curve) - 1)
    assert 0.2 < p90(errors) <= estimates.DEVICE_LINK_ERROR


def test_rates_of_region_pairs_scatter_around_their_round_trip_as_stated() -> None:
    pairs = [
        (pair.rtt_s, pair.bytes_per_s)
        for key, found in NETWORK._region_pairs.items()
        if key[0] == key[2] == "gcp"
        for pair in found
        if pair.rtt_s is not None and pair.as_of.year == 2022 and pair.as_of.month == 4
    ]
    logs = np.log(np.array(pairs))
    slope, intercept = np.polyfit(logs[:, 0], logs[:, 1], 1)
    errors = np.abs(np.exp(intercept + slope * logs[:, 0] - logs[:, 1]) - 1)
    assert len(pairs) > 600
    assert 0.3 < float(np.quantile(errors, 0.9)) <= estimates.ROUND_TRIP_ERROR


def test_round_trips_follow_the_distance_as_stated() -> None:
    zones = {(zone.provider, zone.region): zone for zone in NETWORK._zones.values()}
    errors = []
    for (provider, region, dst_provider, dst_region), found in NETWORK._region_pairs.items():
        measured = [pair.rtt_s for pair in found if pair.rtt_s is not None]
        src, dst = zones.get((provider, region)), zones.get((dst_provider, dst_region))
        if measured and src is not None and dst is not None:
            errors.append(estimates.rtt_of_distance_s(distance_km(src, dst)) / min(measured) - 1)
    assert len(errors) > 1500
    assert math.isclose(np.median(errors), 0.0, abs_tol=0.1)
    assert 0.3 < float(np.quantile(np.abs(errors), 0.9)) <= estimates.RTT_ERROR


@pytest.mark.parametrize(
    ("across", "flows", "too_fast"), [(False, 4, 0.07), (False, 2, 0.41), (True, 4, 0.31), (True, 2, 0.46)]
)
@pytest.mark.parametrize("accelerator", ["A100-40", "V100-16"])
def test_transfers_that_share_a_card_take_about_as_long_as_so_many_pairs_measured_together(
    accelerator: str, across: bool, flows: int, too_fast: float
) -> None:
    zones = {(curve.src_zone, curve.dst_zone) for curve in zone_curves(across=across)}
    for pair in sorted(zones):
        src, dst = (
            Place(zone=zone, node=node, accelerator=accelerator, instance_type=MACHINES[accelerator, 4])
            for zone, node in zip(pair, "xy", strict=True)
        )
        for nbytes in (64e6, 256e6):
            shared = NETWORK.link(src, dst, pairs=1, flows=flows).transfer_s(nbytes)
            together = NETWORK.link(src, dst, pairs=flows).transfer_s(flows * nbytes)
            assert 1 - too_fast <= shared / together <= 1.12
