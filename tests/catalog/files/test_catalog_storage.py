"""Data folders that a user names, and files that are broken."""

import shutil
from pathlib import Path

import pytest

from sailor_cloud import catalog, network, resources
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import ZoneConfidence
from sailor_cloud.network import Place

HEADER = (
    "provider,region,zone,instance_type,accelerator,accelerator_count,vcpus,memory_gib,market,usd_per_hour,"
    "as_of_from,as_of_to,source,confidence\n"
)
ROW = "gcp,us-central1,us-central1-a,a2-highgpu-1g,A100-40,1,12,85,spot,1.5,2026-11-20,2026-11-20,mine,high\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "offers").mkdir(parents=True)
    (folder / "offers" / "gcp.csv").write_text(HEADER + ROW)
    return folder


def test_a_named_folder_may_hold_only_offers(mine: Path) -> None:
    (offer,) = catalog.load(pricing=mine).offers()
    assert (offer.usd_per_hour, offer.source) == (1.5, "mine")
    assert "V100-16" in catalog.load(pricing=mine).accelerator_names()


def test_offers_without_the_newer_columns_are_unchecked_and_no_outliers(mine: Path) -> None:
    path = mine / "offers" / "gcp.csv"
    (old,) = catalog.load(pricing=mine).offers()
    assert (old.zone_confidence, old.outlier) == (ZoneConfidence.UNCHECKED, False)
    path.write_text(HEADER.replace("confidence", "confidence,zone_confidence,outlier") + ROW.strip() + ",seen,yes\n")
    (new,) = catalog.load(pricing=mine).offers()
    assert (new.zone_confidence, new.outlier) == (ZoneConfidence.SEEN, True)
    path.write_text(path.read_text().replace(",yes\n", ",maybe\n"))
    with pytest.raises(DataError, match="line 2: 'maybe' is neither yes nor no"):
        catalog.load(pricing=mine)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere is not a folder; --pricing wants one"):
        catalog.load(pricing=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",1.5,", ",0,", r"gcp.csv line 2: '0' is not a positive price"),
        (",1.5,", ",-1,", r"line 2: '-1' is not a positive price"),
        (",1.5,", ",nan,", r"line 2: 'nan' is not a positive price"),
        (",1.5,", ",cheap,", r"line 2: could not convert string to float: 'cheap'"),
        ("2026-11-20,mine", "yesterday,mine", r"line 2: Invalid isoformat string: 'yesterday'"),
        (",spot,", ",flea,", r"line 2: 'flea' is not a valid Market"),
        ("gcp,", "azure,", r"line 2: 'azure' is not a valid Provider"),
        ("usd_per_hour", "price", r"gcp.csv lacks the columns usd_per_hour"),
    ],
)
def test_a_faulty_file_is_reported_with_its_line(mine: Path, old: str, new: str, message: str) -> None:
    path = mine / "offers" / "gcp.csv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        catalog.load(pricing=mine)


def test_two_prices_for_one_offer_are_refused(mine: Path) -> None:
    path = mine / "offers" / "gcp.csv"
    path.write_text(HEADER + ROW + ROW.replace(",1.5,", ",1.6,"))
    with pytest.raises(DataError, match=r"two prices for gcp/us-central1-a/a2-highgpu-1g/1xA100-40/spot: 1.5 and 1.6"):
        catalog.load(pricing=mine)


def test_text_that_is_no_csv_is_refused(mine: Path) -> None:
    (mine / "offers" / "gcp.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="can't be read as CSV"):
        catalog.load(pricing=mine)


def test_a_data_folder_without_its_files_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no offers in|zones.csv is missing"):
        catalog.load(tmp_path)
    with pytest.raises(DataError, match=r"regions.csv is missing"):
        network.load(tmp_path)


def test_a_named_network_folder_stands_before_the_shipped_files(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    shipped = resources.data_root() / "bandwidth_profiles" / "instances.csv"
    shutil.copy(shipped, folder / "instances.csv")
    path = folder / "instances.csv"
    path.write_text(path.read_text().replace("gcp,a2-highgpu-4g,A100-40,4,50,50", "gcp,a2-highgpu-4g,A100-40,4,1,1"))
    place = Place(zone="us-central1-a", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
    assert network.load(profiles=folder).link(place, place, pairs=4).max_bytes_per_s == 0.125e9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("provider,instance_type\naws,p3\n", r"instances.csv line 2: no column or no such name"),
        (
            "provider,instance_type,accelerator,accelerator_count,baseline_gbit_per_s,max_gbit_per_s,device_link,"
            "device_link_gb_per_s,source\naws,p3,V100-16,one,1,1,,,x\n",
            r"instances.csv line 2: invalid literal for int",
        ),
    ],
)
def test_a_faulty_network_file_is_reported_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "instances.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        network.load(profiles=tmp_path)
