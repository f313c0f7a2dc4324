"""The shipped data is sound: no doubles, no zero, nothing unknown, nothing out of range."""

import csv
import itertools
import re
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from sailor_cloud import resources
from sailor_cloud.catalog import BOOT_DISKS, Service, load
from sailor_cloud.catalog.account.quotas import QuotaScope, load_rules
from sailor_cloud.catalog.machine_types import load_machine_types
from sailor_cloud.catalog.providers.gcp.skus import ATTACHED_CEILINGS
from sailor_cloud.errors import Problem
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider, ZoneConfidence
from sailor_cloud.network import load as load_network

DATA = resources.data_root()
PRICING = DATA / "pricing"
PROFILES = DATA / "bandwidth_profiles"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
CATALOG = load(DATA)
OFFERS = CATALOG.offers()
# The day of the last change of these files: what they state is of that day or older.
COLLECTED = date(2026, 11, 30)

KEYS = {
    "accelerators.csv": ("name",),
    "node_links.csv": ("node_links", "devices"),
    "regions.csv": ("provider", "region"),
    "zones.csv": ("zone",),
    "services.csv": ("provider", "region", "service"),
    "egress.csv": ("provider", "src_scope", "src", "dst_scope", "dst", "payer", "tier"),
    "price_history.csv": ("region", "instance_type", "day"),
    "spot_interruptions.csv": ("region", "instance_type"),
    "machines.csv": ("provider", "instance_type"),
    "sources.csv": ("id",),
    "quotas.csv": ("provider", "accelerator", "instance_prefix", "market", "quota"),
    "elsewhere.csv": ("provider", "accelerator", "market"),
    "../bandwidth_profiles/curves.csv": (
        "scope",
        "src_zone",
        "src_accelerator",
        "dst_zone",
        "dst_accelerator",
        "pairs",
    ),
    "../bandwidth_profiles/instances.csv": ("provider", "instance_type", "accelerator", "accelerator_count"),
    "../bandwidth_profiles/region_pairs.csv": ("src_provider", "src_region", "dst_provider", "dst_region", "as_of"),
}
# USD per device and hour, on-demand; wide, to catch a wrong column or a lost digit, not a price change.
PLAUSIBLE_USD_PER_DEVICE_HOUR = {
    "A100-40": (1.5, 7),
    "A100-80": (2.5, 8),
    "A10G-24": (0.8, 8),
    "B200-180": (8, 20),
    "B300-288": (10, 30),
    "CPU-fast": (0.001, 1),
    "CPU-slow": (0.001, 1),
    "H100-80": (4, 16),
    "H200-141": (5, 20),
    "K80-12": (0.5, 3),
    "L4-24": (0.4, 8),
    "L40S-48": (1, 16),
    "M60-8": (0.5, 3),
    "P100-16": (0.9, 4),
    "P4-8": (0.4, 3),
    "RTXPRO6000-96": (2, 12),
    "T4-16": (0.3, 8),
    "T4G-16": (0.3, 3),
    "V100-16": (2, 8),
    "V100-32": (3, 8),
    "V520-8": (0.2, 3),
}


