"""Transfer times between places."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor_cloud import resources
from sailor_cloud.errors import DataError
from sailor_cloud.network import Place, estimates, load
from sailor_cloud.network.records import CurveScope
from sailor_cloud.units import GB, GBIT_BYTES

NETWORK = load(resources.data_root())
CENTRAL_A = Place(zone="us-central1-a", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
CENTRAL_B = Place(zone="us-central1-b", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
WEST = Place(zone="us-west1-b", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
EUROPE = Place(zone="europe-west4-a", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
V100 = Place(zone="us-central1-a", node=None, accelerator="V100-16", instance_type="n1-standard-32")
P3 = Place(zone="use1-az1", node=None, accelerator="V100-16", instance_type="p3.8xlarge")
P4 = Place(zone="use1-az1", node=None, accelerator="A100-40", instance_type="p4d.24xlarge")
LOCAL = Place(zone="local-a", node="n0", accelerator="CPU-fast", instance_type="local-cpu-fast")
LOCAL_SLOW = Place(zone="local-b", node="n1", accelerator="CPU-slow", instance_type="local-cpu-slow")
PLACES = [CENTRAL_A, CENTRAL_B, WEST, EUROPE, V100, P3, P4]


def on_node(place: Place, node: str) -> Place:
    return Place(zone=place.zone, node=node, accelerator=place.accelerator, instance_type=place.instance_type)


def test_a_measured_zone_pair_follows_its_curve_up_to_the_cards_limit() -> None:
    link = NETWORK.link(CENTRAL_A, CENTRAL_B, pairs=4)
    x = np.log2(16.0)
    by_hand = (-0.05092827 * x**2 + 0.53749267 * x + 4.98394318) * GB
    assert link.measured
    assert by_hand > 50 * GBIT_BYTES
    assert link.transfer_s(16e6) == pytest.approx(16e6 / (50 * GBIT_BYTES), rel=0.005)
    assert link.transfer_s(1e6) == pytest.approx(1e6 / (4.98394318 * GB), rel=0.05)
    assert link.source == "sailor@cf2c8e3c"


def test_no_link_is_faster_than_the_slower_instance_allows() -> None:
    small = Place(zone="us-central1-a", node=None, accelerator="V100-16", instance_type="n1-standard-8")
    assert NETWORK.link(V100, small, pairs=4).max_bytes_per_s <= 16 * GBIT_BYTES
    assert NETWORK.link(P3, P3).max_bytes_per_s <= 10 * GBIT_BYTES


def test_flows_at_the_same_time_share_the_card() -> None:
    alone = NETWORK.link(CENTRAL_A, CENTRAL_B, pairs=4)
    shared = NETWORK.link(CENTRAL_A, CENTRAL_B, pairs=4, flows=4)
    assert shared.max_bytes_per_s == pytest.approx(50 * GBIT_BYTES / 4)
    assert shared.transfer_s(64e6) > 3.5 * alone.transfer_s(64e6)


def test_only_a_measured_curve_gives_the_rate_of_a_pair_of_devices() -> None:
    assert NETWORK.pair_bytes_per_s("V100-16") == 68.2816e9
    # Its curve repeats that of A100-40, and V100-32 and H100-80 have none.
    assert [NETWORK.pair_bytes_per_s(name) for name in ("A100-80", "V100-32", "H100-80")] == [None] * 3


def test_devices_of_one_node_do_not_use_the_card() -> None:
    inside = NETWORK.link(on_node(CENTRAL_A, "n0"), on_node(CENTRAL_A, "n0"))
    between = NETWORK.link(on_node(CENTRAL_A, "n0"), on_node(CENTRAL_A, "n1"))
    assert inside.bandwidth_bytes_per_s > 50 * between.bandwidth_bytes_per_s


def test_the_same_node_name_in_two_zones_is_two_nodes() -> None:
    link = NETWORK.link(on_node(CENTRAL_A, "n0"), on_node(CENTRAL_B, "n0"))
    assert link.max_bytes_per_s < 10 * GB


def test_a_small_message_to_another_region_takes_half_a_round_trip() -> None:
    link = NETWORK.link(CENTRAL_A, WEST)
    assert link.rtt_s == pytest.approx(0.03645)
    assert link.transfer_s(1.0) == pytest.approx(0.03645 / 2, rel=1e-3)


def test_the_round_trip_is_the_smaller_of_both_directions() -> None:
    assert NETWORK.link(WEST, CENTRAL_A).rtt_s == NETWORK.link(CENTRAL_A, WEST).rtt_s


@pytest.mark.parametrize(
    ("src", "dst"),
    [(CENTRAL_A, V100), (CENTRAL_A, EUROPE), (P3, P4), (P4, CENTRAL_A), (EUROPE, EUROPE)],
    ids=["mixed types", "another continent", "aws", "another cloud", "a zone without measurements"],
)
def test_an_estimate_says_so_and_states_its_error(src: Place, dst: Place) -> None:
    link = NETWORK.link(src, dst)
    assert not link.measured
    assert 0.05 < link.error < 1.0
    assert link.source


def test_two_types_go_at_the_slower_ones_pace() -> None:
    mixed = NETWORK.link(CENTRAL_A, V100, pairs=4).bandwidth_bytes_per_s
    assert mixed == NETWORK.link(V100, V100, pairs=4).bandwidth_bytes_per_s


def test_more_pairs_than_measured_are_an_estimate_within_the_card() -> None:
    eight = Place(zone="us-central1-a", node=None, accelerator="A100-40", instance_type="a2-highgpu-8g")
    link = NETWORK.link(eight, eight, pairs=8)
    assert not link.measured
    assert 6.1 * GB < link.max_bytes_per_s <= 100 * GBIT_BYTES


def test_further_regions_are_slower() -> None:
    assert NETWORK.link(CENTRAL_A, EUROPE).transfer_s(64e6) > NETWORK.link(CENTRAL_A, WEST).transfer_s(64e6)


def test_local_zones_are_linked_by_the_loopback_figure() -> None:
    link = NETWORK.link(LOCAL, LOCAL_SLOW)
    assert link.measured
    assert "loopback" in link.source
    assert 1e-5 < link.transfer_s(65536) < 1e-3


def test_this_machine_and_a_cloud_have_no_link() -> None:
    with pytest.raises(DataError, match=r"no network between local-a \(local\) and us-central1-a \(gcp\)"):
        NETWORK.link(LOCAL, CENTRAL_A)


def test_an_unknown_instance_without_a_curve_is_refused() -> None:
    odd = Place(zone="use1-az1", node=None, accelerator="H100-80", instance_type="p9.huge")
    with pytest.raises(DataError, match=r"no bandwidth known between H100-80 on p9\.huge.*--network"):
        NETWORK.link(odd, odd)


def test_one_device_has_no_link_to_itself() -> None:
    lone = Place(zone="use1-az1", node="n", accelerator="T4-16", instance_type="g4dn.xlarge")
    with pytest.raises(DataError, match="has one device"):
        NETWORK.link(lone, lone)


@settings(deadline=None)
@given(
    src=st.sampled_from(PLACES),
    dst=st.sampled_from(PLACES),
    pairs=st.sampled_from([1, 2, 3, 4, 8]),
    small=st.floats(1, 1e10),
    factor=st.floats(1, 1e4),
)
def test_more_bytes_never_take_less_time(src: Place, dst: Place, pairs: int, small: float, factor: float) -> None:
    link = NETWORK.link(src, dst, pairs=pairs)
    assert link.transfer_s(small) <= link.transfer_s(small * factor) * (1 + 1e-12)


@settings(deadline=None)
@given(
    src=st.sampled_from(PLACES),
    dst=st.sampled_from(PLACES),
    sizes=st.lists(st.floats(0, 1e11), min_size=1, max_size=8),
)
def test_arrays_and_numbers_agree(src: Place, dst: Place, sizes: list[float]) -> None:
    link = NETWORK.link(src, dst, pairs=2)
    together = link.transfer_s(np.array(sizes))
    assert together == pytest.approx([link.transfer_s(size) for size in sizes])


@settings(deadline=None)
@given(src=st.sampled_from(PLACES), dst=st.sampled_from(PLACES), size=st.floats(1, 1e10))
def test_more_flows_never_help(src: Place, dst: Place, size: float) -> None:
    times = [NETWORK.link(src, dst, flows=flows).transfer_s(size) for flows in (1, 2, 4)]
    assert times == sorted(times)


def test_no_bytes_take_no_time() -> None:
    assert NETWORK.link(CENTRAL_A, WEST).transfer_s(0.0) == 0.0
    assert NETWORK.link(CENTRAL_A, WEST).transfer_s(np.zeros(2)).tolist() == [0.0, 0.0]


def test_measured_times_of_a_region_are_kept() -> None:
    sizes = np.logspace(6, 8.4, 25)
    for curves in NETWORK._curves.values():
        for curve in curves.values():
            if curve.scope is CurveScope.ZONES and curve.src_zone.startswith("us-central1"):
                if curve.dst_zone.startswith("us-west1"):
                    continue
                x = np.log2(sizes / 1e6)
                raw = sizes / np.minimum((curve.a * x**2 + curve.b * x + curve.c) * GB, curve.max_bytes_per_s)
                place = Place(
                    zone=curve.src_zone, node=None, accelerator=curve.src_accelerator, instance_type="not capped"
                )
                other = Place(
                    zone=curve.dst_zone, node=None, accelerator=curve.dst_accelerator, instance_type="not capped"
                )
                link = NETWORK.link(place, other, pairs=curve.pairs)
                assert link.transfer_s(sizes) == pytest.approx(raw)


@pytest.mark.parametrize("pairs", [1, 2, 4, 8])
def test_a_faster_card_does_not_shorten_the_start_of_a_step_between_nodes(pairs: int) -> None:
    p5 = Place(zone="use1-az1", node=None, accelerator="H100-80", instance_type="p5.48xlarge")
    for place in (P4, p5):
        link = NETWORK.link(place, place, pairs=pairs)
        for nbytes in (1.0, 1e4, 1e6):
            assert link.transfer_s(nbytes) >= estimates.RING_STEP_S + nbytes / link.max_bytes_per_s - 1e-12
