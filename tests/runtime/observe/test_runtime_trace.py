"""The schedule of a stage, and the picture of a step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from factories.run_specs import run_spec
from sailor_runtime.training.observe.trace import trace_events
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.schedule import Kind, Pass, passes
from sailor_runtime.training.pipeline.spans import Activity, Span

SHAPES = [(1, 1), (1, 3), (4, 1), (6, 2), (8, 4), (2, 5)]


def numbers(order: tuple[Pass, ...], kind: Kind) -> list[int]:
    return [each.microbatch for each in order if each.kind is kind]


@pytest.mark.parametrize(("microbatches", "stages"), SHAPES)
def test_every_stage_runs_each_microbatch_there_and_back_with_one_forward_one_backward_between(microbatches, stages):
    for stage in range(stages):
        order = passes("1f1b", microbatches, stages, stage)
        assert numbers(order, Kind.FORWARD) == numbers(order, Kind.BACKWARD) == list(range(microbatches))
        assert len(order) == 2 * microbatches
        held = most = 0
        for kind, *_ in order:
            held += 1 if kind is Kind.FORWARD else -1
            most = max(most, held)
            assert held >= 0
        assert most == min(stages - stage, microbatches)


@pytest.mark.parametrize(("microbatches", "stages"), SHAPES)
def test_a_zero_bubble_schedule_puts_gradients_of_weights_off_and_holds_no_more_than_the_first_stage_of_1f1b(
    microbatches, stages
):
    for stage in range(stages):
        order = passes("zero-bubble", microbatches, stages, stage)
        halved = stage > 0
        last = Kind.WEIGHTS if halved else Kind.BACKWARD
        for kind in (Kind.FORWARD, last, *([Kind.INPUT] if halved else [])):
            assert numbers(order, kind) == list(range(microbatches))
        assert len(order) == (2 + halved) * microbatches
        place = {each: at for at, each in enumerate(order)}
        if halved:
            assert all(place[Pass(Kind.INPUT, m)] < place[Pass(Kind.WEIGHTS, m)] for m in range(microbatches))
        held = most = 0
        for kind, *_ in order:
            held += (kind is Kind.FORWARD) - (kind is last)
            most = max(most, held)
        assert most == min(stages, microbatches)


@pytest.mark.parametrize(("microbatches", "stages", "ranges"), [(2, 2, 2), (4, 2, 3), (8, 4, 2), (12, 3, 4)])
def test_an_interleaved_schedule_takes_every_microbatch_through_every_range_there_and_back(
    microbatches, stages, ranges
):
    for stage in range(stages):
        order = passes("interleaved", microbatches, stages, stage, ranges)
        assert len(order) == 2 * microbatches * ranges
        for chunk in range(ranges):
            own = tuple(each for each in order if each.chunk == chunk)
            # Tensors of a cut arrive in the order of the microbatches, and the last one completes the gradients.
            assert numbers(own, Kind.FORWARD) == numbers(own, Kind.BACKWARD) == list(range(microbatches))
            place = {(each.kind, each.microbatch): at for at, each in enumerate(own)}
            assert all(place[Kind.FORWARD, m] < place[Kind.BACKWARD, m] for m in range(microbatches))
        last = [each.chunk for each in order if (each.kind, each.microbatch) == (Kind.BACKWARD, microbatches - 1)]
        assert last == list(reversed(range(ranges))), "sums of gradients begin with the last layers"


def test_a_step_is_drawn_as_one_process_per_pipeline_and_one_thread_per_rank(tmp_path):
    spec = run_spec([(4, 2, [(0, 3, 2), (3, 6, 1)]), (2, 2, [(0, 6, 1)])], directory=tmp_path)
    everyone = [
        [Span(Activity.FORWARD, 1, 0.001, 0.0035), Span(Activity.SYNC, -1, 0.004, 0.0045)],
        [],
        [Span(Activity.BACKWARD, 0, 0.0, 0.001)],
        [],
    ]
    events = trace_events(spec, layout.places(spec), everyone)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names) == [(0, 0), (0, 1), (0, 2), (1, 3)]
    assert names[0, 1] == "rank 1, stage 0: layers 0-2 on node-0, tp 2/2"
    drawn = [e for e in events if e["ph"] == "X"]
    assert drawn[0] == {
        "name": "forward",
        "ph": "X",
        "pid": 0,
        "tid": 0,
        "ts": 1000.0,
        "dur": 2500.0,
        "args": {"microbatch": 1},
    }
    assert drawn[1]["name"] == "sync"
    assert "args" not in drawn[1]
    assert (drawn[2]["pid"], drawn[2]["tid"]) == (0, 2)


def test_a_pass_is_drawn_with_the_range_of_layers_that_it_goes_through(tmp_path):
    stages = [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))]
    spec = run_spec([(3, 4, stages)], directory=tmp_path, pipeline_schedule="interleaved")
    everyone = [[Span(Activity.FORWARD, 0, 0.001 * chunk, 0.001 * (chunk + 1), chunk) for chunk in (0, 1)], []]
    events = trace_events(spec, layout.places(spec), everyone)["traceEvents"]
    assert [e["args"] for e in events if e["ph"] == "X"] == [{"microbatch": 0, "range": chunk} for chunk in (1, 2)]


def test_deepspeeds_schedule_is_read_without_the_package_around_it():
    code = (
        "import sys; from sailor_runtime.training.pipeline.schedule import passes; "
        "passes('1f1b', 2, 2, 0); print('deepspeed' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "runtime")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.strip() == "False"
