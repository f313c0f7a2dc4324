"""Prices of public catalogs, read from a server on this machine that has rows in the form of the real ones."""

from __future__ import annotations

import io
import json
import shlex
import threading
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from factories.commands import ROOT
from sailor_cloud.catalog import load
from sailor_cloud.catalog.files import snapshot
from sailor_cloud.catalog.prices.doubts import UNKNOWN_DAY, age_text, is_stale
from sailor_cloud.catalog.providers import of
from sailor_cloud.catalog.providers.fetched import Fetched, Refusal
from sailor_cloud.catalog.refresh import Refreshed, public, refresh, write_known
from sailor_cloud.catalog.refresh.plausible import plausible_offers
from sailor_cloud.cli.inputs.prices import prices
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.offer import Market, Provider

NOW = datetime(2026, 11, 24, 6, tzinfo=UTC)
RECORDED = Path(__file__).parent / "public_catalogs"
COMMIT = json.dumps([{"sha": "00148f2af367", "commit": {"committer": {"date": "2026-11-23T05:00:00Z"}}}]).encode()
V100 = "aws/use1-az6/p3.2xlarge/1xV100-16"
A100 = "gcp/us-central1-a/a2-highgpu-8g/8xA100-40"
CUT = "the path whose body is cut"
AWS_LIST = "/list/us-east-1/index.csv"

Pages = dict[str, bytes]


