"""What is for sale or exists already: accelerators, instances that carry them, and offers of instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from sailor_cloud.model.market import Market as Market
from sailor_cloud.model.market import Precision as Precision
from sailor_cloud.model.provider import Provider as Provider
from sailor_cloud.units import GIB, SECONDS_PER_HOUR

# Of the listed accelerators, T4 has the least share of its nominal memory (2026-11-30).
_LEAST_USABLE_SHARE = 0.91


class Confidence(StrEnum):
    """How reliable a figure is; `example` marks the made-up prices of the local provider.

    `stated` is the user's own figure, from an inventory.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    EXAMPLE = "example"
    STATED = "stated"

    @property
    def of_market(self) -> bool:
        """Whether the figure is a real market price, and so can be old or wrong."""
        return self not in (Confidence.EXAMPLE, Confidence.STATED)


class ZoneConfidence(StrEnum):
    """Whether a source saw the instance type of an offer for sale in its zone."""

    SEEN = "seen"
    UNCHECKED = "unchecked"


class Doubt(StrEnum):
    """Why the listed price of an offer is doubted."""

    OUTLIER = "outlier"
    LOW_CONFIDENCE = "low-confidence"
    FAR_UNDER_ON_DEMAND = "far-under-on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """How many of a device's `links` the rings over a group of `devices` use, in nodes linked as `node_links` names."""

    node_links: str
    devices: int
    used: int
    links: int
    source: str
    as_of: date


# Compute capabilities of architectures. NVIDIA's open kernel modules need Turing, and Blackwell needs them
# (github.com/NVIDIA/open-gpu-kernel-modules, looked up 2026-11-27). Below Turing, nodes need the CUDA 12.6 build of
# torch, which has no kernels for Blackwell (architecture lists of the pytorch 2.7.0 packages: cuda12.6 ends at sm_90,
# cuda12.8 begins at sm_75; 2025-04).
TURING, BLACKWELL = 7.5, 10.0


