"""Refreshed prices survive everything that can happen while they are written."""

import builtins
import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sailor_cloud.catalog import load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.files.offer_file import read_offers, write_offers
from sailor_cloud.catalog.providers.fetched import Shape, make_offer
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider
from sailor_cloud.model.regions import Zone

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.+ ,\"'é", min_size=1, max_size=12).filter(str.strip)
DAYS = st.dates(date(2020, 1, 1), date(2030, 1, 1))
ZONE = Zone(provider=Provider("gcp"), region="us-central1", name="us-central1-a")
FIRST = datetime(2026, 11, 20, tzinfo=UTC)
SECOND = datetime(2026, 11, 21, tzinfo=UTC)


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    shape = Shape(
        instance_type=draw(NAMES),
        accelerator=draw(NAMES),
        accelerator_count=draw(st.integers(1, 16)),
        vcpus=draw(st.integers(1, 300)),
        memory_gib=draw(st.floats(0.5, 5000)),
    )
    zone = Zone(provider=Provider("aws"), region=draw(NAMES), name=draw(NAMES))
    price = draw(st.floats(1e-6, 1e4))
    return make_offer(zone, shape, draw(st.sampled_from(Market)), price, as_of=draw(DAYS), source=draw(NAMES))


def offer(usd_per_hour: float) -> Offer:
    shape = Shape(instance_type="a2-highgpu-1g", accelerator="A100-40", accelerator_count=1, vcpus=12, memory_gib=85.0)
    return make_offer(ZONE, shape, Market.ON_DEMAND, usd_per_hour, as_of=SECOND.date(), source="test")


@given(rows=st.lists(offers(), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
def test_offers_round_trip_through_their_file(rows: list[Offer], tmp_path: Path) -> None:
    path = tmp_path / "offers.csv"
    write_offers(path, rows)
    assert list(read_offers(path)) == rows


def test_a_snapshot_reads_back_and_stands_over_the_shipped_prices() -> None:
    written = snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)
    assert snapshot.latest() == written
    assert load().offer(offer(3.5).id).usd_per_hour == 3.5


def test_the_newest_snapshot_counts() -> None:
    snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)
    snapshot.write([offer(3.9)], [], [ZONE], taken_at=SECOND)
    assert load().offer(offer(3.5).id).usd_per_hour == 3.9
    assert len(snapshot.folders()) == 2


def test_withdrawn_offers_are_not_offered() -> None:
    name = "gcp/us-central1-a/a2-highgpu-2g/2xA100-40/spot"
    assert load().offer(name)
    snapshot.write([offer(3.5)], [name], load()._zones.values(), taken_at=FIRST)
    with pytest.raises(DataError, match="no offer"):
        load().offer(name)


def test_a_named_pricing_folder_leaves_refreshed_prices_out(tmp_path: Path) -> None:
    snapshot.write([offer(3.5)], [], load()._zones.values(), taken_at=FIRST)
    mine = tmp_path / "mine" / "offers"
    mine.mkdir(parents=True)
    write_offers(mine / "gcp.csv", [offer(1.25)])
    assert [o.usd_per_hour for o in load(pricing=tmp_path / "mine").offers()] == [1.25]


class CrashError(Exception):
    """Stands for the process dying: nothing in the product handles it."""