def archive(name: str, compression: int = zipfile.ZIP_STORED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as file:
        file.writestr(name, (RECORDED / f"gpuhunt-{name}").read_bytes())
    return packed.getvalue()


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    """What the server has, by path; a path that it lacks is answered with 404. It announces twice what `CUT` has."""
    held: Pages = {AWS_LIST: (RECORDED / "aws-price-list.csv").read_bytes()}
    for provider in ("aws", "gcp"):
        path = f"catalogs/v8/{provider}/vms.csv"
        held[f"/commits?path={path}"] = COMMIT
        held[f"/raw/00148f2af367/{path}"] = (RECORDED / f"skypilot-{provider}.csv").read_bytes()
        held[f"/raw/master/{path}"] = held[f"/raw/00148f2af367/{path}"]
        held[f"/hunt/{provider}/version"] = b"20261122-9\n"
        held[f"/hunt/{provider}/20261122-9/catalog.zip"] = archive(f"{provider}.csv")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = held.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header(
                "Content-Length", str(len(body or b"") * (2 if held.get(CUT) == self.path.encode() else 1))
            )
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None: ...

    def no_credentials(request: object, progress: object) -> None:
        raise CredentialsError("no credentials")

    for provider in ("gcp", "aws"):
        monkeypatch.setattr(of(Provider(provider)), "prices", no_credentials, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(public, "GITHUB", f"{here}/commits?path=")
        monkeypatch.setattr(public, "SKYPILOT", f"{here}/raw/")
        monkeypatch.setattr(public, "GPUHUNT", f"{here}/hunt/")
        monkeypatch.setattr(public, "PRICE_LIST", f"{here}/list/")
        yield held
        server.shutdown()


def run(*providers: str, regions: tuple[str, ...] = ()) -> Refreshed:
    return refresh(
        providers=[Provider(name) for name in providers],
        regions=regions,
        clock=FixedClock(NOW),
        progress=lambda what, done, total: None,
    )


def test_without_credentials_prices_come_from_public_catalogs_dated_by_their_commit(pages: Pages) -> None:
    result = run()
    assert result.complete
    assert result.skipped["aws"] == "its own prices (no credentials); public catalogs were read instead"
    spot = load().offer(f"{V100}/spot")
    assert (spot.usd_per_hour, spot.as_of_from, spot.source) == (
        0.5141,
        date(2026, 11, 23),
        "skypilot-catalog@00148f2a",
    )


def test_a_machine_of_google_cloud_costs_its_host_and_its_accelerators(pages: Pages) -> None:
    run("gcp")
    assert load().offer(f"{A100}/spot").usd_per_hour == pytest.approx(2.958 + 10.0)
    assert load().offer(f"{A100}/on-demand").usd_per_hour == pytest.approx(5.91582 + 23.47064)


def test_the_youngest_catalog_counts(pages: Pages) -> None:
    pages["/hunt/aws/version"] = b"20261124-1"
    pages["/hunt/aws/20261124-1/catalog.zip"] = archive("aws.csv")
    run("aws")
    assert load().offer(f"{V100}/on-demand").source == "gpuhunt@20261124-1"
    assert load().offer(f"{V100}/spot").source == "gpuhunt@20261124-1"


def test_the_price_list_of_a_named_region_is_read_too(pages: Pages) -> None:
    run("aws", regions=("us-east-1",))
    offer = load().offer(f"{V100}/on-demand")
    assert (offer.usd_per_hour, offer.source, offer.as_of_from) == (3.06, "aws-price-list", date(2026, 11, 24))


def test_a_catalog_without_a_date_is_of_unknown_age_and_stale_and_replaces_stale_prices_only(pages: Pages) -> None:
    for provider in ("aws", "gcp"):
        del pages[f"/commits?path=catalogs/v8/{provider}/vms.csv"], pages[f"/hunt/{provider}/version"]
    result = run("aws")
    spot = load().offer(f"{V100}/spot")
    assert (spot.as_of_from, spot.source) == (UNKNOWN_DAY, "skypilot-catalog@master")
    assert is_stale(spot, NOW.date())
    assert age_text(spot.as_of_from, 20_000) == "unknown"
    assert ["gpuhunt" in fault for fault in result.missing] == [True]


def test_a_public_price_never_replaces_a_younger_one(pages: Pages) -> None:
    pages["/commits?path=catalogs/v8/aws/vms.csv"] = COMMIT.replace(b"2026-11-23", b"2020-01-01")
    pages["/hunt/aws/version"] = b"20200101-9"
    before = load().offer(f"{V100}/on-demand")
    with pytest.raises(CredentialsError, match=r"gave no newer prices \(gpuhunt's catalog, aws.*: no credentials"):
        run("aws")
    assert load().offer(f"{V100}/on-demand") == before
    assert snapshot.latest() is None


def test_where_nothing_answers_both_reasons_are_named(pages: Pages) -> None:
    pages.clear()
    told = r"gave no newer prices \(SkyPilot.* gcp: .*Not Found\), and gcp can't be asked: no credentials"
    with pytest.raises(CredentialsError, match=told):
        run("gcp")


def test_without_network_one_line_says_which_hosts_can_not_be_reached(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB", "SKYPILOT", "GPUHUNT", "PRICE_LIST"):
        monkeypatch.setattr(public, name, f"http://127.0.0.1:1/{name}")
    for regions in ((), ("us-east-1", "us-central1", "us-west-2")):
        with pytest.raises(CredentialsError) as caught:
            run(regions=regions)
        assert str(caught.value) == (
            "the public catalogs can't be reached (127.0.0.1:1: Connection refused), and gcp and aws can't be asked: "
            "'--provider gcp' says which credentials it needs"
        )


@pytest.mark.parametrize(
    ("catalog", "path"),
    [("SkyPilot's catalog", "/raw/00148f2af367/catalogs/v8/aws/vms.csv"), ("AWS price list of us-east-1", AWS_LIST)],
)
def test_a_truncated_catalog_is_not_used(pages: Pages, catalog: str, path: str) -> None:
    pages[CUT] = path.encode()
    (fault,) = run("aws", regions=("us-east-1",)).missing
    assert fault.startswith(catalog)
    assert fault.endswith(f"the download ended {len(pages[path])} bytes early")


def test_an_empty_price_list_and_a_broken_archive_are_named(pages: Pages) -> None:
    packed = bytearray(archive("aws.csv", zipfile.ZIP_DEFLATED))
    # The content begins after 30 bytes and the name.
    packed[37:41] = b"\xff" * 4
    pages["/hunt/aws/20261122-9/catalog.zip"], pages[AWS_LIST] = bytes(packed), b""
    with pytest.raises(zlib.error):
        zipfile.ZipFile(io.BytesIO(packed)).read("aws.csv")
    hunt, listed = run("aws", regions=("us-east-1",)).missing
    assert hunt.startswith("gpuhunt's catalog, aws: Error -3 while decompressing")
    assert listed == "AWS price list of us-east-1, aws: it has no publication date"


def test_a_connection_that_breaks_within_a_chunk_is_named(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(address: str) -> bytes:
        raise IncompleteRead(b"12345")

    monkeypatch.setattr(public, "_get", breaks)
    faults = run("aws", regions=("us-east-1",)).missing
    assert [fault.split(": ")[1] for fault in faults] == ["IncompleteRead(5 bytes read)"] * 2


def test_prices_that_can_not_be_right_are_refused(pages: Pages) -> None:
    path = "/raw/00148f2af367/catalogs/v8/aws/vms.csv"
    pages[path] = pages[path].replace(b"3.06,0.514100", b"3.06,0.000100")
    run("aws")
    assert load().offer(f"{V100}/spot").usd_per_hour != 0.0001
    assert [offer for offer in load().offers(markets=[Market.SPOT]) if offer.usd_per_hour < 0.001] == []


AWS_COMMITS, AWS_ROWS = "/commits?path=catalogs/v8/aws/vms.csv", "/raw/00148f2af367/catalogs/v8/aws/vms.csv"


def fetched(market: str) -> Fetched:
    """What public catalogs say of one offer, held against what is known of it."""
    known = [load().offer(f"{V100}/{market}")]
    return public.fetch(Provider("aws"), known, frozenset(), NOW.date(), lambda what, done, of: None)


def test_catalogs_that_lie_are_named_and_not_used(pages: Pages) -> None:
    honest = dict(pages)
    lies = [
        (AWS_COMMITS, COMMIT.replace(b"2026", b"2999"), "it is dated 2999-11-23, which is in the future"),
        ("/hunt/aws/version", b"29990101-1", "it is dated 2999-01-01, which is in the future"),
        ("/hunt/aws/version", "２０２６１１２２".encode(), "its version reads"),
        ("/hunt/aws/version", b"20261122/../x", "its version reads"),
        (AWS_ROWS, b"Price\x00,AcceleratorCount\n\x00", "SkyPilot's catalog"),
        (AWS_ROWS, b'"' + b"x" * 200_000, "field larger than field limit"),
        (AWS_ROWS, b"\xff\xfe", "codec can't decode"),
    ]
    for path, body, fault in lies:
        pages |= honest | {path: body, "/hunt/aws/29990101-1/catalog.zip": archive("aws.csv")}
        found = fetched("spot")
        assert fault in " ".join(found.missing), (path, found.missing)
        assert all(offer.as_of_from <= NOW.date() for offer in found.offers)


def test_a_commit_that_is_none_is_neither_asked_for_nor_shown(pages: Pages) -> None:
    del pages["/hunt/aws/version"]
    for told in (COMMIT.replace(b"00148f2af367", b"\\u001b[2J/../../x"), b"[" * 100_000):
        pages[AWS_COMMITS] = told
        (offer,) = fetched("spot").offers
        assert (offer.source, offer.as_of_from) == ("skypilot-catalog@master", UNKNOWN_DAY)


@pytest.mark.parametrize("price", [float("nan"), float("inf")])
def test_a_price_that_is_no_number_is_refused(price: float) -> None:
    """Even of an accelerator that nobody has known a price of."""
    offer = replace(load().offer(f"{V100}/on-demand"), usd_per_hour=price)
    kept, refused = plausible_offers([offer], [], {})
    assert (kept, refused) == ([], {Refusal.IMPLAUSIBLE: 1})


def test_an_on_demand_price_of_others_that_has_more_than_halved_is_doubted(pages: Pages) -> None:
    rows = pages[AWS_ROWS]
    for price, doubted in ((b"1.60", False), (b"0.80", True)):
        pages[AWS_ROWS] = rows.replace(b"3.06,0.514100", price + b",0.514100")
        (offer,) = fetched("on-demand").offers
        assert (offer.usd_per_hour, offer.outlier) == (float(price), doubted)


def test_the_known_prices_become_a_folder_that_plans_read(pages: Pages, tmp_path: Path) -> None:
    run("aws")
    for _ in range(2):
        write_known(tmp_path)
    assert sorted(path.name for path in (tmp_path / "offers").iterdir()) == ["aws.csv", "gcp.csv", "local.csv"]
    assert load(pricing=tmp_path).offer(f"{V100}/spot").usd_per_hour == 0.5141


def test_the_scheduled_workflow_gives_options_that_the_command_has() -> None:
    steps = yaml.safe_load((ROOT / "examples" / "ci" / "github" / "prices.yml").read_text())["jobs"]["refresh"]["steps"]
    (line,) = [step["run"] for step in steps if "sailor-cloud prices" in step.get("run", "")]
    command, given = prices.commands["refresh"], shlex.split(line)[3:]
    assert command.make_context("refresh", given).params["output"] == Path("prices")
