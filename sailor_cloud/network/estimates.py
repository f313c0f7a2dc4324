"""Stated estimates for links without measurements.

Every rule gives a scaled copy of a measured curve with its error: the bandwidth error that 9 of 10 comparable
measurements keep if the rule predicts them without having seen them. bandwidth_profiles/README.md derives each figure;
tests/network/test_network_estimates.py recomputes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Provider
from sailor_cloud.model.regions import great_circle_km
from sailor_cloud.network.link import Link, ramp_rtt_s
from sailor_cloud.network.records import Curve, InstanceNetwork, RegionPair


class Scope(StrEnum):
    """How far two zones are apart, as far as prices distinguish."""

    SAME_ZONE = "same-zone"
    OTHER_ZONE = "other-zone"
    OTHER_REGION = "other-region"
    OTHER_CLOUD = "other-cloud"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneInfo:
    """A zone with the location and, for GCP, the egress group of its region."""

    name: str
    provider: Provider
    region: str
    egress_group: str
    latitude: float | None
    longitude: float | None


def scope_of(src: ZoneInfo, dst: ZoneInfo) -> Scope:
    if src.name == dst.name:
        return Scope.SAME_ZONE
    if src.provider is not dst.provider:
        return Scope.OTHER_CLOUD
    return Scope.OTHER_ZONE if src.region == dst.region else Scope.OTHER_REGION


def distance_km(src: ZoneInfo, dst: ZoneInfo) -> float:
    """Return the great-circle distance between two regions. Raises DataError if a location is unknown."""
    if src.latitude is None or src.longitude is None or dst.latitude is None or dst.longitude is None:
        raise DataError(f"the location of {src.region} or {dst.region} is not known")
    return great_circle_km((src.latitude, src.longitude), (dst.latitude, dst.longitude))


MEASURED_ERROR = 0.06
MEASURED_ACROSS_REGIONS_ERROR = 0.2
ELSEWHERE_ERROR = 0.1
# Judgement, since no cloud was measured between two types.
MIXED_ERROR = 0.3
MORE_PAIRS_ERROR = 0.4
INSTANCE_ERROR = 0.4
DEVICE_LINK_ERROR = 0.7
ROUND_TRIP_ERROR = 0.65
RTT_ERROR = 0.43

# Share of an instance's network limit that NCCL reached over TCP: median of A100-40 and V100-16 at 1, 2 and 4 pairs,
# max_bytes_per_s of curves.csv over baseline_gbit_per_s of instances.csv (0.72 to 0.97).
INSTANCE_SHARE = 0.86
# One pair alone reached at most 2.6 GB/s over TCP (A100-40 x 1 on 3 GB/s).
ONE_PAIR_BYTES_PER_S = 2.6e9
# Rates above those of one 100 Gbit/s card occur only inside a zone (EFA, GPUDirect).
BETWEEN_ZONES_BYTES_PER_S = 12.5e9
# Share of a device link's rate in one direction that NCCL reached: median over A100, V100, GH and RTX (0.28 to 0.89).
DEVICE_LINK_SHARE = 0.67
# Round trips between zones of a region stay under 1 ms (95th percentile). Source: Google Cloud, "Regions and zones".
IN_REGION_RTT_S = 1e-3
# Seconds of a ring's step between two nodes besides its bytes. Source: NCCL's own constant for rings over a network in
# the protocol of large messages (hwLat in src/graph/tuning.cc, 2.18 to 2.21). Published all-gathers took 9 to 47
# microseconds a step (bandwidth_profiles/README.md).
RING_STEP_S = 14e-6
# Types whose curves give estimates their shape: the data centre GPUs; the others had slow links.
SHAPE_ACCELERATORS = frozenset({"A100-40", "A100-80", "V100-16", "GH-96"})


def measured_link(curve: Curve) -> Link:
    """Return the link of a curve; without a measured round trip, it gets the one that the curve's start implies."""
    if curve.rtt_ms is None:
        rtt_s = ramp_rtt_s(curve.a, curve.b, curve.c, curve.min_bytes, curve.max_bytes_per_s)
    else:
        rtt_s = curve.rtt_ms / 1e3
    return Link(
        a=curve.a,
        b=curve.b,
        c=curve.c,
        min_bytes=curve.min_bytes,
        max_bytes=curve.max_bytes,
        max_bytes_per_s=curve.max_bytes_per_s,
        rtt_s=rtt_s,
        pairs=curve.pairs,
        measured=curve.measured,
        error=MEASURED_ERROR,
        source=curve.source,
        as_of=curve.as_of,
    )


def estimated(link: Link, *, error: float) -> Link:
    return replace(link, measured=False, error=max(error, link.error))


def for_pairs(link: Link, pairs: int) -> Link:
    """Return the link for another number of pairs: unchanged for fewer, proportionally faster for more."""
    if pairs <= link.pairs:
        return replace(link, pairs=pairs)
    grown = link.scaled(pairs / link.pairs)
    return estimated(replace(grown, pairs=pairs), error=MORE_PAIRS_ERROR)


def shaped_like_nearest(curves: Iterable[Curve], rate_bytes_per_s: float, *, pairs: int, error: float) -> Link:
    """Return a link with a given highest rate and the shape of the measured curve with the nearest highest rate.

    Rates are compared by their ratio.
    """
    nearest = min(
        curves,
        key=lambda curve: (
            max(curve.max_bytes_per_s / rate_bytes_per_s, rate_bytes_per_s / curve.max_bytes_per_s),
            curve.src_accelerator,
            curve.pairs,
        ),
    )
    link = measured_link(nearest).scaled(rate_bytes_per_s / nearest.max_bytes_per_s)
    rtt_s = min(ramp_rtt_s(link.a, link.b, link.c, link.min_bytes, link.max_bytes_per_s), IN_REGION_RTT_S)
    return replace(estimated(link, error=error), pairs=pairs, rtt_s=rtt_s)


def instance_rate_bytes_per_s(src: InstanceNetwork, dst: InstanceNetwork, pairs: int, *, same_zone: bool) -> float:
    """Return the rate between two instances from their network limits alone.

    A pair gets its device's share of the limit, or what one pair reached over TCP if that is more.
    """
    rates = []
    for instance in (src, dst):
        limit = instance.baseline_bytes_per_s
        if not same_zone:
            limit = min(limit, BETWEEN_ZONES_BYTES_PER_S)
        per_pair = max(limit / instance.accelerator_count, ONE_PAIR_BYTES_PER_S)
        rates.append(INSTANCE_SHARE * min(limit, pairs * per_pair))
    return min(rates)


def across_regions(reference: Link, reference_rtt_s: float, rtt_s: float, measured: Iterable[RegionPair]) -> Link:
    """Return a link between regions scaled from a measured one.

    Windows limit a few TCP connections, so the rate falls with the round trip; the rate of 64 connections between the
    two regions is the ceiling.
    """
    link = replace(reference.scaled(reference_rtt_s / rtt_s), rtt_s=rtt_s)
    for pair in measured:
        link = replace(link.capped(pair.bytes_per_s), source=pair.source, as_of=pair.as_of)
    return estimated(link, error=ROUND_TRIP_ERROR)


def rtt_of_distance_s(distance_km: float) -> float:
    """Return the round trip over a great-circle distance; least-deviation fit of 2,248 region pairs, p90 error 43 %."""
    return 2.3e-3 + 1.6e-5 * distance_km
