"""Curves from timed messages."""

from __future__ import annotations

import csv

import pytest

from sailor_cloud import network, resources
from sailor_cloud.network import Place
from sailor_cloud.network.curve_fit import fit_curve, write_curves
from sailor_cloud.network.records import CurveScope

SIZES = [2**power for power in range(16, 26)]
SHIPPED = resources.data_root() / "bandwidth_profiles" / "curves.csv"


def timed(latency_s: float, bytes_per_s: float) -> list[tuple[int, float]]:
    """Return messages of a link that takes so long to begin and then runs at a steady rate."""
    return [(8, latency_s), *((size, latency_s + size / bytes_per_s) for size in SIZES)]


def test_a_fitted_curve_gives_the_times_back_and_the_shortest_message_the_round_trip():
    curve = fit_curve(timed(1e-4, 2e9))
    assert curve.error < 0.15
    assert curve.rtt_ms == pytest.approx(0.2)
    assert (curve.min_bytes, curve.max_bytes) == (SIZES[0], SIZES[-1])
    assert 1.9e9 < curve.max_bytes_per_s < 2e9


def test_points_that_no_parabola_fits_give_one_rate_for_all_sizes():
    points = [(size, size / (1e9 if number % 2 else 2e7)) for number, size in enumerate(SIZES)]
    curve = fit_curve(points)
    assert (curve.a, curve.b) == (0.0, 0.0)
    assert 2e7 <= curve.c * 1e9 <= 1e9
    assert curve.rtt_ms is None


def test_two_sizes_make_no_curve():
    with pytest.raises(ValueError, match="needs three sizes"):
        fit_curve([(8, 1e-4), (2**20, 1e-3), (2**21, 2e-3)])


def test_a_measured_curve_replaces_the_shipped_one_and_leaves_the_others(tmp_path):
    curve = fit_curve(timed(1e-3, 1e8))
    place = (CurveScope.SAME_ZONE, "", "CPU-fast", "", "CPU-slow")
    path = tmp_path / "curves.csv"
    write_curves(path, SHIPPED, curve, [place], source="test", as_of="2026-11-21")
    write_curves(path, path, curve, [place], source="test", as_of="2026-11-21")
    with SHIPPED.open() as old, path.open() as new:
        before, after = list(csv.DictReader(old)), list(csv.DictReader(new))
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    fast, slow = (
        Place(zone="local-a", node=name, accelerator=name, instance_type="local") for name in ("CPU-fast", "CPU-slow")
    )
    measured, shipped = network.load(profiles=tmp_path).link(fast, slow), network.load().link(fast, slow)
    assert measured.transfer_s(2.0**24) == pytest.approx(2**24 / 1e8, rel=0.2)
    assert measured.transfer_s(2.0**24) > 10 * shipped.transfer_s(2.0**24)
