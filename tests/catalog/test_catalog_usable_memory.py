"""Tests for the memory that devices really have."""

import csv
import dataclasses
from pathlib import Path

import pytest

from sailor_cloud import catalog, resources
from sailor_cloud.units import GIB

PRICING = resources.data_root() / "pricing"
CATALOG = catalog.load()


def rows() -> list[dict[str, str]]:
    with (PRICING / "accelerators.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("accelerator", "reported_gib"),
    [
        # What torch reports in public logs, by driver.
        ("A100-40", (39.38, 39.56)),
        ("V100-16", (15.77, 15.78)),
        ("H100-80", (79.09, 79.19)),
        ("T4-16", (14.56, 14.74)),
        ("L4-24", (21.95, 22.17)),
        ("A10G-24", (21.95, 22.17)),
        ("L40S-48", (44.34, 44.42)),
    ],
)
def test_a_device_has_no_more_memory_than_any_driver_reports(
    accelerator: str, reported_gib: tuple[float, float]
) -> None:
    lowest, highest = (figure * GIB for figure in reported_gib)
    assert CATALOG.accelerator(accelerator).usable_bytes == pytest.approx(lowest, rel=0.002)
    assert CATALOG.accelerator(accelerator).usable_bytes < highest


def test_every_figure_of_usable_memory_has_a_source_and_a_date() -> None:
    with (PRICING / "sources.csv").open(encoding="utf-8", newline="") as file:
        known = {row["id"] for row in csv.DictReader(file)}
    for row in rows():
        if row["usable_memory_gib"]:
            assert row["usable_source"] in known, row["name"]
            assert row["usable_as_of"], row["name"]
            assert 0.9 * float(row["memory_gib"]) < float(row["usable_memory_gib"]) <= float(row["memory_gib"])
        else:
            assert (row["usable_source"], row["usable_as_of"]) == ("", "")


def test_a_card_without_a_figure_has_the_least_known_share() -> None:
    shares = {
        part.name: part.usable_memory_gib / part.memory_gib
        for part in map(CATALOG.accelerator, (row["name"] for row in rows()))
        if part.usable_memory_gib is not None
    }
    unknown = dataclasses.replace(CATALOG.accelerator("H100-80"), usable_memory_gib=None)
    assert unknown.usable_bytes == pytest.approx(80 * GIB * min(shares.values()))


def test_a_table_without_the_column_is_read(tmp_path: Path) -> None:
    columns = [name for name in rows()[0] if not name.startswith("usable_")]
    with (tmp_path / "accelerators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows())
    assert catalog.load(pricing=tmp_path).accelerator("A100-40").usable_bytes == int(40 * 0.91 * GIB)
