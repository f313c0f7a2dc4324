"""Compares the ranks' findings on the hardware with the plan's assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.units import GB

# The size that ranks send to measure a link; see sailor_runtime.training.preflight.
PROBE_BYTES = 8_000_000

# A link below this share of its profile is reported: the plan assumed another network.
LEAST_SHARE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLink:
    """The bandwidth between two neighbouring stages, measured by one transfer at a time, and the profile's."""

    src_zone: str
    dst_zone: str
    bytes_per_s: float
    planned_bytes_per_s: float

    @property
    def slow(self) -> bool:
        return self.bytes_per_s < LEAST_SHARE * self.planned_bytes_per_s

    def __str__(self) -> str:
        less = 100 * (1 - self.bytes_per_s / self.planned_bytes_per_s)
        return (
            f"{self.src_zone} to {self.dst_zone}: {self.bytes_per_s / GB:.2f} GB/s measured, "
            f"{self.planned_bytes_per_s / GB:.2f} planned, {less:.0f} % less"
        )


def measured_links(document: PlanDocument, found: AgentEvent) -> tuple[MeasuredLink, ...]:
    """Return the measured links between zones that the plan uses, the slowest relative to plan first."""
    plan = document.plan
    assert plan is not None
    offers = document.inputs.offers_by_id()
    zones = {node.id: offers[node.offer].zone for node in plan.nodes}
    planned = {(link.src_zone, link.dst_zone): link.bandwidth_bytes_per_s for link in document.inputs.links}
    links = [
        MeasuredLink(
            src_zone=zones[row["src_node"]],
            dst_zone=zones[row["dst_node"]],
            bytes_per_s=row["bytes_per_s"],
            planned_bytes_per_s=planned[zones[row["src_node"]], zones[row["dst_node"]]],
        )
        for row in found["links"]
        if (zones.get(row["src_node"]), zones.get(row["dst_node"])) in planned
    ]
    return tuple(sorted(links, key=lambda link: link.bytes_per_s / link.planned_bytes_per_s))


def slow_links(document: PlanDocument, found: AgentEvent) -> dict[tuple[str, str], float]:
    """Return the bytes/s of every link far below its profile; the lowest if measured more than once."""
    slow: dict[tuple[str, str], float] = {}
    for link in measured_links(document, found):
        if link.slow:
            zones = (link.src_zone, link.dst_zone)
            slow[zones] = min(link.bytes_per_s, slow.get(zones, link.bytes_per_s))
    return slow


def preflight_note(document: PlanDocument, found: AgentEvent) -> str:
    """Return a note on a preflight: that all is well, or every link far below its profile."""
    kinds = sorted({_named(device) for device in found["devices"]})
    well = f"preflight: {len(found['devices'])} devices ({', '.join(kinds)}) compute and sum correctly"
    slow = [link for link in measured_links(document, found) if link.slow]
    if not slow:
        return well
    listed = "; ".join(str(link) for link in dict.fromkeys(slow))
    return f"{well}; links far below the plan, so iterations will take longer: {listed}"


def _named(device: Mapping[str, Any]) -> str:
    driver = device.get("driver")
    return f"{device['name']} with driver {driver}" if driver else str(device["name"])
