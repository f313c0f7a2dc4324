"""Every wait that may take more than a second tells which share of it is done."""

from __future__ import annotations

import io
import sys
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from factories.sailor_artifact import write_artifact
from sailor_cloud.catalog.account.quotas import Counted, QuotaNeed
from sailor_cloud.catalog.providers.aws import account as aws_account
from sailor_cloud.catalog.providers.fetched import PriceRequest
from sailor_cloud.catalog.providers.gcp import prices as gcp
from sailor_cloud.catalog.quota_needs import read_quotas
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.clock import FixedClock
from sailor_cloud.interchange import import_artifact
from sailor_cloud.launch.doctor import examine
from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Precision, Provider
from sailor_cloud.provision.cleanup.reap import find_leftovers
from sailor_cloud.report import console as consoles
from sailor_cloud.run.folder import RunFolder, new_run_id

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))


class Terminal(io.StringIO):
    """A terminal that tells when something was drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.drawn.set()
        return super().write(text)


def shown(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> str:
    """Return what a wait draws whose last report comes before its end."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    console = Console(file=terminal, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(consoles, "progress_console", lambda: console)
    try:
        with waiting("searching", patience_s=0.0) as show:
            show(65, 100, "searching")
            assert terminal.drawn.wait(60.0)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    return terminal.getvalue()


def test_a_bar_is_full_before_it_disappears_unless_the_work_was_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "100 %" in shown(monkeypatch, fails=False)
    assert "100 %" not in shown(monkeypatch, fails=True)


def test_a_check_of_the_machine_counts_its_checks() -> None:
    told: list[tuple[int, int]] = []
    checks = examine(lambda done, of: told.append((done, of)))
    assert told == [(done, len(checks)) for done in range(len(checks))]


def test_quotas_count_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    account = SimpleNamespace(quota=lambda region, code: 8.0)
    monkeypatch.setattr(aws_account, "AwsAccount", lambda: account)
    wanted = [
        QuotaNeed(
            provider=Provider("aws"),
            region="us-east-1",
            quota=code,
            counts=Counted.VCPUS,
            market=None,
            accelerators=("T4-16",),
            needed=4.0,
        )
        for code in ("L-1", "L-2")
    ]
    told: list[tuple[int, int, str]] = []
    read_quotas(wanted, progress=lambda *news: told.append(news))
    assert told == [(0, 2, "quota L-1 of us-east-1"), (1, 2, "quota L-2 of us-east-1")]


def test_an_import_counts_its_files(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    done = import_artifact(
        write_artifact(tmp_path / "data", gpus={"A100-40": 4.0}),
        tmp_path / "out",
        precision=Precision.FP32,
        as_of=date(2026, 11, 21),
        progress=lambda *news: told.append(news),
    )
    assert done.accelerators == ("A100-40",)
    assert told == [
        (0, 4, "fitting a profile of A100-40"),
        (1, 4, "writing bandwidth curves"),
        (2, 4, "writing prices"),
        (3, 4, "writing jobs"),
    ]


def test_google_s_lists_are_counted_since_none_says_how_long_it_is() -> None:
    kinds = SimpleNamespace(warning=SimpleNamespace(code=""), machine_types=[], accelerator_types=[])
    pages = [("zones/us-central1-a", kinds), ("zones/us-central1-b", kinds)]
    account = SimpleNamespace(aggregated=lambda kind: iter(pages), skus=lambda service: iter(()))
    told: list[tuple[str, int, int | None]] = []
    now = datetime(2026, 11, 21, tzinfo=UTC)
    request = PriceRequest(regions=frozenset(), known=frozenset(), shapes={}, cloud=Cloud(), now=now)
    gcp.fetch(account, request, lambda *news: told.append(news))  # type: ignore[arg-type]
    assert [news[1:] for news in told if news[0] == "gcp lists"] == [(0, 3), (1, 3), (1, 3), (2, 3), (2, 3), (3, 3)]
    assert ("gcp machine types", 2, None) in told


def test_looking_for_leftovers_counts_the_places_and_the_runs(tmp_path: Path) -> None:
    folders = [RunFolder.create(new_run_id(name, clock=CLOCK, suffix="0000"), root=tmp_path) for name in ("a", "b")]
    told: list[tuple[int, int]] = []
    find_leftovers(folders, clock=CLOCK, progress=lambda done, of: told.append((done, of)))
    assert told == [(0, 3), (1, 3), (2, 3)]
