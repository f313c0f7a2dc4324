"""`simulate`, `import` and `export` as a user types them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from factories.called import called
from factories.commands import sailor
from factories.sailor_artifact import write_artifact

ROOT = Path(__file__).parents[2]
PLAN_JOB = ROOT / "examples" / "quickstart.yaml"


def run(*arguments: str | Path, code: int = 0, program: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, or as a program of its own, which each command is at least once."""
    done = sailor(*map(str, arguments)) if program else called(*map(str, arguments))
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def _assert_equal(found: Any, expected: Any) -> None:
    """Assert that two JSON values are equal, but for the last bits of a fit, which can be others in another process."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        _assert_equal(list(found.values()), list(expected.values()))
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            _assert_equal(each, other)
    else:
        assert found == expected


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, job = tmp_path_factory.mktemp("plan") / "plan.json", tmp_path_factory.mktemp("job") / "job.yaml"
    one_fast = "zones: [local-a], "
    assert one_fast in PLAN_JOB.read_text()
    job.write_text(PLAN_JOB.read_text().replace(one_fast, "zones: [local-a, local-b], "))
    run("plan", job, "--restrict", "even-batches", "--as-of", "2026-11-21", "-o", path)
    return path


def test_simulate_agrees_with_the_plan_it_is_given(plan_file: Path) -> None:
    answer = json.loads(run("simulate", plan_file, "--json", program=True).stdout)
    planned = json.loads(plan_file.read_text())
    assert answer["fits"] is True
    for part in ("prediction", "cost"):
        _assert_equal(answer[part], planned[part])
    for stage in answer["stage_waits"]:
        parts = [stage[name] for name in ("compute_s", "transfer_s", "bubble_s", "sync_s")]
        assert sum(parts) == pytest.approx(answer["prediction"]["iteration_s_replay"])


def test_simulate_says_what_each_stage_waits_for_and_how_sure_it_is(plan_file: Path) -> None:
    text = run("simulate", plan_file).stdout
    assert "±" in text
    assert text.count("pipelines 0-1 stage 0: compute") == text.count("pipelines 0-1 stage 1: compute") == 1
    assert "\x1b" not in text


def test_a_timeline_is_a_trace_with_every_operation(plan_file: Path, tmp_path: Path) -> None:
    run("simulate", plan_file, "--timeline", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    plan = json.loads(plan_file.read_text())["plan"]
    forwards = [event for event in events if event["name"] == "forward"]
    assert len(forwards) == sum(len(line["stages"]) * line["microbatches"] for line in plan["pipelines"])
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")


def test_a_plan_with_faults_is_refused_with_the_offending_values(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    document["plan"]["pipelines"][0]["stages"][0]["first_layer"] = 1
    document["plan"]["nodes"][0]["offer"] = "nowhere"
    (tmp_path / "bad.json").write_text(json.dumps(document))
    told = run("simulate", tmp_path / "bad.json", code=2).stderr
    assert "expected to start at 0" in told
    assert "unknown offer 'nowhere'" in told


def test_an_infeasible_document_has_nothing_to_simulate_or_export(plan_file: Path, tmp_path: Path) -> None:
    document = json.loads(plan_file.read_text())
    document.update(status="infeasible", plan=None, prediction=None, cost=None, objective=None)
    (tmp_path / "none.json").write_text(json.dumps(document))
    assert "holds no plan" in run("simulate", tmp_path / "none.json", code=2).stderr
    assert "nothing to export" in run("export", tmp_path / "none.json", "--format", "sailor-artifact", code=2).stderr


def test_a_missing_plan_is_named() -> None:
    assert "can't read plan nowhere.json" in run("simulate", "nowhere.json", code=2).stderr


def test_export_writes_the_artifacts_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    run("plan", PLAN_JOB, "--restrict", "even-batches", "--as-of", "2026-11-21", "-o", path)
    written = json.loads(run("export", path, "--format", "sailor-artifact", program=True).stdout)
    layers = [layer for stage in written["pipeline_list"][0]["layers_per_stage"] for layer in stage]
    assert layers == list(range(8))
    assert written["mbs"] >= 1


def test_import_writes_a_folder_once(tmp_path: Path) -> None:
    source = write_artifact(tmp_path / "artifact")
    dated = ("-o", tmp_path / "mine", "--as-of", "2026-11-01")
    told = run("import", "sailor-artifact", source, *dated, program=True).stdout
    assert "profiles of A100-40, Titan-RTX-24, V100-16" in told
    assert "so no offers: Titan-RTX-24" in told
    assert "is not empty" in run("import", "sailor-artifact", source, "-o", tmp_path / "mine", code=2).stderr


def test_simulate_takes_imported_profiles_and_network(plan_file: Path, tmp_path: Path) -> None:
    source = write_artifact(tmp_path / "artifact")
    run("import", "sailor-artifact", source, "-o", tmp_path / "mine")
    answer = run(
        "simulate",
        plan_file,
        "--json",
        "--profiles",
        tmp_path / "mine" / "compute_profiles",
    )
    _assert_equal(json.loads(answer.stdout)["prediction"], json.loads(plan_file.read_text())["prediction"])


def test_plan_works_on_imported_profiles_network_and_prices(tmp_path: Path) -> None:
    source, mine = write_artifact(tmp_path / "artifact"), tmp_path / "mine"
    run("import", "sailor-artifact", source, "-o", mine, "--as-of", "2026-11-01")
    folders = []
    for name, folder in (
        ("--profiles", "compute_profiles"),
        ("--network", "bandwidth_profiles"),
        ("--pricing", "pricing"),
    ):
        folders += [name, mine / folder]
    job = mine / "jobs" / "mixed-1-opt-350.yaml"
    document = json.loads(run("plan", job, "--json", "--as-of", "2026-11-02", *folders).stdout)
    assert {offer["instance_type"] for offer in document["inputs"]["offers"]} == {"sailor-4xV100-16"}
    assert [profile["id"] for profile in document["inputs"]["compute_profiles"]] == ["V100-16"]
    assert document["prediction"]["error_p50"] < 0.15
