"""Reads public prices: SkyPilot's and gpuhunt's catalogs, and the AWS price list.

A catalog's date is its own, else that of its commit. Without either, its age is unknown and all of its prices count as
stale. The tests use recorded files, since the addresses were not reachable there.
"""

from __future__ import annotations

import csv
import io
import json
import re
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from http.client import HTTPException, HTTPResponse
from itertools import islice

from sailor_cloud.catalog.prices.doubts import UNKNOWN_DAY, is_stale
from sailor_cloud.catalog.providers import of
from sailor_cloud.catalog.providers.fetched import Fetched, Progress, Refusal
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider

GITHUB = "https://api.github.com/repos/skypilot-org/skypilot-catalog/commits?per_page=1&path="
SKYPILOT = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/"
GPUHUNT = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3/"
PRICE_LIST = "https://pricing.us-east-1.amazonaws.com/offers/v1.0/aws/AmazonEC2/current/"
TIMEOUT_S = 30.0
MOST_BYTES = 256 * 2**20
# SkyPilot's names of accelerators on Google Cloud, which it prices separately from machines.
_SKYPILOT_GPUS = {
    "A100-40": ("A100",),
    "A100-80": ("A100-80GB",),
    "B200-180": ("B200",),
    "H100-80": ("H100", "H100-MEGA"),
    "H200-141": ("H200",),
    "K80-12": ("K80",),
    "L4-24": ("L4",),
    "P100-16": ("P100",),
    "P4-8": ("P4",),
    "RTXPRO6000-96": ("RTXPRO6000",),
    "T4-16": ("T4",),
    "V100-16": ("V100",),
}
_UNREADABLE = (OSError, HTTPException, EOFError, zipfile.BadZipFile, zlib.error, csv.Error)
# RuntimeError: an encrypted archive, or JSON that is nested too deep.
_FAULTS = (*_UNREADABLE, ValueError, KeyError, TypeError, IndexError, RuntimeError, ArithmeticError)
_REVISION = re.compile(r"[0-9a-f]{8,64}")
_VERSION = re.compile(r"[0-9]{8}[0-9A-Za-z-]*")
# An on-demand price below this share of the known one is doubted until the provider confirms it, since budgets depend
# on it. The deepest recent cut was to 0.56 (AWS, P5 instances, June 2025).
_DEEPEST_CUT = 0.5

# By zone or region, instance type, accelerator (if a machine may carry several) and market: USD per hour.
_Prices = dict[tuple[str, str, str, Market], float]


