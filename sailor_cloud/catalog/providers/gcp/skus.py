"""Prices of GCP machine parts, and of whole machines put together from them.

A machine costs vCPUs x core + GiB x RAM + accelerators + bundled local SSD, each part with its own SKU per region.
Source: Cloud Billing Catalog API; SKU descriptions as used by github.com/Cyclenerd/google-cloud-pricing-cost-calculator
(build/mapping.csv) and cloudpilot-ai/karpenter-provider-gcp, 2026-08.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sailor_cloud.catalog.providers.fetched import Refusal
from sailor_cloud.model.offer import Market
from sailor_cloud.units import HOURS_PER_MONTH

# Accelerators by their names in machine types and accelerator types.
ACCELERATORS = {
    "nvidia-tesla-a100": "A100-40",
    "nvidia-a100-80gb": "A100-80",
    "nvidia-b200": "B200-180",
    "nvidia-h100-80gb": "H100-80",
    "nvidia-h100-mega-80gb": "H100-80",
    "nvidia-h200-141gb": "H200-141",
    "nvidia-l4": "L4-24",
    "nvidia-rtx-pro-6000": "RTXPRO6000-96",
    "nvidia-tesla-p100": "P100-16",
    "nvidia-tesla-p4": "P4-8",
    "nvidia-tesla-t4": "T4-16",
    "nvidia-tesla-v100": "V100-16",
}
_ACCELERATOR_SKUS = {
    "Nvidia Tesla A100 GPU": "nvidia-tesla-a100",
    "Nvidia Tesla A100 80GB GPU": "nvidia-a100-80gb",
    "Nvidia H100 80GB GPU": "nvidia-h100-80gb",
    "Nvidia H100 80GB Mega GPU": "nvidia-h100-mega-80gb",
    "Nvidia H100 80GB Plus GPU": "nvidia-h100-mega-80gb",
    "H200 141GB GPU": "nvidia-h200-141gb",
    "Nvidia L4 GPU": "nvidia-l4",
    "RTX 6000 96GB": "nvidia-rtx-pro-6000",
    "Nvidia Tesla T4 GPU": "nvidia-tesla-t4",
    "Nvidia Tesla V100 GPU": "nvidia-tesla-v100",
    "Nvidia Tesla P100 GPU": "nvidia-tesla-p100",
    "Nvidia Tesla P4 GPU": "nvidia-tesla-p4",
}
# Machine type prefixes, longest first, and the beginnings of their core and RAM SKUs.
_FAMILIES = (
    ("a3-ultragpu-", "A3Ultra Instance"),
    ("a3-megagpu-", "A3Plus Instance"),
    ("a4-highgpu-", "A4 Instance"),
    ("a3-", "A3 Instance"),
    ("a2-", "A2 Instance"),
    ("g4-", "G4 Instance"),
    ("g2-", "G2 Instance"),
    ("n1-standard-", "N1 Predefined Instance"),
    ("n1-highmem-", "N1 Predefined Instance"),
)
_LOCAL_SSD = "SSD backed Local Storage"
_MARKETS = {"OnDemand": Market.ON_DEMAND, "Preemptible": Market.SPOT}
_SPOT_MARKS = re.compile(r"^Spot Preemptible | attached to Spot Preemptible VMs")
_PLACE = re.compile(r" (?:running )?in .*$")

# Most vCPUs and GiB of an N1 machine by its number of accelerators. Source: Google Cloud "GPU platforms" page; V100
# checked 2026-11, the others restated.
ATTACHED_CEILINGS: Mapping[str, Mapping[int, tuple[int, float]]] = {
    "nvidia-tesla-v100": {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)},
    "nvidia-tesla-p100": {1: (16, 104), 2: (32, 208), 4: (64, 208)},
    "nvidia-tesla-t4": {1: (48, 312), 2: (48, 312), 4: (96, 624)},
    "nvidia-tesla-p4": {1: (24, 156), 2: (48, 312), 4: (96, 624)},
}

_SMALL = frozenset({"nvidia-tesla-t4", "nvidia-tesla-p4"})

Part = tuple[str, str, Market]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine type; `accelerator` is the provider's name, empty if accelerators are attached instead."""

    name: str
    vcpus: int
    memory_gib: float
    accelerator: str
    accelerator_count: int
    local_ssd_gib: float