def rows(name: str) -> list[dict[str, str]]:
    with (PRICING / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


@pytest.mark.parametrize("name", sorted(KEYS))
def test_no_two_rows_have_one_key(name: str) -> None:
    keys = Counter(tuple(row[column] for column in KEYS[name]) for row in rows(name))
    assert [key for key, count in keys.items() if count > 1] == []


@pytest.mark.parametrize("name", sorted(KEYS))
def test_every_source_is_described(name: str) -> None:
    known = {row["id"] for row in rows("sources.csv")}
    assert {row.get("source", next(iter(known))) for row in rows(name)} <= known


def test_every_described_source_is_used() -> None:
    columns = ("source", "usable_source")
    used = {row[column] for name in KEYS for row in rows(name) for column in columns if column in row}
    used |= {offer.source for offer in OFFERS}
    assert {row["id"] for row in rows("sources.csv")} <= used


def test_no_spot_price_is_above_on_demand() -> None:
    on_demand = {_shape(offer): offer.usd_per_hour for offer in OFFERS if offer.market is Market.ON_DEMAND}
    above = [
        offer.id
        for offer in OFFERS
        if offer.market is Market.SPOT and offer.usd_per_hour > on_demand.get(_shape(offer), float("inf"))
    ]
    assert above == []


def _shape(offer: Offer) -> tuple[str, str, str, int]:
    return offer.zone, offer.instance_type, offer.accelerator, offer.accelerator_count


def test_every_offers_accelerator_zone_and_region_are_known() -> None:
    for offer in OFFERS:
        assert CATALOG.accelerator(offer.accelerator).name == offer.accelerator
        assert CATALOG.zone(offer.zone).provider is offer.provider
        assert CATALOG.region_of(offer.zone) == offer.region
        assert CATALOG.region(offer.provider, offer.region).name == offer.region


def test_every_zones_region_is_known() -> None:
    for name in CATALOG.zones():
        zone = CATALOG.zone(name)
        assert CATALOG.region(zone.provider, zone.region).name == zone.region


def test_zones_of_aws_are_those_that_terraform_can_buy_in() -> None:
    module = (DATA / "terraform" / "modules" / "aws-cluster" / "main.tf").read_text()
    pattern = re.search(r'zone_pattern = "(.*)"', module)
    assert pattern is not None
    zones = [name for name in CATALOG.zones() if CATALOG.zone(name).provider == "aws"]
    assert zones
    assert not [name for name in zones if not re.fullmatch(pattern[1], name)]


def test_dates_are_in_order_and_not_in_the_future_of_their_collection() -> None:
    for offer in OFFERS:
        assert date(2022, 1, 1) <= offer.as_of_from <= offer.as_of_to <= COLLECTED, offer.id


DATE_COLUMNS = {"as_of", "as_of_from", "as_of_to", "day"}


@pytest.mark.parametrize(
    "path", sorted([*PRICING.rglob("*.csv"), *PROFILES.rglob("*.csv")]), ids=lambda path: path.stem
)
def test_no_date_lies_in_the_future_of_its_collection(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, strict=True))
    dates = {row[column] for row in table for column in DATE_COLUMNS & row.keys() if row[column]}
    assert {text for text in dates if date.fromisoformat(text) > COLLECTED} == set()


@pytest.mark.parametrize("accelerator", sorted({offer.accelerator for offer in OFFERS}))
def test_prices_are_plausible_for_their_accelerator(accelerator: str) -> None:
    low, high = PLAUSIBLE_USD_PER_DEVICE_HOUR[accelerator]
    for offer in CATALOG.offers(accelerators=[accelerator]):
        price = offer.usd_per_hour / offer.accelerator_count
        floor = low / 25 if offer.market is Market.SPOT else low
        assert floor <= price <= high, offer.id


def test_shapes_are_plausible() -> None:
    for offer in OFFERS:
        assert 1 <= offer.accelerator_count <= 16
        assert 1 <= offer.vcpus <= 400
        assert 0 < offer.memory_gib <= 5000


def test_every_cuda_accelerator_has_its_compute_capability() -> None:
    for name in CATALOG.accelerator_names():
        accelerator = CATALOG.accelerator(name)
        if accelerator.vendor == "NVIDIA":
            assert accelerator.compute_capability is not None
            assert 3.0 <= accelerator.compute_capability <= 12.1
            assert accelerator.pcie_generation in (3, 4, 5)
        assert 0 < accelerator.memory_gib <= 300
        assert 0 < accelerator.memory_bandwidth_gb_per_s <= 10_000


