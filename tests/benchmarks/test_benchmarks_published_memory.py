"""Tables of predicted against published peak memory."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "simulator_accuracy"))

import published_memory
from published import read_published
from published_memory import POOLED, by_source, in_bars, judge, summary
from test_benchmarks_published import ROW, table

from sailor_cloud.units import GIB


def test_sources_under_five_rows_are_one(tmp_path: Path) -> None:
    large = [ROW | {"id": f"l{i}", "source": "large@0123456789 a.md"} for i in range(5)]
    small = [ROW | {"id": f"s{i}", "source": f"small{i}"} for i in range(2)]
    runs, _ = read_published(table(tmp_path, *small, *large))
    judged, unread = judge(runs)
    assert not unread
    assert {name: len(rows) for name, rows in by_source(judged).items()} == {"large a.md": 5, POOLED: 2}


def test_errors_are_those_of_the_fullest_stage_against_what_was_printed(tmp_path: Path) -> None:
    (run,), _ = read_published(table(tmp_path, ROW))
    (first,), _ = judge([run])
    twice = dataclasses.replace(run, peak_bytes=2.0 * first.predicted_bytes)
    exact = dataclasses.replace(run, peak_bytes=first.predicted_bytes)
    judged, _ = judge([twice, exact])
    assert [each.error for each in judged] == pytest.approx([-0.5, 0.0])
    assert summary(judged)["mean"] == pytest.approx(0.25)
    assert summary(judged)["bias"] == pytest.approx(-0.25)


def test_a_run_that_needs_more_than_its_device_is_called_impossible(tmp_path: Path) -> None:
    runs, _ = read_published(table(tmp_path, ROW, ROW | {"id": "r2", "microbatch_size": "64", "recompute": "none"}))
    fits, too_large = judge(runs)[0]
    assert (fits.impossible, fits.comfortable) == (False, True)
    assert (too_large.impossible, too_large.comfortable) == (True, False)
    assert fits.device_bytes == 80 * GIB


def test_layouts_that_the_model_cant_have_are_told(tmp_path: Path) -> None:
    runs, _ = read_published(table(tmp_path, ROW | {"pp": "48"}, ROW | {"tp": "3"}))
    judged, unread = judge(runs)
    assert not judged
    assert [each.reason for each in unread] == [
        "48 stages for 24 blocks",
        "tp 3 does not divide the 16 attention heads of gpt-small",
    ]


def test_bars_hold_for_trusted_rows_in_half_precision(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"trust": "low"}, ROW | {"precision": "tf32"}, ROW | {"peak_memory_gib": ""}]
    runs, _ = read_published(table(tmp_path, *rows))
    assert [in_bars(run) for run in runs] == [True, False, False, False]


def test_any_table_of_these_columns_is_judged_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = table(tmp_path, ROW, ROW | {"precision": "fp8"}), tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["x", "--measurements", str(path), "--json", str(out)])
    assert published_memory.main() == 0
    printed = capsys.readouterr().out
    assert f"| {POOLED} | 1 |" in printed
    assert "1 rows left out: precision fp8 is not modelled" in printed
    assert json.loads(out.read_text())["sources"][POOLED]["rows"] == 1


def test_without_reference_the_benchmark_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--reference", str(tmp_path)])
    assert published_memory.main() == 0
    assert capsys.readouterr().out.startswith("SKIPPED: no ")
