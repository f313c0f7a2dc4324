"""Rows of the bandwidth files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from sailor_cloud.model.offer import Provider


class CurveScope(StrEnum):
    """`same-zone` curves hold in any zone; `zones` curves name theirs."""

    SAME_NODE = "same-node"
    SAME_ZONE = "same-zone"
    ZONES = "zones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A fitted curve of bandwidth over message size between `pairs` devices of either type; see Link for the form."""

    scope: CurveScope
    src_zone: str
    src_accelerator: str
    dst_zone: str
    dst_accelerator: str
    pairs: int
    a: float
    b: float
    c: float
    min_bytes: float
    max_bytes: float
    max_bytes_per_s: float
    rtt_ms: float | None
    measured: bool
    source: str
    as_of: date


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceNetwork:
    """Network limits of an instance type, and the links of its devices; `device_link` counts both directions."""

    provider: Provider
    instance_type: str
    accelerator: str
    accelerator_count: int
    baseline_bytes_per_s: float
    device_link: str
    device_link_bytes_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPair:
    """One measurement between two VMs over many TCP connections; `external` used public addresses."""

    bytes_per_s: float
    rtt_s: float | None
    external: bool
    source: str
    as_of: date
