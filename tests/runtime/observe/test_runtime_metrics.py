"""Where an iteration's time goes, by rank."""

from __future__ import annotations

import json
import math
import re

import pytest

from factories.commands import ROOT
from factories.run_specs import run_spec
from sailor_runtime.training.observe.metrics import Metrics, Spent, partners, prometheus, spent, spent_of_rows
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.spans import Activity, Span

TWO_PIPELINES = [(4, 2, [(0, 3, 1), (3, 6, 1)]), (2, 2, [(0, 6, 1)])]


def spans(*given: tuple[Activity, float]) -> list[Span]:
    """Return spans of so many seconds, one after the other."""
    found, at = [], 0.0
    for doing, seconds in given:
        found.append(Span(doing, 0, at, at + seconds))
        at += seconds
    return found


def test_the_four_parts_add_up_to_the_iteration():
    given = spans(
        (Activity.RECEIVE_ACTIVATION, 0.5),
        (Activity.FORWARD, 1.0),
        (Activity.BACKWARD, 2.0),
        (Activity.SYNC, 0.25),
        (Activity.UPDATE, 0.125),
        (Activity.GATHER, 0.0625),
    )
    found = spent(given, 4.0, {(Activity.RECEIVE_ACTIVATION, 0): 0.1}, 7.0)
    assert found.compute_s == pytest.approx(3.125 - 0.0625), "weights are waited for inside the first pass"
    assert found.sync_s == pytest.approx(0.25 + 0.0625)
    assert found.compute_s + found.transfer_s + found.bubble_s + found.sync_s == pytest.approx(4.0)


def test_waiting_longer_than_the_wire_takes_is_bubble():
    given = spans((Activity.RECEIVE_ACTIVATION, 0.5), (Activity.RECEIVE_ACTIVATION, 0.0625), (Activity.FORWARD, 1.0))
    found = spent(given, 1.5625, {(Activity.RECEIVE_ACTIVATION, 0): 0.125}, 0.0)
    assert found.transfer_s == pytest.approx(0.125 + 0.0625)
    assert found.bubble_s == pytest.approx(0.375)


def test_a_receive_counts_by_the_wire_of_its_own_range_of_layers():
    given = [Span(Activity.RECEIVE_ACTIVATION, 0, 0.0, 1.0, chunk) for chunk in (0, 1)]
    wires = {(Activity.RECEIVE_ACTIVATION, 0): 0.125, (Activity.RECEIVE_ACTIVATION, 1): 0.5}
    assert spent(given, 2.0, wires, 0.0).transfer_s == pytest.approx(0.625)


def test_waiting_in_a_sum_for_partners_is_bubble_and_strangers_do_not_matter():
    rows = [
        Spent(iteration_s=4.0, compute_s=c, transfer_s=0.0, sync_s=s, memory_peak_bytes=0.0).row()
        for c, s in ((1.0, 3.0), (3.5, 0.5), (3.9, 0.1))
    ]
    found = spent_of_rows(rows, {0: {1}, 1: {0}})
    assert [one.sync_s for one in found] == [0.5, 0.5, 0.1]
    assert found[0].bubble_s == pytest.approx(2.5)


def test_partners_are_those_who_hold_the_same_parameters(tmp_path):
    spec = run_spec(TWO_PIPELINES, directory=tmp_path, model={"tied_head": False})
    assert partners(layout.atoms(spec)) == {0: {2}, 1: {2}, 2: {0, 1}}


def test_a_step_is_written_once_all_ranks_have_reported_its_parts(tmp_path):
    spec = run_spec(TWO_PIPELINES, directory=tmp_path)
    metrics = Metrics(tmp_path / "metrics", spec, layout.places(spec), layout.atoms(spec))
    file = tmp_path / "metrics" / "g1.jsonl"

    def rows(compute_s: float) -> list[list[float]]:
        one = Spent(iteration_s=1.0, compute_s=compute_s, transfer_s=0.0, sync_s=0.1, memory_peak_bytes=5.0)
        return [one.row()] * 3

    metrics.step({"step": 1, "loss": 2.0}, rows(0.0))
    assert file.read_text() == ""
    metrics.step({"step": 2, "loss": 1.0}, rows(0.25))
    metrics.close(rows(0.5))
    first, second = (json.loads(line) for line in file.read_text().splitlines())
    assert (first["step"], first["ranks"][2]["compute_s"]) == (1, 0.25)
    assert (second["step"], second["ranks"][0]["compute_s"]) == (2, 0.5)
    assert [(rank["pipeline"], rank["stage"]) for rank in first["ranks"]] == [(0, 0), (0, 1), (1, 0)]
    assert 'sailor_step{run="test",generation="1"} 2' in (tmp_path / "metrics" / "metrics.prom").read_text()


def test_prometheus_text_names_each_metric_once_and_gives_finite_numbers():
    rank = {"rank": 0, "pipeline": 0, "stage": 0, "memory_peak_bytes": 3}
    rank |= {f"{part}_s": 0.5 for part in ("compute", "transfer", "bubble", "sync")}
    told = {"step": 3, "loss": 1.5, "grad_norm": 0.5, "learning_rate": 1e-3, "tokens": 96, "tokens_per_s": 1e3}
    told |= {"iteration_s": 0.25, "predicted_iteration_s": 0.2, "ranks": [rank]}
    text = prometheus(told, run="run-1", generation=2)
    dashboard = (ROOT / "examples" / "grafana" / "sailor-cloud.json").read_text()
    asked = {name for panel in json.loads(dashboard)["panels"] for name in re.findall(r"sailor_\w+", json.dumps(panel))}
    assert asked == set(re.findall(r"# TYPE (\w+)", text)), "the Grafana dashboard shows other metrics"
    lines = text.splitlines()
    kinds = [line.split()[2].removeprefix("sailor_") for line in lines if line.startswith("# TYPE")]
    assert kinds == [
        *("step", "loss", "gradient_norm", "learning_rate", "tokens", "tokens_per_second"),
        *("iteration_seconds", "predicted_iteration_seconds", "iteration_part_seconds", "memory_peak_bytes"),
    ]
    samples = [line for line in lines if not line.startswith("#")]
    assert 'sailor_loss{run="run-1",generation="2"} 1.5' in samples
    assert 'sailor_predicted_iteration_seconds{run="run-1",generation="2"} 0.2' in samples
    assert sum(line.startswith("sailor_iteration_part_seconds{") for line in samples) == 4
    assert all(math.isfinite(float(line.rsplit(" ", 1)[1])) for line in samples)
