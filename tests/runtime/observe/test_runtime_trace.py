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
from sailor_runtime.training.pipeline.schedule import passes
from sailor_runtime.training.pipeline.spans import Doing, Span


@pytest.mark.parametrize(("microbatches", "stages"), [(1, 1), (1, 3), (4, 1), (6, 2), (8, 4), (2, 5)])
def test_every_stage_runs_each_microbatch_there_and_back_with_one_forward_one_backward_between(microbatches, stages):
    for stage in range(stages):
        order = passes(microbatches, stages, stage)
        assert [number for forward, number in order if forward] == list(range(microbatches))
        assert [number for forward, number in order if not forward] == list(range(microbatches))
        held = most = 0
        for forward, _ in order:
            held += 1 if forward else -1
            most = max(most, held)
            assert held >= 0
        assert most == min(stages - stage, microbatches)


def test_a_step_is_drawn_as_one_process_per_pipeline_and_one_thread_per_rank(tmp_path):
    spec = run_spec([(4, 2, [(0, 3, 2), (3, 6, 1)]), (2, 2, [(0, 6, 1)])], directory=tmp_path)
    everyone = [
        [Span(Doing.FORWARD, 1, 0.001, 0.0035), Span(Doing.SYNC, -1, 0.004, 0.0045)],
        [],
        [Span(Doing.BACKWARD, 0, 0.0, 0.001)],
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


def test_deepspeeds_schedule_is_read_without_the_package_around_it():
    code = (
        "import sys; from sailor_runtime.training.pipeline.schedule import passes; "
        "passes(2, 2, 0); print('deepspeed' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "runtime")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout.strip() == "False"
