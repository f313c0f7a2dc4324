"""This user's refreshed prices: one folder per refresh, which appears completely or not at all.

A snapshot holds every offer refreshed so far with its date, so a refresh of one region keeps the others.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.files.offer_file import read_offers, write_offers
from sailor_cloud.durable import written
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.regions import Zone

_STAMP = "%Y-%m-%dT%H-%M-%S.%fZ"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A successful refresh. `withdrawn` are ids of offers that their zone no longer lists."""

    folder: Path
    taken_at: datetime
    offers: tuple[Offer, ...]
    withdrawn: frozenset[str]


def snapshots_root() -> Path:
    return resources.home() / "pricing"


def folders() -> tuple[Path, ...]:
    """Return the folders of all complete snapshots, oldest first."""
    place = snapshots_root()
    if not place.is_dir():
        return ()
    return tuple(sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")))


def latest() -> Snapshot | None:
    """Return the newest snapshot, None before the first. Raises DataError if it can't be read."""
    folder = resources.refreshed_prices()
    return None if folder is None else read(folder)


def read(folder: Path) -> Snapshot:
    """Return one snapshot. Raises DataError that says how to do without it."""
    try:
        raw = json.loads((folder / "refresh.json").read_text(encoding="utf-8"))
        taken_at = datetime.strptime(folder.name, _STAMP).replace(tzinfo=UTC)
        withdrawn = frozenset(str(offer_id) for offer_id in raw["withdrawn"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"price snapshot {folder} is damaged ({error}); delete that folder to do without it") from error
    offers = tuple(offer for path in sorted((folder / "offers").glob("*.csv")) for offer in read_offers(path))
    return Snapshot(folder=folder, taken_at=taken_at, offers=offers, withdrawn=withdrawn)


def write(offers: Iterable[Offer], withdrawn: Iterable[str], zones: Iterable[Zone], *, taken_at: datetime) -> Snapshot:
    """Write and return a new snapshot; readers see it only when it is complete.

    `zones` are all that are known now. Raises DataError if writing fails; older snapshots stay unchanged.
    """
    place = snapshots_root()
    target = place / taken_at.astimezone(UTC).strftime(_STAMP)
    rows = tuple(sorted(offers, key=lambda offer: offer.id))
    gone = frozenset(withdrawn)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _unfinished_folder(place) as folder:
            (folder / "offers").mkdir()
            for provider in sorted({offer.provider for offer in rows}):
                write_offers(folder / "offers" / f"{provider}.csv", (o for o in rows if o.provider is provider))
            _write_zones(folder / "zones.csv", zones)
            _write_json(folder / "refresh.json", {"withdrawn": sorted(gone)})
            _sync_folder(folder / "offers")
            _sync_folder(folder)
            folder.rename(target)
        _sync_folder(place)
    except OSError as error:
        raise DataError(f"can't write the refreshed prices to {place}: {error}; older prices stay in use") from error
    return Snapshot(folder=target, taken_at=taken_at, offers=rows, withdrawn=gone)


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold this user's snapshots exclusively: wait until no other process reads and rewrites them. Raises DataError."""
    place = snapshots_root()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (place / ".lock").open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"can't write the refreshed prices to {place}: {error}; older prices stay in use") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _unfinished_folder(place: Path) -> Iterator[Path]:
    for leftover in place.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_zones(path: Path, zones: Iterable[Zone]) -> None:
    with written(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("provider", "region", "zone"))
        writer.writerows(sorted((zone.provider, zone.region, zone.name) for zone in zones))


def _write_json(path: Path, content: dict[str, list[str]]) -> None:
    with written(path) as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