def part_prices(skus: Iterable[Any]) -> tuple[dict[Part, float], Counter[Refusal]]:
    """Return USD per unit and hour by (what, region, market), and what was refused.

    `skus` are google.cloud.billing_v1.Sku. Commitments, Custom, Reserved, Sole Tenancy, Premium and DWS SKUs have other
    descriptions and are left out. Of two prices for one part, the higher counts.
    """
    known = {f"{prefix} {part}" for _, prefix in _FAMILIES for part in ("Core", "Ram")}
    prices: dict[Part, float] = {}
    refused: Counter[Refusal] = Counter()
    for sku in skus:
        what = _PLACE.sub("", _SPOT_MARKS.sub("", sku.description))
        market = _MARKETS.get(sku.category.usage_type)
        if what not in known and what not in _ACCELERATOR_SKUS and what != _LOCAL_SSD:
            if sku.category.resource_group == "GPU" and market is not None and what.endswith("GPU"):
                refused[Refusal.UNKNOWN_SKU] += 1
            continue
        if not sku.category.usage_type or not sku.service_regions:
            refused[Refusal.INCOMPLETE] += 1
            continue
        if market is None:
            continue
        price = _unit_price(sku)
        if price is None:
            refused[Refusal.INCOMPLETE] += 1
        elif price <= 0:
            refused[Refusal.ZERO_PRICE] += 1
        else:
            hourly = price / HOURS_PER_MONTH if what == _LOCAL_SSD else price
            for region in sku.service_regions:
                part = (_ACCELERATOR_SKUS.get(what, what), region, market)
                prices[part] = max(hourly, prices.get(part, 0.0))
    return prices, refused


def machine_price(
    machine: Machine, accelerator: str, count: int, region: str, market: Market, prices: Mapping[Part, float]
) -> float | None:
    """Return USD per hour of a machine with `count` accelerators, None unless every part has a price."""
    family = family_of(machine.name)
    if family is None:
        return None
    parts: list[tuple[str, float]] = [
        (f"{family} Core", machine.vcpus),
        (f"{family} Ram", machine.memory_gib),
        (accelerator, count),
    ]
    if machine.local_ssd_gib:
        parts.append((_LOCAL_SSD, machine.local_ssd_gib))
    total = 0.0
    for what, quantity in parts:
        price = prices.get((what, region, market))
        if price is None:
            return None
        total += quantity * price
    return total


def family_of(machine_type: str) -> str | None:
    """Return how a machine type's SKUs begin, None for machines without accelerators."""
    return next((sku for prefix, sku in _FAMILIES if machine_type.startswith(prefix)), None)


def attached(machine: Machine, available: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    """Yield the accelerators and counts that can be attached to an N1 machine in a zone.

    `available` has the most cards per instance by accelerator. Shapes are those of the shipped data: 8 vCPUs per
    accelerator, and on standard machines with T4 or P4 also 4.
    """
    for accelerator, ceilings in ATTACHED_CEILINGS.items():
        small = accelerator in _SMALL and machine.name.startswith("n1-standard-")
        for count, (vcpus, memory_gib) in ceilings.items():
            usual = machine.vcpus == 8 * count or (small and machine.vcpus == 4 * count)
            fits = machine.vcpus <= vcpus and machine.memory_gib <= memory_gib
            if usual and fits and count <= available.get(accelerator, 0):
                yield accelerator, count


def _unit_price(sku: Any) -> float | None:
    if not sku.pricing_info:
        return None
    tiers = sku.pricing_info[0].pricing_expression.tiered_rates
    if not tiers:
        return None
    price = tiers[-1].unit_price
    return float(price.units) + float(price.nanos) / 1e9