def test_peak_rates_keep_their_order() -> None:
    for name in CATALOG.accelerator_names():
        accelerator = CATALOG.accelerator(name)
        rates = [accelerator.peak_tflops_fp32, accelerator.peak_tflops_tf32, accelerator.peak_tflops_bf16]
        known = [rate for rate in rates if rate is not None]
        assert all(lower <= 1.01 * higher for lower, higher in itertools.pairwise(known)), name
        has_bf16 = accelerator.peak_tflops_bf16 is not None
        assert has_bf16 == (accelerator.compute_capability is not None and accelerator.compute_capability >= 8.0)


@pytest.mark.parametrize(("accelerator", "guest"), [("V100-16", "nvidia-tesla-v100"), ("T4-16", "nvidia-tesla-t4")])
def test_attached_accelerators_keep_the_ceilings_of_their_count(accelerator: str, guest: str) -> None:
    offers = CATALOG.offers(provider=Provider("gcp"), accelerators=[accelerator])
    assert {offer.accelerator_count for offer in offers} == set(ATTACHED_CEILINGS[guest])
    for offer in offers:
        vcpus, memory_gib = ATTACHED_CEILINGS[guest][offer.accelerator_count]
        assert offer.vcpus <= vcpus
        assert offer.memory_gib <= memory_gib


def test_every_instance_on_offer_has_its_network_limit() -> None:
    network = load_network(DATA)
    unknown = {
        offer.instance_type
        for offer in OFFERS
        if (offer.provider, offer.instance_type, offer.accelerator) not in network._instances
    }
    assert unknown <= {"p2.xlarge"}


def test_every_region_with_offers_prices_what_a_node_needs() -> None:
    for provider, region in {(offer.provider, offer.region) for offer in OFFERS}:
        disks = {row.boot_disk for row in load_machine_types() if row.provider == provider}
        services = {
            Service.PUBLIC_ADDRESS,
            Service.NAT_GATEWAY,
            Service.NAT_DATA,
            *(BOOT_DISKS[kind] for kind in disks),
        }
        for service in services | {Service.DISK_BALANCED}:
            assert 0 < CATALOG.services.price(provider, region, service).usd_per_unit < 1


def test_every_offered_cloud_accelerator_falls_under_a_quota() -> None:
    rules = [rule for rule in load_rules() if rule.scope is QuotaScope.REGION]
    offered = {
        (offer.provider, offer.accelerator, offer.instance_type, offer.market)
        for offer in OFFERS
        if offer.provider is not Provider("local")
    }
    for provider, accelerator, instance_type, market in sorted(offered):
        (rule,) = (
            rule
            for rule in rules
            if (rule.provider, rule.accelerator) == (provider, accelerator)
            and rule.market in (None, market)
            and instance_type.startswith(rule.instance_prefix)
        )
        assert rule.quota


def test_p5_has_a_spot_quota_of_its_own() -> None:
    found = {r.quota for r in load_rules() if r.provider == "aws" and r.accelerator in ("H100-80", "H200-141")}
    assert found == {"L-417A185B", "L-C4BD4855"}


def test_regional_prices_of_aws_mark_the_zone_as_unchecked() -> None:
    regional = {"ec2instances@a19cd859", "karpenter-aws@2026-07-20", "derived-from-us-east-1"}
    unchecked = [offer for offer in OFFERS if offer.zone_confidence is ZoneConfidence.UNCHECKED]
    assert {offer.source for offer in unchecked if offer.provider is Provider("aws")} == regional
    assert {offer.instance_type for offer in unchecked if offer.provider is Provider("gcp")} == {"a2-megagpu-16g"}


def test_the_confidence_of_a_price_does_not_follow_the_zone() -> None:
    kinds = {(offer.confidence, offer.zone_confidence) for offer in OFFERS if offer.provider is Provider("aws")}
    assert {(Confidence.HIGH, ZoneConfidence.UNCHECKED), (Confidence.MEDIUM, ZoneConfidence.UNCHECKED)} <= kinds
    assert {(Confidence.MEDIUM, ZoneConfidence.SEEN), (Confidence.LOW, ZoneConfidence.SEEN)} <= kinds


