"""Where this machine's clock is wrong, the cloud's counts."""

from __future__ import annotations

import http.client
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories.cloud_runs import PROJECT, CloudRun, cloud_run, reached
from sailor_cloud.cli.main import cli
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import RequestError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cloud_clock import CloudClock, by_cloud
from sailor_cloud.provision.live_resources import Scope, Scopes
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.scopes import scopes_named, sweep_scopes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.testing.mock_cloud import in_environment

WHERE = {
    Provider("gcp"): scopes_named("project", [PROJECT]),
    Provider("aws"): scopes_named("region", ["us-east-1"]),
}
CLOUDS = pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)


@dataclass(slots=True)
class Wrong(SystemClock):
    ahead: timedelta

    def now(self) -> datetime:
        return SystemClock.now(self) + self.ahead


def off_s(clock: CloudClock) -> float:
    return (clock.now() - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize(
    ("ahead_s", "told"), [(3600, "3600 s ahead of the cloud's"), (-86400, "86400 s behind the cloud's"), (29, "")]
)
@CLOUDS
def test_a_clock_that_is_far_off_gives_way_to_the_clouds(provider: Provider, ahead_s: int, told: str) -> None:
    notes: list[str] = []
    with reached(provider):
        own = Wrong(timedelta(seconds=ahead_s))
        clock = by_cloud(own, WHERE[provider], lambda text, off: notes.append(text))
        assert isinstance(clock, CloudClock)
        if not told:
            assert notes == []
            assert off_s(clock) == pytest.approx(ahead_s, abs=1)
            return
        assert abs(off_s(clock)) < 5
        (text,) = notes
        # An answer's Date has whole seconds.
        assert any(told.replace(str(abs(ahead_s)), str(abs(ahead_s) + near)) in text for near in (-1, 0, 1)), text
        own.ahead = timedelta(0)
        clock.compare()
        assert "it is right again" in notes[1]
        assert abs(off_s(clock)) < 5


@CLOUDS
def test_without_an_answer_the_clock_stays_as_it_is(provider: Provider) -> None:
    nowhere = "http://127.0.0.1:9"
    variables = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": nowhere, "AWS_ENDPOINT_URL_EC2": nowhere}
    with in_environment(variables):
        clock = by_cloud(Wrong(timedelta(hours=1)), WHERE[provider], lambda text, off: pytest.fail(text))
        assert off_s(clock) == pytest.approx(3600, abs=1)  # type: ignore[arg-type]


def test_a_profile_or_region_that_does_not_exist_ends_no_teardown(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SystemClock()
    strange = Scopes({Scope(provider="aws", kind="region", name="us east!")})
    assert by_cloud(own, strange, lambda text, off: pytest.fail(text)).now() <= own.now()
    (problem,) = sweep_scopes(strange, other_kinds=()).problems
    assert "us east!" in problem
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert by_cloud(own, WHERE[Provider("aws")], lambda text, off: pytest.fail(text)).now() <= own.now()
    (problem,) = sweep_scopes(WHERE[Provider("aws")], other_kinds=()).problems
    assert "nobody" in problem


def test_an_answer_that_is_no_http_tells_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise http.client.BadStatusLine("nonsense")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", broken)
    own = SystemClock()
    assert by_cloud(own, WHERE[Provider("gcp")], lambda text, off: pytest.fail(text)).now() <= own.now()


@pytest.mark.parametrize("command", [("reap",), ("down", "tiny-20261121-051313-a1b2")])
def test_an_impossible_region_is_wrong_input(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    RunFolder.create("tiny-20261121-051313-a1b2", root=tmp_path / "runs")
    for name in ("us east!", "us-east-1a", "nowhere"):
        told = CliRunner().invoke(cli, [*command, "--region", name]).exception
        assert isinstance(told, RequestError)
        assert f"--region {name!r}: no aws region has such a name" in str(told)


def test_without_any_cloud_it_is_the_machines_own() -> None:
    own = SystemClock()
    assert by_cloud(own, Scopes(), lambda text, off: pytest.fail(text)) is own


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudRun]:
    with cloud_run(Provider(request.param), tmp_path / "runs") as made:
        yield made


def test_a_clock_that_is_ahead_reaps_no_live_run_of_another_machine(
    run: CloudRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_or_raise(run.apply())
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "another machine"))
    monkeypatch.setattr(SystemClock, "now", lambda self: datetime.now(UTC) + timedelta(days=1))
    named = ("--project", PROJECT) if run.provider is Provider("gcp") else ("--region", "us-east-1")
    done = CliRunner().invoke(cli, ["reap", "--yes", *named])
    assert "86400 s ahead" in done.output or "86399 s ahead" in done.output or "86401 s ahead" in done.output
    assert "left alone: may be a live run of another machine" in done.output
    assert run.nodes() == ["n0", "n1"]