class _UnreachableError(OSError):
    """A host did not answer."""

    def __init__(self, address: str, reason: str | BaseException) -> None:
        self.host = urllib.parse.urlsplit(address).netloc
        # The number of the system's error says nothing to people.
        self.reason = str(getattr(reason, "strerror", None) or reason)
        super().__init__(f"{address.split('?')[0]}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Catalog:
    """The prices of one catalog and their day; `of_provider`: the provider itself publishes it."""

    source: str
    day: date
    prices: Mapping[tuple[str, str, str, Market], float]
    of_provider: bool = False


def fetch(
    provider: Provider, known: Iterable[Offer], regions: frozenset[str], today: date, progress: Progress
) -> Fetched:
    """Return public prices of the nodes in `known` offers; of several, the youngest.

    A price without a date replaces only a stale one. `missing` names what can't be read. An AWS price list has several
    hundred MB per region, so it is read only for named `regions`.
    """
    readers: list[tuple[str, Callable[[], _Catalog]]] = [
        ("SkyPilot's catalog", lambda: _skypilot(provider)),
        ("gpuhunt's catalog", lambda: _gpuhunt(provider)),
    ]
    if of(provider).price_lists:
        readers += [(f"AWS price list of {name}", lambda name=name: _price_list(name)) for name in sorted(regions)]  # type: ignore[misc]
    found, catalogs = Fetched(), []
    for done, (what, read) in enumerate(readers):
        progress(f"{provider}: public catalogs", done, len(readers))
        try:
            catalog = read()
            if catalog.day > today + timedelta(days=1):
                # Such a price would never become stale.
                raise ValueError(f"it is dated {catalog.day}, which is in the future")
            catalogs.append(catalog)
        except _FAULTS as error:
            found.missing.append(f"{what}, {provider}: {str(error) or type(error).__name__}")
            if isinstance(error, _UnreachableError):
                found.unreachable[found.missing[-1]] = (error.host, error.reason)
    progress(f"{provider}: public catalogs", len(readers), len(readers))
    # Of equally young catalogs the last one counts, which is closest to the provider.
    catalogs.sort(key=lambda catalog: catalog.day)
    for offer in known:
        if regions and offer.region not in regions:
            continue
        priced = [(catalog, price) for catalog in catalogs if (price := _price(offer, catalog)) is not None]
        if not priced:
            found.refused[Refusal.NO_PRICE] += 1
        elif _is_older(priced[-1][0], offer, today):
            found.refused[Refusal.OLDER_THAN_KNOWN] += 1
        else:
            found.offers.append(_repriced(offer, *priced[-1]))
    return found


def _is_older(catalog: _Catalog, offer: Offer, today: date) -> bool:
    if catalog.day == UNKNOWN_DAY:
        return not is_stale(offer, today)
    return catalog.day < offer.as_of_from


def _repriced(offer: Offer, catalog: _Catalog, price: float) -> Offer:
    return replace(
        offer,
        usd_per_hour=round(price, 9),
        as_of_from=catalog.day,
        as_of_to=catalog.day,
        source=catalog.source,
        confidence=Confidence.MEDIUM,
        outlier=offer.market is Market.ON_DEMAND
        and not catalog.of_provider
        and price < _DEEPEST_CUT * offer.usd_per_hour,
        listed=None,
    )


def _price(offer: Offer, catalog: _Catalog) -> float | None:
    def find(place: str, what: str, gpu: str) -> float | None:
        return catalog.prices.get((place, what, gpu, offer.market))

    for place in (offer.zone, offer.region):
        own = f"{offer.accelerator_count}x{offer.accelerator}"
        whole = find(place, offer.instance_type, own)
        apart = of(offer.provider).accelerators_apart
        if whole is None and not apart:
            whole = find(place, offer.instance_type, "")
        if whole is not None:
            return whole
        if apart and (machine := find(place, offer.instance_type, "")) is not None:
            mega = "megagpu" in offer.instance_type and offer.accelerator == "H100-80"
            name = _SKYPILOT_GPUS.get(offer.accelerator, ("",))[-1 if mega else 0]
            gpus = find(place, "", f"{offer.accelerator_count}x{name}")
            if gpus is not None:
                return machine + gpus
    return None


def _skypilot(provider: Provider) -> _Catalog:
    path = f"catalogs/v8/{provider}/vms.csv"
    revision, day = "master", UNKNOWN_DAY
    try:
        commit = json.loads(_get(GITHUB + path))[0]
        committed = datetime.fromisoformat(commit["commit"]["committer"]["date"]).date()
        if _REVISION.fullmatch(str(commit["sha"])):
            revision, day = commit["sha"], committed
    except _FAULTS:
        # Prices without a date are better than none, and count as stale.
        pass
    prices: _Prices = {}
    apart = of(provider).accelerators_apart
    for row in _rows(_get(f"{SKYPILOT}{revision}/{path}").decode()):
        count = float(row["AcceleratorCount"] or 0)
        gpu = f"{count:.0f}x{row['AcceleratorName']}" if apart and row["AcceleratorName"] else ""
        for market, column in ((Market.ON_DEMAND, "Price"), (Market.SPOT, "SpotPrice")):
            if row[column]:
                prices[row["AvailabilityZone"] or row["Region"], row["InstanceType"], gpu, market] = float(row[column])
    return _Catalog(source=f"skypilot-catalog@{revision[:8]}", day=day, prices=prices)


def _gpuhunt(provider: Provider) -> _Catalog:
    version = _get(f"{GPUHUNT}{provider}/version").decode().strip()
    if not _VERSION.fullmatch(version):
        raise ValueError(f"its version reads {version[:20]!r}")
    day = datetime.strptime(version[:8], "%Y%m%d").date()
    prices: _Prices = {}
    with zipfile.ZipFile(io.BytesIO(_get(f"{GPUHUNT}{provider}/{version}/catalog.zip"))) as archive:
        (name,) = (entry for entry in archive.infolist() if entry.filename.endswith(".csv"))
        if name.file_size > MOST_BYTES:
            raise ValueError(f"holds {name.file_size} bytes")
        text = archive.read(name).decode()
    for row in _rows(text):
        # Prices of reservations in Google's calendar mode are not on-demand prices.
        if row["gpu_name"] and "dws" not in (row.get("flags") or ""):
            gpu = f"{row['gpu_count']}x{row['gpu_name']}-{float(row['gpu_memory']):.0f}"
            market = Market.SPOT if row["spot"] == "True" else Market.ON_DEMAND
            prices[row["location"], row["instance_name"], gpu, market] = float(row["price"])
    return _Catalog(source=f"gpuhunt@{version}", day=day, prices=prices)


def _price_list(region: str) -> _Catalog:
    """Read one region's list row by row, since it is too large for memory."""
    prices: _Prices = {}
    address = f"{PRICE_LIST}{region}/index.csv"
    with _open(address) as response:
        lines = io.TextIOWrapper(response, encoding="utf-8")
        about = dict(row[:2] for row in csv.reader(islice(lines, 5)))
        if "Publication Date" not in about:
            raise ValueError("it has no publication date")
        day = datetime.fromisoformat(about["Publication Date"]).date()
        for row in csv.DictReader(lines):
            shared = (row["Operating System"], row["Tenancy"], row["Pre Installed S/W"]) == ("Linux", "Shared", "NA")
            if shared and (row["TermType"], row["CapacityStatus"], row["Unit"]) == ("OnDemand", "Used", "Hrs"):
                prices[region, row["Instance Type"], "", Market.ON_DEMAND] = float(row["PricePerUnit"])
        _check_whole(address, response)
    return _Catalog(source="aws-price-list", day=day, prices=prices, of_provider=True)


def _rows(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(text))


def _open(address: str) -> HTTPResponse:
    request = urllib.request.Request(address, headers={"User-Agent": "sailor-cloud"})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise OSError(f"{address.split('?')[0]}: {error.reason}") from error
    except urllib.error.URLError as error:
        raise _UnreachableError(address, error.reason) from error
    return response


def _get(address: str) -> bytes:
    with _open(address) as response:
        content = response.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{address} holds more than {MOST_BYTES // 2**20} MiB")
    _check_whole(address, response)
    return content


def _check_whole(address: str, response: HTTPResponse) -> None:
    """Raise OSError if less arrived than was announced: the last row may end within a price."""
    if response.length:
        raise OSError(f"{address.split('?')[0]}: the download ended {response.length} bytes early")
