"""The account's limits as they were last read, kept for plans."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories.cloud_prices import google_world
from sailor_cloud.catalog import load
from sailor_cloud.catalog.account import account_quotas
from sailor_cloud.catalog.account.account_quotas import KnownQuota, limits
from sailor_cloud.catalog.account.quotas import Counted, QuotaNeed, QuotaStatus, load_rules
from sailor_cloud.cli.inputs.quota import quota
from sailor_cloud.cli.terminal.options import cloud_of
from sailor_cloud.errors import DataError
from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.testing.google.prices import FakeGoogle

HEADER = "provider,project,region,quota,limit,used,read_on\n"


def status(name: str, limit: float | None, used: float | None, provider: str = "gcp") -> QuotaStatus:
    need = QuotaNeed(
        provider=Provider(provider),
        region="us-central1",
        quota=name,
        counts=Counted.DEVICES,
        market=None,
        accelerators=("A100-40",),
        needed=0.0,
    )
    return QuotaStatus(need=need, limit=limit, used=used)


def test_limits_are_kept_and_replaced_by_a_later_reading(own_home: Path) -> None:
    account_quotas.store_limits(
        [status("A", 8, 1), status("B", None, None)], cloud=cloud_of("p"), read_on=date(2026, 11, 1)
    )
    path = account_quotas.store_limits(
        [status("A", 16, None), status("C", 0, 0)], cloud=cloud_of("p"), read_on=date(2026, 11, 2)
    )
    assert path == own_home / "account_quotas.csv"
    assert [(row.quota, row.limit, row.used, row.read_on.day) for row in account_quotas.read(path)] == [
        ("A", 16.0, None, 2),
        ("C", 0.0, 0.0, 2),
    ]


def test_a_limit_counts_what_a_node_takes_of_it() -> None:
    held = KnownQuota(
        provider=Provider("gcp"),
        project="",
        region="us-central1",
        quota="PREEMPTIBLE_NVIDIA_A100_GPUS",
        limit=16.0,
        used=20.0,
        read_on=date(2026, 11, 1),
    )
    (limit,) = limits([held], load_rules())
    offers = load().offers(
        provider=Provider("gcp"), accelerators=("A100-40",), zones=("us-central1-a", "europe-west4-a")
    )
    units = {(offer.region, offer.market, limit.units(offer)) for offer in offers if offer.accelerator_count == 8}
    assert ("us-central1", Market.SPOT, 8.0) in units
    assert ("us-central1", Market.ON_DEMAND, 0.0) in units
    assert all(taken == 0.0 for region, _, taken in units if region != "us-central1")
    assert limit.remaining == 0.0


def test_a_limit_of_some_machine_types_counts_no_others() -> None:
    held = KnownQuota(
        provider=Provider("gcp"),
        project="",
        region="asia-southeast1",
        quota="GPUS_PER_GPU_FAMILY:NVIDIA_H100_MEGA",
        limit=0.0,
        used=None,
        read_on=date(2026, 11, 1),
    )
    (limit,) = limits([held], load_rules())
    offers = load().offers(provider=Provider("gcp"), accelerators=("H100-80",), zones=("asia-southeast1-b",))
    taken = {offer.instance_type for offer in offers if limit.units(offer)}
    assert taken == {"a3-megagpu-8g"}
    assert {offer.instance_type for offer in offers} > taken


def test_plans_of_a_project_see_its_limits_alone(own_home: Path) -> None:
    name = "NVIDIA_A100_GPUS"
    account_quotas.store_limits([status(name, 8, 0)], cloud=cloud_of("mine"), read_on=date(2026, 11, 1))
    account_quotas.store_limits([status(name, 4, 0)], cloud=Cloud(), read_on=date(2026, 11, 1))
    catalog = load()
    assert [limit.limit for limit in catalog.quotas(cloud_of("mine"))] == [8.0]
    assert [limit.limit for limit in catalog.quotas(Cloud())] == [4.0]
    assert catalog.quotas(cloud_of("other")) == ()


def test_a_pricing_folder_brings_its_own_limits(own_home: Path, tmp_path: Path) -> None:
    account_quotas.store_limits([status("NVIDIA_A100_GPUS", 8, 0)], cloud=Cloud(), read_on=date(2026, 11, 1))
    assert load(pricing=tmp_path).quotas(Cloud()) == ()
    row = "aws,,us-east-1,L-417A185B,96,,2026-11-01\n"
    (tmp_path / "account_quotas.csv").write_text(HEADER + row, encoding="utf-8")
    (limit,) = load(pricing=tmp_path).quotas(Cloud())
    assert (limit.provider, limit.limit, limit.counts) == (Provider("aws"), 96.0, Counted.VCPUS)


@pytest.mark.parametrize(
    ("quota", "hint"),
    [
        ("PREEMPTIBLE_NVIDIA_A100_GPUSS", "did you mean 'PREEMPTIBLE_NVIDIA_A100_GPUS'?"),
        ("?", "one of "),
    ],
)
def test_a_misspelt_quota_is_an_error_because_it_would_limit_nothing(quota: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "account_quotas.csv").write_text(HEADER + f"gcp,,us-central1,{quota},8,0,2026-11-01\n")
    with pytest.raises(DataError, match="is no quota of gcp for accelerators, so it limits nothing") as failure:
        load(pricing=tmp_path)
    assert hint in str(failure.value)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("gcp,,us-central1,NVIDIA_A100_GPUS,-1,,2026-11-01", "limit '-1'"),
        ("gcp,,us-central1,NVIDIA_A100_GPUS,many,,2026-11-01", "many"),
        ("gcp,,us-central1,NVIDIA_A100_GPUS,8,,yesterday", "yesterday"),
    ],
)
def test_a_damaged_file_is_named_with_the_way_out(own_home: Path, row: str, told: str) -> None:
    own_home.mkdir(parents=True, exist_ok=True)
    (own_home / "account_quotas.csv").write_text(HEADER + row + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 2.*delete .*account_quotas\.csv to plan without") as failure:
        load()
    assert told in str(failure.value)


def test_the_command_keeps_what_it_read_and_forgets_it_again(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = google_world()
    world.region_quotas["us-central1"] = [{"metric": "NVIDIA_A100_GPUS", "limit": 16.0, "usage": 4.0}]
    with FakeGoogle(world) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        read = CliRunner().invoke(quota, ["--provider", "gcp", "--region", "us-central1"])
    assert read.exit_code == 0, read.output
    assert "plans keep to these limits" in read.stderr
    (limit,) = load().quotas(Cloud())
    assert (limit.quota, limit.remaining) == ("NVIDIA_A100_GPUS", 12.0)
    assert CliRunner().invoke(quota, ["--forget"]).exit_code == 0
    assert load().quotas(Cloud()) == ()


def test_a_kept_quota_that_this_version_does_not_know_limits_nothing_and_stops_nothing(own_home: Path) -> None:
    own = account_quotas.own_file()
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(
        f"{HEADER}gcp,,us-central1,NVIDIA_H100_GPUS,8,0,2026-11-01\ngcp,,us-central1,NVIDIA_A100_GPUS,8,0,2026-11-01\n"
    )
    kept = account_quotas.known(account_quotas.read(own), load_rules())
    assert [row.quota for row in kept] == ["NVIDIA_A100_GPUS"]
    load()
