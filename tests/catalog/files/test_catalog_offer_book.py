"""Offers are made of their rows when somebody asks for them, and damaged rows are told then."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sailor_cloud import catalog, resources
from sailor_cloud.catalog.files.offer_file import OfferBook
from sailor_cloud.errors import DataError

SHIPPED = sorted((resources.data_root() / "pricing" / "offers").glob("*.csv"))


@pytest.fixture
def damaged(tmp_path):
    """A price file whose third line has no price."""
    path = tmp_path / "gcp.csv"
    lines = next(file for file in SHIPPED if file.name == "gcp.csv").read_text().splitlines()
    values = lines[2].split(",")
    values[9] = "cheap"
    path.write_text("\n".join([*lines[:2], ",".join(values), *lines[3:]]) + "\n")
    return path


def test_every_shipped_row_is_an_offer_under_its_own_id_and_zone():
    book = OfferBook.read(SHIPPED)
    every = book.offers_in()
    assert len(every) > 5000
    assert [offer.id for offer in every] == sorted(offer.id for offer in every)
    assert all(book.find(offer.id) is offer for offer in every)
    zone = every[0].zone
    assert book.offers_in([zone, zone]) == tuple(offer for offer in every if offer.zone == zone)


def test_a_damaged_row_is_reported_with_its_line_when_it_is_asked_for(damaged):
    book = OfferBook.read([damaged])
    fine = book.offers_in(["us-west4-b"])
    assert fine
    with pytest.raises(DataError, match=r"gcp\.csv line 3: .*cheap"):
        book.offers_in()


def test_a_damaged_row_of_a_users_folder_is_reported_immediately(damaged, tmp_path):
    (tmp_path / "own" / "offers").mkdir(parents=True)
    shutil.copy(damaged, tmp_path / "own" / "offers")
    with pytest.raises(DataError, match="line 3"):
        catalog.load(pricing=tmp_path / "own")


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("accelerator_count", "-8", "accelerator_count must be an integer from 1"),
        ("accelerator_count", "0", "accelerator_count must be an integer from 1"),
        ("vcpus", "-1", "vcpus must be an integer from 0"),
        ("memory_gib", "-680", "memory_gib must be a number from 0"),
        ("memory_gib", "nan", "memory_gib must be a number from 0"),
        ("usd_per_hour", "1e12", "more than 100,000, which no node costs"),
        ("as_of_to", "2020-01-01", "as_of_to 2020-01-01 is before as_of_from"),
    ],
)
def test_an_impossible_row_of_a_users_folder_is_refused(column: str, value: str, told: str, tmp_path: Path) -> None:
    shipped = next(file for file in SHIPPED if file.name == "gcp.csv")
    with shipped.open(newline="") as file:
        rows = csv.DictReader(file)
        row = {**next(rows), column: value}
    (tmp_path / "offers").mkdir()
    with (tmp_path / "offers" / "gcp.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    with pytest.raises(DataError, match=r"gcp\.csv line 2: ") as failure:
        catalog.load(pricing=tmp_path)
    assert told in str(failure.value)


def test_two_prices_of_one_offer_are_refused(tmp_path):
    twice = tmp_path / "local.csv"
    lines = next(file for file in SHIPPED if file.name == "local.csv").read_text().splitlines()
    twice.write_text("\n".join([*lines, lines[-1]]) + "\n")
    with pytest.raises(DataError, match="two prices for local/"):
        OfferBook.read([twice])


def test_newer_offers_take_the_place_of_older_ones_and_withdrawn_ones_go():
    book = OfferBook.read(SHIPPED)
    first, second, third = book.offers_in()[:3]
    dearer = replace(first, usd_per_hour=first.usd_per_hour * 2)
    elsewhere = replace(second, id="new", zone="a-new-zone")
    over = book.updated_with([dearer, elsewhere], withdrawn=[third.id])
    assert over.find(first.id) == dearer
    assert over.find(second.id) == second
    assert over.find(third.id) is None
    assert over.offers_in(["a-new-zone"]) == (elsewhere,)
    assert len(over.offers_in()) == len(book.offers_in())
