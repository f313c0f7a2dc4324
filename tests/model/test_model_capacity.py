"""Entries of a capacity file: what is wrong with them is said once, with the values."""

from __future__ import annotations

from pathlib import Path

import pytest

from factories.reserved import entry, gcp_entry
from sailor_cloud import catalog
from sailor_cloud.catalog.capacity import as_yaml, capacity_problems, read_capacity, with_capacity
from sailor_cloud.errors import RequestError
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import BLOCK_ENDS_EARLY_S, Market

START = entry().starts_at
TIMES = {"starts_at": "2026-12-01T11:30:00Z", "ends_at": "2026-12-02T11:30:00Z"}
NO_TIMES = {"starts_at": None, "ends_at": None}
QUICKSTART = Path(__file__).parents[2].joinpath("examples/quickstart.yaml").read_text()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"market": "spot"}, "must be reservation, capacity-block, flex-start"),
        ({"ends_at": "2026-12-01T11:00:00Z"}, "is not after starts_at"),
        ({"ends_at": None}, "a capacity block needs starts_at and ends_at"),
        ({"usd": None}, "needs usd, its whole price"),
        ({"as_of": None}, "a price needs as_of"),
        ({"market": "reservation", "starts_at": None, "ends_at": None}, "is paid for by the hour"),
        ({"starts_at": "2026-12-01T11:30:00"}, "timezone"),
        ({"market": "reservation", "usd": None, **NO_TIMES, "min_duration": "4h"}, "give no min_duration"),
    ],
)
def test_an_entry_that_can_not_be_is_refused_with_the_reason(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entry(**wrong)


def test_flex_start_ends_after_seven_days() -> None:
    assert gcp_entry("flex", "flex-start").terms.most_s == 7 * 86400.0
    with pytest.raises(ValueError, match=r"max_duration is 8 d; Compute Engine ends flex-start VMs after seven days"):
        gcp_entry("flex", "flex-start", max_duration="8d")
    with pytest.raises(ValueError, match="end by max_duration"):
        gcp_entry("flex", "flex-start", ends_at="2026-12-02T11:30:00Z")


def test_types_that_a_provider_lacks_or_does_not_sell_are_named() -> None:
    mine, block = gcp_entry("mine", "reservation"), gcp_entry("block", "capacity-block", usd=1.0, **TIMES)
    cloud = parse_job(QUICKSTART).cloud.model_copy(update={"capacity": (mine, block)})
    job = parse_job(QUICKSTART).model_copy(update={"cloud": cloud})
    told = [f"{problem.path} {problem.message}" for problem in capacity_problems(job, catalog.load())]
    assert told == [
        "cloud.capacity: mine.id a reservation of gcp is used, not bought",
        "cloud.capacity: block.market gcp has no capacity-block",
    ]


def test_a_block_costs_its_whole_price_and_ends_half_an_hour_early() -> None:
    block = entry(nodes=2, usd=48.0)
    assert START is not None
    assert block.own_usd_per_hour == 1.0
    assert block.terms.start_s(START) == 0.0
    assert block.terms.end_s(START, block.market) == 86400.0 - BLOCK_ENDS_EARLY_S
    assert block.terms.end_s(START, Market.RESERVATION) == 86400.0
    assert entry(id="cr-0123", usd=None).own_usd_per_hour == 0.0


def test_a_file_is_read_back_as_it_was_written_and_its_faults_have_places(tmp_path: Path) -> None:
    entries = (entry(), gcp_entry("flex", "flex-start", wait="2h"))
    file = tmp_path / "capacity.yaml"
    file.write_text(as_yaml(entries))
    assert read_capacity(file) == entries
    file.write_text(as_yaml(entries).replace("capacity-block", "block").replace("wait:", "waits:"))
    with pytest.raises(RequestError) as raised:
        read_capacity(file)
    assert "[0].market: is 'block'" in str(raised.value)
    assert "[1].waits: is not a field here (did you mean 'wait'?)" in str(raised.value)


def test_two_entries_never_share_a_name() -> None:
    job = parse_job(QUICKSTART)
    twice = job.model_copy(update={"cloud": job.cloud.model_copy(update={"capacity": (entry(), entry(nodes=1))})})
    with pytest.raises(RequestError, match="cb1: names two entries"):
        with_capacity(twice)


def test_markets_are_known_by_the_names_that_clouds_give_them() -> None:
    assert Market("capacity_block") is Market.CAPACITY_BLOCK
    assert Market("FLEX_START") is Market.FLEX_START
