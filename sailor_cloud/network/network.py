"""The network between places: measured curves if there are any, else stated estimates."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sailor_cloud.catalog import providers
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Provider
from sailor_cloud.network import estimates
from sailor_cloud.network.egress import EgressPrice, EgressTable
from sailor_cloud.network.estimates import Scope, ZoneInfo, distance_km, scope_of
from sailor_cloud.network.link import Link
from sailor_cloud.network.records import Curve, CurveScope, InstanceNetwork, RegionPair

# Provider and region of the source and of the destination.
RegionKey = tuple[str, ...]

# The only pair of regions with measured GPUs; estimates of other pairs are scaled from it.
_REFERENCE = ("us-central1-a", "us-west1-b")
_REFERENCE_ACCELERATOR = "A100-40"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device of a node; places with the same node share it, and None is a separate node."""

    zone: str
    node: str | None
    accelerator: str
    instance_type: str


class Network:
    """Gives the speed and the price of transfers between two places."""

    def __init__(
        self,
        *,
        zones: Iterable[ZoneInfo],
        curves: Iterable[Curve],
        instances: Iterable[InstanceNetwork],
        region_pairs: Mapping[RegionKey, list[RegionPair]],
        egress: EgressTable,
    ) -> None:
        self._zones = {zone.name: zone for zone in zones}
        self._curves: dict[tuple[CurveScope, str, str, str, str], dict[int, Curve]] = {}
        for curve in curves:
            key = (curve.scope, curve.src_zone, curve.dst_zone, curve.src_accelerator, curve.dst_accelerator)
            self._curves.setdefault(key, {})[curve.pairs] = curve
        self._instances: dict[tuple[Provider, str, str], InstanceNetwork] = {}
        for instance in sorted(instances, key=lambda instance: instance.accelerator_count):
            self._instances[instance.provider, instance.instance_type, instance.accelerator] = instance
        self._region_pairs = region_pairs
        self._egress = egress
        self._links: dict[tuple[Place, Place, int], Link] = {}
        self._found: dict[tuple[str, str], float] = {}
        self._probe_bytes = 0.0

    def as_measured(self, rates: Mapping[tuple[str, str], float], *, probe_bytes: float) -> Network:
        """Return a network with links between some zones as slow as measured, and never faster than known.

        rates: bytes/s by source and destination zone, of one transfer of `probe_bytes` at a time.
        """
        other = copy.copy(self)
        other._links, other._found, other._probe_bytes = {}, {**self._found, **rates}, probe_bytes
        return other

    def link(self, src: Place, dst: Place, *, pairs: int = 1, flows: int = 1) -> Link:
        """Return the link over which `pairs` devices of one place send to equally many of the other at the same time.

        `flows` such transfers share the network card of either node and the route between regions. Error against
        equally many pairs measured together (A100-40 and V100-16, 64 MB and more): four flows are 6 % too fast to 12 %
        too slow in a region, and up to 31 % too fast across regions. Two flows are up to 41 % and 46 % too fast. Raises
        DataError for places without a link.
        """
        same_node = src.node is not None and src.node == dst.node and src.zone == dst.zone
        key = (replace(src, node=""), replace(dst, node="" if same_node else None), pairs)
        found = self._links.get(key)
        if found is None:
            found = self._same_node(src, pairs) if same_node else self._slowed(src, dst, pairs)
            self._links[key] = found
        return found if same_node or flows == 1 else found.capped(self._shared_bytes_per_s(src, dst) / flows)

    def pair_bytes_per_s(self, accelerator: str) -> float | None:
        """Return the highest rate measured from one device to another of its node; None without a measurement."""
        curve = self._curves.get((CurveScope.SAME_NODE, "", "", accelerator, accelerator), {}).get(1)
        return curve.max_bytes_per_s if curve is not None and curve.measured else None

    def egress(self, src_zone: str, dst_zone: str) -> tuple[EgressPrice, ...]:
        """Return the price of a byte from one zone to another, for each payer. Raises MissingPriceError."""
        return self._egress.prices(self._zone(src_zone), self._zone(dst_zone))

    def scope(self, src_zone: str, dst_zone: str) -> Scope:
        """Return how far two zones are apart. Raises DataError for an unknown zone."""
        return scope_of(self._zone(src_zone), self._zone(dst_zone))

    def instance_of(self, place: Place) -> InstanceNetwork | None:
        """Return the known network data of a place's instance type."""
        return self._instances.get((self._zone(place.zone).provider, place.instance_type, place.accelerator))

    def zones(self) -> tuple[str, ...]:
        return tuple(sorted(self._zones))

    def first_zone(self, provider: Provider) -> tuple[str, str]:
        """Return region and name of a cloud's first zone by name."""
        zone = min((zone for zone in self._zones.values() if zone.provider is provider), key=lambda zone: zone.name)
        return zone.region, zone.name

    def _same_node(self, place: Place, pairs: int) -> Link:
        curves = self._curves.get((CurveScope.SAME_NODE, "", "", place.accelerator, place.accelerator))
        if curves:
            return _for_pairs(curves, pairs)
        instance = self.instance_of(place)
        if instance is None or instance.device_link_bytes_per_s is None:
            raise DataError(
                f"no link between two devices of {place.instance_type} with {place.accelerator}: it has one device, "
                "or instances.csv of the bandwidth profiles does not know it; add it, or a curve between its devices, "
                "to a folder of bandwidth profiles and name that with --network"
            )
        rate = pairs * estimates.DEVICE_LINK_SHARE * instance.device_link_bytes_per_s / 2
        link = estimates.shaped_like_nearest(
            self._shapes(CurveScope.SAME_NODE), rate, pairs=pairs, error=estimates.DEVICE_LINK_ERROR
        )
        return replace(link, source=f"{instance.source}: {instance.device_link}")

    def _slowed(self, src: Place, dst: Place, pairs: int) -> Link:
        """Return the link between two nodes, scaled to the measured rate between their zones."""
        link, rate = self._between(src, dst, pairs), self._found.get((src.zone, dst.zone))
        if rate is None:
            return link
        known_s = (link if pairs == 1 else self._between(src, dst, 1)).transfer_s(self._probe_bytes)
        return link.scaled(min(1.0, rate * known_s / self._probe_bytes))

    def _between(self, src: Place, dst: Place, pairs: int) -> Link:
        scope = self.scope(src.zone, dst.zone)
        across = scope in (Scope.OTHER_REGION, Scope.OTHER_CLOUD)
        measured = self._measured(src, dst, pairs, across=across)
        if measured is not None:
            link = measured
        elif across:
            link = self._across_regions(src, dst, pairs)
        else:
            link = self._from_instances(src, dst, pairs)
        return link.capped(self._limit_bytes_per_s(src, dst))

    def _measured(self, src: Place, dst: Place, pairs: int, *, across: bool) -> Link | None:
        """Return the link by curves of both types, the slower one if they differ; None if a type has no curve."""
        mixed = self._curves_for(src, dst, src.accelerator, dst.accelerator, across=across)
        if mixed is not None:
            return self._curve_link(src, dst, mixed, pairs)
        links = []
        for accelerator in (src.accelerator, dst.accelerator):
            curves = self._curves_for(src, dst, accelerator, accelerator, across=across)
            if curves is None:
                return None
            links.append(self._curve_link(src, dst, curves, pairs))
        slower = min(links, key=lambda link: link.bandwidth_bytes_per_s)
        return estimates.estimated(slower, error=estimates.MIXED_ERROR)

    def _curves_for(self, src: Place, dst: Place, first: str, second: str, *, across: bool) -> dict[int, Curve] | None:
        exact = self._curves.get((CurveScope.ZONES, src.zone, dst.zone, first, second))
        if exact is not None or across:
            return exact
        if not providers.of(self._zone(src.zone).provider).general_curves and self.instance_of(src) is not None:
            return None
        return self._curves.get((CurveScope.SAME_ZONE, "", "", first, second))

    def _curve_link(self, src: Place, dst: Place, curves: dict[int, Curve], pairs: int) -> Link:
        link = _for_pairs(curves, pairs)
        src_zone, dst_zone = self._zone(src.zone), self._zone(dst.zone)
        anywhere = next(iter(curves.values())).scope is CurveScope.SAME_ZONE
        if anywhere and not (src_zone == dst_zone and providers.of(src_zone.provider).on_this_machine):
            return estimates.estimated(link, error=estimates.ELSEWHERE_ERROR)
        if src_zone.region != dst_zone.region:
            error = max(link.error, estimates.MEASURED_ACROSS_REGIONS_ERROR)
            return replace(link, rtt_s=max(self._rtt_s(src_zone, dst_zone), link.rtt_s), error=error)
        return link

    def _from_instances(self, src: Place, dst: Place, pairs: int) -> Link:
        instances = [self.instance_of(place) for place in (src, dst)]
        if instances[0] is None or instances[1] is None:
            raise DataError(
                f"no bandwidth known between {src.accelerator} on {src.instance_type} in {src.zone} and "
                f"{dst.accelerator} on {dst.instance_type} in {dst.zone}; add a curve or an instance limit to a "
                "folder of bandwidth profiles and name it with --network"
            )
        same_zone = src.zone == dst.zone
        rate = estimates.instance_rate_bytes_per_s(instances[0], instances[1], pairs, same_zone=same_zone)
        link = estimates.shaped_like_nearest(
            self._shapes(CurveScope.SAME_ZONE), rate, pairs=pairs, error=estimates.INSTANCE_ERROR
        )
        # A faster card shortens the bytes of a message, not the rest of a step.
        rtt_s = max(link.rtt_s, 2.0 * estimates.RING_STEP_S)
        return replace(link, rtt_s=rtt_s, source=min(instances[0].source, instances[1].source))

    def _across_regions(self, src: Place, dst: Place, pairs: int) -> Link:
        src_zone, dst_zone = self._zone(src.zone), self._zone(dst.zone)
        reference_rtt_s = self._rtt_s(*(self._zone(zone) for zone in _REFERENCE))
        measured = self._region_pairs.get((src_zone.provider, src_zone.region, dst_zone.provider, dst_zone.region), [])
        if src_zone.provider is dst_zone.provider and providers.of(src_zone.provider).spans_regions:
            # Nodes of one network use internal addresses; the 2022-01 rows show GCP's external limit of 7 Gbit/s.
            measured = [pair for pair in measured if not pair.external or pair.as_of.month > 1]
        return estimates.across_regions(
            _for_pairs(self._reference(), pairs), reference_rtt_s, self._rtt_s(src_zone, dst_zone), measured
        )

    def _reference(self) -> dict[int, Curve]:
        """Return the curves by number of pairs that estimates across regions scale from. Raises DataError."""
        curves = self._curves.get((CurveScope.ZONES, *_REFERENCE, _REFERENCE_ACCELERATOR, _REFERENCE_ACCELERATOR))
        if curves is None:
            raise DataError(
                f"no {_REFERENCE_ACCELERATOR} curve from {_REFERENCE[0]} to {_REFERENCE[1]} in curves.csv of the "
                "bandwidth profiles, from which links between other regions are estimated; add it or a curve of the "
                "zones themselves"
            )
        return curves

    def _rtt_s(self, src: ZoneInfo, dst: ZoneInfo) -> float:
        """Return the shortest round trip measured in either direction, else one from the distance."""
        keys = (
            (src.provider, src.region, dst.provider, dst.region),
            (dst.provider, dst.region, src.provider, src.region),
        )
        measured = [pair.rtt_s for key in keys for pair in self._region_pairs.get(key, []) if pair.rtt_s is not None]
        if measured:
            return min(measured)
        here = [providers.of(zone.provider).on_this_machine for zone in (src, dst)]
        if src.provider is not dst.provider and any(here):
            raise DataError(f"no network between {src.name} ({src.provider}) and {dst.name} ({dst.provider})")
        return estimates.rtt_of_distance_s(distance_km(src, dst))

    def _limit_bytes_per_s(self, src: Place, dst: Place) -> float:
        limits = []
        for place in (src, dst):
            instance = self.instance_of(place)
            if instance is not None:
                limits.append(instance.baseline_bytes_per_s)
        return min(limits, default=float("inf"))

    def _shared_bytes_per_s(self, src: Place, dst: Place) -> float:
        """Return the total rate of all transfers between two nodes: the cards' limit. If that is unknown or the route
        between regions is slower, the highest rate of any number of pairs."""
        limit = self._limit_bytes_per_s(src, dst)
        across = self.scope(src.zone, dst.zone) in (Scope.OTHER_REGION, Scope.OTHER_CLOUD)
        if not across and limit < float("inf"):
            return limit
        ends = (src.accelerator, dst.accelerator)
        measured = [self._curves_for(src, dst, *pair, across=across) for pair in (ends, ends[:1] * 2, ends[1:] * 2)]
        counts = [count for curves in measured if curves is not None for count in curves]
        most = max(counts, default=max(self._reference()))
        return min(limit, self._between(src, dst, most).max_bytes_per_s)

    def _shapes(self, scope: CurveScope) -> list[Curve]:
        return [
            curve
            for key, curves in self._curves.items()
            if key[0] is scope and key[3] == key[4] and key[3] in estimates.SHAPE_ACCELERATORS
            for curve in curves.values()
        ]

    def _zone(self, name: str) -> ZoneInfo:
        found = self._zones.get(name)
        if found is None:
            raise DataError(f"no zone {name!r}; 'sailor-cloud prices list' shows the zones with offers")
        return found


def _for_pairs(curves: dict[int, Curve], pairs: int) -> Link:
    """Return the link for a number of pairs, from the curve of the largest measured number not above it."""
    fewer = [count for count in curves if count <= pairs]
    curve = curves[max(fewer) if fewer else min(curves)]
    return estimates.for_pairs(estimates.measured_link(curve), pairs)
