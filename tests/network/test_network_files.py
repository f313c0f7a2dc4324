"""Data files of the network: every shipped row parses, and damaged ones are told with file and line."""

from __future__ import annotations

import shutil

import pytest

from sailor_cloud import network, resources
from sailor_cloud.errors import DataError
from sailor_cloud.network import storage

DATA = resources.data_root()


def test_every_shipped_region_pair_and_price_of_egress_parses():
    pairs = storage._region_pairs([DATA / "bandwidth_profiles" / "region_pairs.csv"])
    prices = storage._egress_rows([DATA / "pricing" / "egress.csv"])
    assert all(pair.bytes_per_s > 0 for key in pairs for pair in pairs[key])
    assert all(row.usd_per_unit >= 0 for key in prices for row in prices[key])
    assert sum(len(pairs[key]) for key in pairs) > 5000
    assert sum(len(prices[key]) for key in prices) > 2000


@pytest.mark.parametrize(
    ("folder", "name", "column", "value"),
    [
        ("bandwidth_profiles", "region_pairs.csv", 4, "fast"),
        ("bandwidth_profiles", "region_pairs.csv", 6, "sideways"),
        ("pricing", "egress.csv", 5, "nobody"),
    ],
)
def test_a_damaged_row_of_a_users_folder_is_reported_with_its_line(tmp_path, folder, name, column, value):
    own = tmp_path / folder
    own.mkdir()
    shutil.copy(DATA / folder / name, own)
    lines = (own / name).read_text().splitlines()
    values = lines[3].split(",")
    values[column] = value
    (own / name).write_text("\n".join([*lines[:3], ",".join(values), *lines[4:]]) + "\n")
    with pytest.raises(DataError, match=rf"{name} line 4: .*{value}"):
        network.load(**{"profiles" if folder == "bandwidth_profiles" else "pricing": own})
