from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from factories.called import called
from sailor_cloud import catalog
from sailor_cloud.catalog.prices import elsewhere
from sailor_cloud.catalog.prices.elsewhere import (
    PROVIDERS,
    ElsewherePrice,
    ask_gpuhunt,
    prices_elsewhere,
    store_prices,
    totals,
)
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.offer import Market
from sailor_cloud.testing.http_api import in_thread

TODAY = date(2026, 11, 24)
# Rows of gpuhunt's published format, version 3; their prices are made up.
HEADER = (
    "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags,cpu_arch"
)
ROWS = [
    "one,us-east,4.10,26,225,1,H100,80,False,,nvidia,,x86",
    "eight,us-east,24.00,208,1800,8,H100,80,False,,nvidia,,x86",
    "eight,us-east,12.00,208,1800,8,H100,80,True,,nvidia,,x86",
    "pi,us-east,0.10,4,8,0,,,False,,,,x86",
    "free,us-east,0.0,4,8,1,A100,40,False,,nvidia,,x86",
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local server with a catalog in which Lambda alone has rows, in gpuhunt's published form."""
    pytest.importorskip("gpuhunt")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, provider, *rest = self.path.split("/")
            answer = b"20261124-1"
            if rest != ["version"]:
                whole = io.BytesIO()
                with zipfile.ZipFile(whole, "w") as archive:
                    archive.writestr(
                        f"{provider}.csv", "\n".join([HEADER, *(ROWS if provider == "lambdalabs" else [])])
                    )
                answer = whole.getvalue()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", f"{url}/v3")
        yield


def row(provider: str, accelerator: str, usd: float, day: date | None = TODAY, **more: Market) -> ElsewherePrice:
    market = more.get("market", Market.ON_DEMAND)
    return ElsewherePrice(
        provider=provider, accelerator=accelerator, market=market, usd_per_gpu_hour=usd, as_of=day, source="s"
    )


def test_every_shipped_price_names_a_known_provider_accelerator_and_source() -> None:
    known = catalog.load()
    rows = prices_elsewhere(Path(elsewhere.resources.data_root() / "pricing"))
    assert {one.provider for one in rows} == set(PROVIDERS) - {"azure"}
    for one in rows:
        assert known.accelerator(one.accelerator)
        assert known.source(one.source).citation != one.source, one
        assert one.as_of is not None or "undated" in known.source(one.source).citation
    assert len({(one.provider, one.accelerator, one.market) for one in rows}) == len(rows)


def test_a_total_needs_a_price_of_every_accelerator_and_is_as_old_as_its_oldest() -> None:
    rows = [
        row("a", "H100-80", 3.0),
        row("a", "A100-40", 1.0, date(2026, 5, 1)),
        row("b", "H100-80", 1.0),
        row("c", "H100-80", 2.0, None),
        row("c", "A100-40", 1.0),
        row("c", "A100-40", 0.1, market=Market.SPOT),
    ]
    found = totals({"H100-80": 4, "A100-40": 2}, rows)
    assert [(one.provider, one.usd_per_hour, one.as_of) for one in found] == [
        ("c", 10.0, None),
        ("a", 14.0, date(2026, 5, 1)),
    ]


def test_todays_prices_come_from_gpuhunts_catalog_and_are_kept_with_those_of_other_providers(
    home: Path, recorded: None
) -> None:
    found = ask_gpuhunt(["lambda"], TODAY)
    assert [(one.accelerator, one.market.value, one.usd_per_gpu_hour) for one in found] == [
        ("H100-80", "on-demand", 3.0),
        ("H100-80", "spot", 1.5),
    ]
    others = [one for one in prices_elsewhere() if one.provider != "lambda"]
    store_prices(found)
    assert set(prices_elsewhere()) == {*others, *found}


def test_a_provider_that_gpuhunt_lacks_or_cannot_load_is_reported(home: Path, recorded: None) -> None:
    with pytest.raises(RequestError, match="gpuhunt's catalog has no coreweave"):
        ask_gpuhunt(["coreweave"], TODAY)
    with pytest.raises(DataError, match="could not be loaded for nebius"):
        ask_gpuhunt(["nebius"], TODAY)


def test_prices_list_shows_a_provider_to_compare_with_and_says_that_nothing_is_bought_there(home: Path) -> None:
    answer = called("prices", "list", "--provider", "lambda", "--accelerator", "H100-80")
    assert "3.99" in answer.stdout
    assert "nothing is bought there" in answer.stdout
    rows = json.loads(called("prices", "list", "--provider", "lambda", "--json").stdout)
    assert {one["provider"] for one in rows} == {"lambda"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--provider", "lambada"), "'lambada' is none of"),
        (("--provider", "lambda", "--region", "us-central1"), "--region can't filter them"),
        (("--provider", "gcp", "--now"), "--now is for providers to compare with"),
    ],
)
def test_unsupported_requests_to_prices_list_are_reported(home: Path, options: tuple[str, ...], message: str) -> None:
    answer = called("prices", "list", *options)
    assert answer.returncode == 2
    assert message in answer.stderr