@pytest.mark.parametrize("region", ["us-east-1", "us-east-2", "us-west-2", "eu-central-1"])
def test_spot_prices_of_the_g_types_have_dates_and_zones_that_sell_them(region: str) -> None:
    spot = [o for o in OFFERS if o.region == region and o.market is Market.SPOT]
    types = {offer.instance_type for offer in spot}
    assert {
        "g4dn.xlarge",
        "g5.xlarge",
        "g5.48xlarge",
        "g6.xlarge",
        "g6.48xlarge",
        "g6e.xlarge",
        "g6e.48xlarge",
    } <= types
    assert {offer.zone_confidence for offer in spot} == {ZoneConfidence.SEEN}


def test_every_type_of_a_cloud_has_a_row_of_what_it_needs_and_is_offered_in_markets_that_it_is_sold_in() -> None:
    rows = {(row.provider, row.instance_type): row for row in load_machine_types()}
    assert len(rows) == len(load_machine_types())
    for offer in OFFERS:
        if offer.provider != "local":
            assert offer.market in rows[offer.provider, offer.instance_type].markets, offer.id
    for row in rows.values():
        assert CATALOG.source(row.source).citation != row.source
        assert (row.boot_disk == "gp3") == (row.provider == "aws")
        assert row.network_cards >= max(1, len(row.efa_cards))
    # Google's documentation: what has no on-demand market, and what takes Hyperdisk alone.
    spot = {name for (_, name), row in rows.items() if row.markets == {Market.SPOT}}
    assert spot == {"a4-highgpu-8g", "a3-ultragpu-8g", *(f"a3-highgpu-{count}g" for count in (1, 2, 4))}
    hyperdisk = {name for (_, name), row in rows.items() if row.boot_disk == "hyperdisk-balanced"}
    assert hyperdisk == {"a4-highgpu-8g", "a3-ultragpu-8g"}


def test_an_instance_of_google_has_the_bandwidth_of_the_one_card_that_it_gets() -> None:
    several = {row.instance_type for row in load_machine_types() if row.provider == "gcp" and row.network_cards > 1}
    rates = {
        row["instance_type"]: float(row["baseline_gbit_per_s"]) for row in rows("../bandwidth_profiles/instances.csv")
    }
    assert {name: rates[name] for name in several} == dict.fromkeys(several, 200.0)


def test_example_prices_are_local_only() -> None:
    assert {offer.provider for offer in OFFERS if offer.confidence is Confidence.EXAMPLE} == {Provider("local")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_name_in_the_examples_is_known_and_offered(path: Path) -> None:
    from sailor_cloud.catalog.job_check import resource_problems

    job = parse_job(path.read_text())
    problems: list[Problem] = resource_problems(job, CATALOG)
    assert problems == []
    for resource in job.resources:
        offers = CATALOG.offers(zones=resource.zones, accelerators=resource.accelerators, markets=resource.markets)
        assert {offer.zone for offer in offers} == set(resource.zones)
        assert {offer.accelerator for offer in offers} == set(resource.accelerators)


def test_curves_are_positive_where_they_hold() -> None:
    import numpy as np

    for row in rows("../bandwidth_profiles/curves.csv"):
        x = np.log2(np.linspace(float(row["min_bytes"]), float(row["max_bytes"]), 50) / 1e6)
        assert np.all(float(row["a"]) * x**2 + float(row["b"]) * x + float(row["c"]) > 0), row
        assert 0 < float(row["max_bytes_per_s"]) < 1e12


def test_the_data_stays_small() -> None:
    total = sum(path.stat().st_size for folder in (PRICING, PROFILES) for path in folder.rglob("*") if path.is_file())
    assert total < 5_000_000


def test_traffic_is_free_inside_a_zone_only() -> None:
    for row in rows("egress.csv"):
        price = float(row["usd_per_unit"])
        assert 0.005 <= price < 0.3 or (price == 0 and row["src_scope"] == "same-zone"), row
        assert row["unit"] in ("GB", "GiB")
        assert row["payer"] in ("sender", "receiver")
