"""The commands about prices, quotas and bandwidth: a table on a terminal, plain text in a pipe, JSON on request."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from moto import mock_aws
from rich.console import Console

from factories.cloud_prices import aws_market, google_world
from sailor_cloud.catalog.providers.gcp import account as gcp_account
from sailor_cloud.cli.inputs.bandwidth import bandwidth
from sailor_cloud.cli.inputs.prices import prices
from sailor_cloud.cli.inputs.quota import quota
from sailor_cloud.errors import MissingPriceError, RequestError
from sailor_cloud.testing.aws.prices import AwsWorld, aws_world
from sailor_cloud.testing.google.prices import FakeGoogle, Fault

AS_OF = ("--as-of", "2026-11-21")


def run(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), standalone_mode=False, catch_exceptions=False)


def output(command: click.Command, *arguments: str) -> str:
    text = run(command, *arguments).stdout
    assert "\x1b" not in text
    return text


def document(command: click.Command, *arguments: str) -> Any:
    return json.loads(run(command, *arguments, "--json").stdout)


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    quick = gcp_account.RetryLimits(call_s=5.0, first_pause_s=0.001, longest_pause_s=0.002, total_s=2.0)
    monkeypatch.setattr(gcp_account, "PATIENCE", quick)
    world = google_world()
    world.region_quotas["us-central1"] = [{"metric": "NVIDIA_A100_GPUS", "limit": 16.0, "usage": 1.0}]
    with FakeGoogle(world) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with aws_world(aws_market()) as world, mock_aws():
        world.quotas["L-417A185B"] = 8.0
        yield world


def test_list_shows_price_per_gpu_age_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = output(
        prices, "list", "--zone", "us-central1-a", "--accelerator", "V100-16", "--market", "on-demand", *AS_OF
    )
    lines = text.splitlines()
    assert lines[0].split() == [
        "zone", "instance", "type", "devices", "market", "USD/h", "per", "GPU", "days", "old", "price", "seen"
    ]  # fmt: skip
    assert lines[1].split() == [
        "us-central1-a", "n1-standard-16", "2xV100-16", "on-demand", "5.72", "2.86", "261", "STALE", "medium", "yes"
    ]  # fmt: skip
    assert "source gcosts@4445d8f1+skypilot-catalog@006059e0, 2026-03-05: N1 machine" in text
    assert "STALE: older than 90 days, spot 7" in text


def test_list_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = output(
        prices, "list", "--region", "us-central1", "--accelerator", "A100-40", "--sort", "usd-per-hour", *AS_OF
    )
    table = [line for line in text.splitlines() if line.startswith(("zone", "us-central1"))]
    assert len(table) == 41
    assert max(len(line.rstrip()) for line in table) <= 80
    assert ("USD/h" in table[0], "per GPU" in table[0]) == (True, False)


def test_list_by_unit_of_work_names_its_column() -> None:
    text = output(prices, "list", "--sort", "usd-per-pflops-hour", "--limit", "1")
    assert "per PFLOPS" in text
    assert "more; narrow down or give --limit 0" in text


def test_list_as_json_holds_every_offer_that_matches() -> None:
    rows = document(prices, "list", "--provider", "local", *AS_OF)
    assert len(rows) == 4
    assert {row["confidence"] for row in rows} == {"example"}
    assert {row["stale"] for row in rows} == {False}
    assert rows[0]["as_of_from"] == "2026-11-21"


def test_list_shows_both_confidences_and_outliers_of_every_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    asked = ("list", "--region", "us-east-1", "--accelerator", "A100-40", *AS_OF)
    rows = {(row["zone"], row["market"]): row for row in document(prices, *asked)}
    assert rows["use1-az1", "spot"]["outlier"] is True
    told = {(row["confidence"], row["zone_confidence"], row["outlier"]) for row in rows.values()}
    assert told == {("medium", "seen", True), ("medium", "seen", False)}
    text = output(prices, *asked)
    lines = [line.split() for line in text.splitlines() if line.startswith("use1")]
    (odd,) = [line for line in lines if line[0] == "use1-az1" and "spot" in line]
    assert odd[-5:] == ["medium*", "outlier,", "listed", "2.47", "yes"]
    assert (odd[4], rows["use1-az1", "spot"]["listed"]["usd_per_hour"]) == ("8.19", 2.4655)
    assert {line[-1] for line in lines} == {"yes"}
    assert "*: doubtful; plans count the price shown, not the one listed" in text
    unchecked = output(prices, "list", "--zone", "use1-az1", "--instance-type", "g5.2xlarge", *AS_OF)
    assert unchecked.splitlines()[1].split()[-2:] == ["high", "no"]


def test_list_by_age_and_price_cap() -> None:
    young = document(prices, "list", "--max-age", "120", *AS_OF)
    assert {row["age_days"] <= 120 for row in young} == {True}
    cheap = document(prices, "list", "--max-usd-per-hour", "0.5")
    assert max(row["usd_per_hour"] for row in cheap) <= 0.5


def test_list_without_a_match_says_so() -> None:
    assert "no offer meets" in output(prices, "list", "--provider", "local", "--accelerator", "A100-40")


def test_unknown_names_are_all_reported() -> None:
    with pytest.raises(RequestError) as caught:
        run(prices, "list", "--accelerator", "A100", "--region", "us-centrl1")
    assert [problem.path for problem in caught.value.problems] == ["--region", "--accelerator"]
    assert "did you mean 'us-central1'" in str(caught.value)


def test_refresh_reports_what_was_read_refused_and_written(google: FakeGoogle) -> None:
    google.world.skus[0]["pricingInfo"] = []
    result = run(prices, "refresh", "--provider", "gcp")
    assert result.return_value == 0
    assert "gcp prices read" in result.stdout
    assert "refused: a field is missing" in result.stdout
    assert "written to" in result.stdout
    assert "reading gcp machine types" in result.stderr


def test_refresh_of_both_providers_as_json(google: FakeGoogle, aws: AwsWorld) -> None:
    found = document(prices, "refresh", "--region", "us-central1", "--region", "us-east-1")
    assert found["complete"] is True
    assert found["offers"] == {"gcp": 6, "aws": 5}
    assert found["refused"] == {"price is zero": 1, "unknown instance type": 1}
    assert Path(found["folder"]).is_dir()


def test_a_partial_refresh_names_what_is_missing_and_exits_with_1(google: FakeGoogle) -> None:
    google.world.unreachable.add("us-central1-b")
    result = run(prices, "refresh", "--provider", "gcp")
    assert result.return_value == 1
    assert "missing gcp us-central1-b: machine types" in result.stdout


def test_a_failed_refresh_says_that_nothing_changed(google: FakeGoogle) -> None:
    google.faults = [Fault("/skus", 400, times=9)]
    result = run(prices, "refresh", "--provider", "gcp")
    assert result.return_value == 1
    assert "nothing was read; prices stay as they were" in result.stdout


def test_diff_shows_what_the_refresh_moved(google: FakeGoogle) -> None:
    run(prices, "refresh", "--provider", "gcp")
    text = output(prices, "diff", "--zone", "us-central1-a", "--market", "spot", "--accelerator", "V100-16")
    assert "n1-standard-8" in text
    assert "1 prices moved" in text
    moved = document(prices, "diff", "--zone", "us-central1-a", "--market", "spot", "--accelerator", "V100-16")
    changed = [row for row in moved if row["relative"] is not None]
    assert changed[0]["before"]["usd_per_hour"] == 1.19296


def test_diff_before_any_refresh_shows_nothing() -> None:
    assert "0 prices moved, 0 offers are new, 0 are gone" in output(prices, "diff")


def test_diff_from_a_later_day_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--from 2026-02-01 is after --to 2026-01-01; exchange them"):
        run(prices, "diff", "--from", "2026-02-01", "--to", "2026-01-01")


def test_a_cloud_without_known_prices_says_where_to_get_them() -> None:
    assert "--now asks gpuhunt's catalog for prices of azure" in run(prices, "list", "--provider", "azure").stderr
    shown = output(prices, "list", "--provider", "oci", "--limit", "2")
    assert shown.count("skypilot-catalog") == 2


def test_history_shows_moves_and_sources() -> None:
    text = output(prices, "history", "a2-highgpu-1g", "--region", "us-central1", "--market", "spot", "--limit", "0")
    assert "us-central1 A100-40 spot 2026-06-25 1.93 +5.0 % gcosts-history" in " ".join(text.split())
    points = document(prices, "history", "a2-highgpu-1g", "--region", "us-central1", "--market", "spot")
    assert {point["region"] for point in points} == {"us-central1"}


def test_history_of_an_unknown_type_hints_at_a_known_one() -> None:
    with pytest.raises(RequestError, match="did you mean 'a2-highgpu-1g'"):
        run(prices, "history", "a2-higgpu-1g")


def test_quota_sets_the_limit_beside_the_need(google: FakeGoogle, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: q\nmodel: {preset: sailor-opt-350}\ntraining: {global_batch_size: 8, sequence_length: 128}\n"
        "resources:\n  - {provider: gcp, zones: [us-central1-a], accelerators: {A100-40: 16}}\n"
        "cloud: {gcp: {project: other-project}}\n"
    )
    text = output(quota, str(job))
    assert "us-central1  NVIDIA_A100_GPUS  A100-40    15      16  short" in text
    assert "all          GPUS_ALL_REGIONS  A100-40     ?      16  unknown" in text
    assert any("/projects/other-project/regions/us-central1" in path for path in google.requests)
    found = document(quota, str(job))
    assert [row["enough"] for row in found["quotas"]] == [None, False]


def test_quota_of_a_region_without_a_job(aws: AwsWorld) -> None:
    text = output(quota, "--provider", "aws", "--region", "us-east-1")
    assert "L-417A185B" in text
    assert "missing aws quota L-7212CCBC of us-east-1" in text


def test_quota_wants_a_job_or_a_region() -> None:
    with pytest.raises(RequestError, match="name a job file, or --provider and at least one --region"):
        run(quota)


def test_bandwidth_shows_time_error_and_price() -> None:
    text = output(bandwidth, "us-central1-a", "us-central1-b", "--accelerator", "A100-40", "--pairs", "4")
    assert "measured" in text
    assert "sailor@cf2c8e3c, 2025-08-14" in text
    assert "other-zone: 0.00931 USD/GB paid by the sender in us-central1-a" in text


def test_bandwidth_of_aws_names_both_payers() -> None:
    text = output(bandwidth, "use1-az1", "use1-az2", "--accelerator", "V100-16")
    assert "paid by the sender in use1-az1" in text
    assert "paid by the receiver in use1-az2" in text
    assert "estimate" in text


def test_bandwidth_as_json_has_links_and_egress() -> None:
    found = document(bandwidth, "us-central1-a", "us-west1-b", "--accelerator", "V100-16", "--pairs", "4")
    (link,) = found["links"]
    assert link["link"]["measured"] is True
    assert link["transfer_s"]["256000000"] > link["transfer_s"]["1000000"] > 0.018
    assert found["egress"][0]["payer_zone"] == "us-central1-a"


def test_bandwidth_of_zones_without_a_common_accelerator_is_refused() -> None:
    with pytest.raises(RequestError, match="do not both offer K80-12; see 'sailor-cloud prices list --zone"):
        run(bandwidth, "us-central1-a", "us-west1-b", "--accelerator", "K80-12")


def test_bandwidth_of_an_unknown_zone_is_refused() -> None:
    with pytest.raises(RequestError, match="no zone 'us-centrl1-a'; did you mean"):
        run(bandwidth, "us-centrl1-a", "us-west1-b")


def test_bandwidth_between_this_machine_and_a_cloud_is_refused() -> None:
    with pytest.raises((RequestError, MissingPriceError)):
        run(bandwidth, "local-a", "us-west1-b")


@pytest.mark.parametrize("command", [prices, quota, bandwidth], ids=["prices", "quota", "bandwidth"])
def test_help_names_an_example(command: click.Command) -> None:
    assert "sailor-cloud" in output(command, "--help")


def test_progress_is_a_line_per_listing_in_a_pipe_and_a_bar_on_a_terminal() -> None:
    from sailor_cloud.cli.terminal.bars import refresh_progress

    shown = {}
    for terminal in (False, True):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=80)
        with refresh_progress(console) as progress:
            for done in (1, 2, 3):
                progress("gcp machine types", done, 3)
        shown[terminal] = stream.getvalue()
    assert shown[False] == "reading gcp machine types\n"
    assert "100 %" in shown[True]