@given(fatal_step=st.integers(0, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=41)
def test_a_refresh_that_dies_at_any_step_leaves_the_old_snapshot(
    fatal_step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAILOR_CLOUD_HOME", str(tmp_path_factory.mktemp("home")))
        old = snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)
        steps = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps > fatal_step:
                    raise CrashError
                return call(*args, **kwargs)

            return run

        patch.setattr(os, "fsync", counted(os.fsync))
        patch.setattr(os, "open", counted(os.open))
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(Path, "open", counted(Path.open))
        patch.setattr(Path, "mkdir", counted(Path.mkdir))
        # What a killed process can't do either.
        patch.setattr(snapshot.shutil, "rmtree", lambda *args, **kwargs: None)
        died = False
        try:
            snapshot.write([offer(4.0)], [], [ZONE], taken_at=SECOND)
        except CrashError:
            died = True
        patch.undo()
        patch.setenv("SAILOR_CLOUD_HOME", str(old.folder.parent.parent))
        found = snapshot.latest()
        assert found is not None
        visible = found.offers[0].usd_per_hour
        assert visible in (3.5, 4.0)
        if not died:
            assert visible == 4.0
        if visible == 3.5:
            assert found == old
        snapshot.write([offer(4.5)], [], [ZONE], taken_at=SECOND.replace(day=22))
        latest = snapshot.latest()
        assert latest is not None
        assert latest.offers[0].usd_per_hour == 4.5
        assert not list(old.folder.parent.glob(".unfinished-*"))


@given(cut=st.integers(0, 500))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_disk_that_fills_up_at_any_byte_leaves_the_old_snapshot(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAILOR_CLOUD_HOME", str(tmp_path_factory.mktemp("home")))
        old = snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)
        needed = sum(path.stat().st_size for path in old.folder.rglob("*") if path.is_file())
        left = cut
        real_open = Path.open

        def small_disk(self: Path, *args: Any, **kwargs: Any) -> Any:
            file = real_open(self, *args, **kwargs)
            write = file.write

            def write_some(text: str) -> int:
                nonlocal left
                left -= len(text)
                if left < 0:
                    write(text[: len(text) + left])
                    raise OSError(28, "No space left on device")
                return int(write(text))

            return _Disk(file, write_some)

        patch.setattr(Path, "open", small_disk)
        failed = False
        try:
            snapshot.write([offer(4.0)], [], [ZONE], taken_at=SECOND)
        except DataError:
            failed = True
        patch.setattr(Path, "open", real_open)
        found = snapshot.latest()
        assert found is not None
        assert found.offers[0].usd_per_hour == (3.5 if failed else 4.0)
        assert failed == (cut < needed)
        if failed:
            assert found == old
            assert not list(old.folder.parent.glob(".unfinished-*"))


class _Disk:
    def __init__(self, file: Any, write: Callable[[str], int]) -> None:
        self._file = file
        self.write = write

    def __enter__(self) -> "_Disk":
        return self

    def __exit__(self, *args: object) -> None:
        self._file.close()

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return int(self._file.fileno())


@pytest.mark.parametrize("content", ["", "{", '{"withdrawn": 3}', "[]"])
def test_a_damaged_snapshot_is_named_with_the_way_out(content: str) -> None:
    written = snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)
    (written.folder / "refresh.json").write_text(content)
    with pytest.raises(DataError, match=r"price snapshot .* is damaged .*delete that folder"):
        load()


def test_a_home_that_can_not_be_written_is_reported(own_home: Path) -> None:
    own_home.write_text("a file where the folder should be")
    with pytest.raises(RequestError, match=r"the folder of runs can't be used: .*Not a directory"):
        snapshot.write([offer(3.5)], [], [ZONE], taken_at=FIRST)


def test_snapshots_hold_plain_files_that_name_their_offers() -> None:
    written = snapshot.write([offer(3.5)], ["x"], [ZONE], taken_at=FIRST)
    assert json.loads((written.folder / "refresh.json").read_text()) == {"withdrawn": ["x"]}
    assert offer(3.5).confidence is Confidence.HIGH
    with builtins.open(written.folder / "offers" / "gcp.csv") as file:
        assert len(file.readlines()) == 2


def test_a_second_refresh_waits_for_the_first() -> None:
    order: list[str] = []
    entered = threading.Event()

    def second() -> None:
        entered.set()
        with snapshot.exclusive():
            order.append("second")

    with snapshot.exclusive():
        thread = threading.Thread(target=second)
        thread.start()
        assert entered.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