def of_different_builds(capabilities: Mapping[str, float | None]) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the names that need the old build of torch, and those that it does not run; None unless there are both."""
    known = {name: capability for name, capability in capabilities.items() if capability is not None}
    old = frozenset(name for name, capability in known.items() if capability < TURING)
    new = frozenset(name for name, capability in known.items() if capability >= BLACKWELL)
    return (old, new) if old and new else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU model with its memory, or one of the local provider's emulated ones.

    `memory_gib` is the maker's figure; `usable_memory_gib` is the least total that the driver reports, None if unknown.
    Peak rates are dense, in TFLOP/s; None if the part has no such unit. `memory_bandwidth_gb_per_s` counts 10**9 bytes.
    `nvlink_gb_per_s` is the sum of both directions per device. `node_links` is empty if a switch gives every group of
    devices all links.
    """

    name: str
    vendor: str
    memory_gib: float
    usable_memory_gib: float | None
    peak_tflops_fp32: float | None
    peak_tflops_tf32: float | None
    peak_tflops_fp16: float | None
    peak_tflops_bf16: float | None
    memory_bandwidth_gb_per_s: float
    nvlink_gb_per_s: float | None
    node_links: tuple[GroupLinks, ...]
    pcie_generation: int | None
    compute_capability: float | None
    source: str
    confidence: Confidence

    @property
    def is_emulated(self) -> bool:
        """Whether this is a processor of this machine that emulates a GPU."""
        return self.vendor == "local"

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that the programs on a device share; of an unknown card, the least known share."""
        known = self.usable_memory_gib
        return int((self.memory_gib * _LEAST_USABLE_SHARE if known is None else known) * GIB)

    def ring_gb_per_s(self, devices: int) -> float | None:
        """Return NVLink's rate per device in rings over `devices` of a node, both directions; None if they use PCIe.

        A group of an unlisted size gets the links of the next smaller one.
        """
        listed = [group for group in self.node_links if group.devices <= devices]
        if self.nvlink_gb_per_s is None or not listed:
            return self.nvlink_gb_per_s
        group = max(listed, key=lambda group: group.devices)
        return self.nvlink_gb_per_s * group.used / group.links if group.used else None

    def peak_tflops(self, precision: Precision) -> float | None:
        """Return the peak rate at a precision, or None if the accelerator lacks it."""
        return {
            Precision.FP32: self.peak_tflops_fp32,
            Precision.TF32: self.peak_tflops_tf32,
            Precision.FP16: self.peak_tflops_fp16,
            Precision.BF16: self.peak_tflops_bf16,
        }[precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPrice:
    """The doubted price that a source lists for an offer.

    Plans count the highest price known for the type in the region on the market `counted_from`. None: no higher price
    is known, and the listed one counts.
    """

    usd_per_hour: float
    source: str
    doubts: tuple[Doubt, ...]
    counted_from: Market | None


# EC2 ends instances in a block this long before its end
# (docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-how.html, looked up 2026-11-24).
BLOCK_ENDS_EARLY_S = 1800.0
# The minimum that Compute Engine and EC2 bill per VM; safety rule 7 in docs/design.md.
MINIMUM_BILLED_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of capacity other than spot and on demand; at most `nodes` nodes.

    `held`: the reservation that the account has; "" if the run buys it. Nodes exist from `starts_at` on, and at the
    earliest `wait_s` after the request; they end at `ends_at`, or `most_s` after their start. `least_s` is paid for in
    any case.
    """

    name: str
    nodes: int
    held: str = ""
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    wait_s: float = 0.0
    least_s: float = 0.0
    most_s: float | None = None

    def start_s(self, now: datetime) -> float:
        """Return the seconds from now until nodes exist."""
        later = 0.0 if self.starts_at is None else (self.starts_at - now).total_seconds()
        return max(self.wait_s, later)

    def end_s(self, now: datetime, market: Market) -> float | None:
        """Return the seconds from now until nodes of a market end; None without an end."""
        ends = [] if self.most_s is None else [self.start_s(now) + self.most_s]
        if self.ends_at is not None:
            early_s = BLOCK_ENDS_EARLY_S if market is Market.CAPACITY_BLOCK else 0.0
            ends.append((self.ends_at - now).total_seconds() - early_s)
        return min(ends, default=None)

    def over(self, now: datetime, market: Market) -> bool:
        """Return whether nodes of a market would end before they exist."""
        end = self.end_s(now, market)
        return end is not None and end <= max(0.0, self.start_s(now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One instance type with its accelerators in one zone; unless it is an offer, its price is unknown.

    `id` names it inside a PlanDocument and is never parsed.
    """

    id: str
    provider: Provider
    region: str
    zone: str
    instance_type: str
    accelerator: str
    accelerator_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Hardware):
    """An instance in one market, at one price.

    A figure known only to be from between two dates has `as_of_from` < `as_of_to`; its age counts from the older one.
    `confidence` is that of the price; `outlier` marks a price far from those of the same instance type in nearby zones.
    `usd_per_hour` is what plans count. `listed` is None unless the listed price is doubted; then `usd_per_hour`, dates
    and source are those of the price that counts instead.
    """

    vcpus: int
    memory_gib: float
    market: Market
    usd_per_hour: float
    as_of_from: date
    as_of_to: date
    source: str
    confidence: Confidence
    zone_confidence: ZoneConfidence = ZoneConfidence.UNCHECKED
    outlier: bool = False
    listed: ListedPrice | None = None
    terms: Terms | None = None

    @property
    def bought_separately(self) -> bool:
        """Whether the capacity is bought separately before its nodes, which then cost nothing more."""
        return self.terms is not None and not self.terms.held and not self.queued

    @property
    def queued(self) -> bool:
        """Whether its nodes wait in a queue, and run for a duration instead of until a date."""
        return self.market is Market.FLEX_START

    @property
    def cancellable(self) -> bool:
        """Whether a separate purchase can be cancelled, which ends its price."""
        return self.market is not Market.CAPACITY_BLOCK

    def committed_usd(self, nodes: int) -> float:
        """Return what is paid in any case for `nodes` nodes, or for the whole block; 0 if only use is paid for."""
        if self.terms is None or self.terms.held:
            return 0.0
        paid = self.terms.nodes if self.market is Market.CAPACITY_BLOCK else nodes
        return paid * self.usd_per_hour * self.terms.least_s / SECONDS_PER_HOUR


def offer_id(provider: str, zone: str, instance_type: str, accelerator: str, count: str, market: str) -> str:
    """Return the name of an offer; two offers never share one."""
    return f"{provider}/{zone}/{instance_type}/{count}x{accelerator}/{market}"
