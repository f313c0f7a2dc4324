"""`explain` with a job file and with a plan file."""

from __future__ import annotations

import inspect
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import sailor_cloud as sc
from factories.called import called
from factories.commands import ROOT
from factories.counted_clock import CountedClock
from sailor_cloud.api import verify
from sailor_cloud.model.document import Alternative
from sailor_cloud.planner.explaining import reasons
from sailor_cloud.planner.marginal import Gain
from sailor_cloud.report.plan.explanation_text import print_gain, print_rest

JOB = """
name: small
model: {model_type: gpt2, vocab_size: 256, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
training: {global_batch_size: 8, sequence_length: 32, steps: 10}
constraints: {budget_usd: 1.0}
resources:
  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 1, CPU-slow: 1}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("explain")
    (made / "job.yaml").write_text(JOB)
    answer = called("plan", "job.yaml", "--choose", "cheapest", "-o", "plan.json", cwd=made)
    assert answer.returncode == 0, answer.stderr
    return made


def test_a_plan_file_is_explained_without_another_search(folder: Path) -> None:
    answer = called("explain", "plan.json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    told = answer.stdout
    assert told.index("why ") < told.index(": no better plan was found")
    assert "nothing" not in told


@pytest.mark.parametrize(
    ("wanted", "left"),
    [(None, "what more devices, money or time would bring"), (3, "2 more changes"), (2, "1 more change"), (1, None)],
)
def test_changes_that_were_not_searched_are_counted(wanted: int | None, left: str | None) -> None:
    console = Console(file=io.StringIO(), width=200)
    print_rest(0 if wanted is None else 1, wanted, console)
    printed = console.file.getvalue()
    assert ("skipped to save time" in printed) == (left is not None)
    assert left is None or f"skipped to save time: {left};" in printed


class _Pipe(io.StringIO):
    """A stream that keeps what its reader has received."""

    received = ""

    def flush(self) -> None:
        self.received = self.getvalue()


@pytest.mark.parametrize(("after", "told"), [(1.0, "no better plan was found"), (0.5, "0.5 s instead of 1")])
def test_a_pipe_receives_each_finding_when_it_is_found(after: float, told: str) -> None:
    pipe = _Pipe()
    print_gain(Gain(change="more money", before=1.0, after=after, unit="s", text=told), Console(file=pipe, width=200))
    assert pipe.received == f"with more money: {told}\n"


def test_insisting_has_a_price_or_the_plan_uses_it_already(folder: Path) -> None:
    decision = json.loads((folder / "plan.json").read_text())["decision"]
    assert (decision["chosen"], decision["asked"]) == ("cheapest", "cheapest")
    left = [row["name"] for row in decision["left_out"]]
    for name in ("CPU-fast", "CPU-slow"):
        answer = called("explain", "plan.json", "--why-not", name, cwd=folder)
        expected = "insisting on it" if name in left else f"the plan uses {name}"
        assert expected in answer.stdout


def test_a_plan_file_is_explained_with_the_plans_that_it_holds_for_what_it_leaves_out(folder: Path) -> None:
    document = sc.read_plan(folder / "plan.json")
    assert document.decision is not None
    row = document.decision.left_out[0]
    assert row.plan is not None
    told = sc.explain(document, with_gains=False).left_out
    assert [each.runs_on for each in told if each.name == row.name] == [row.runs_on]
    assert told[0].total_usd == pytest.approx(row.total_usd)
    broken = replace(row.plan, pipelines=())
    forged = replace(document, decision=replace(document.decision, left_out=(replace(row, plan=broken),)))
    assert sc.explain(forged, with_gains=False).feasible


def test_a_plan_for_another_budget_is_refused_with_a_way_out_that_works(folder: Path) -> None:
    answer = called("up", "job.yaml", "--plan", "plan.json", "--budget", "0.5", "--dry-run", cwd=folder)
    assert answer.returncode == 2
    assert answer.stderr == (
        "error: plan.json was made for another job than job.yaml with --budget describes; set the limit in job.yaml, "
        "then write it again with 'sailor-cloud plan job.yaml -o plan.json'\n"
    )


def test_a_plan_file_with_samples_longer_than_the_models_positions_is_refused(folder: Path) -> None:
    document = sc.read_plan(folder / "plan.json")
    training = document.job.training.model_copy(update={"sequence_length": 4096})
    with pytest.raises(sc.RequestError, match=r"training\.sequence_length: is 4096, the model has 2048 positions"):
        verify(replace(document, job=document.job.model_copy(update={"training": training})))


def test_a_name_that_the_job_does_not_have_is_wrong_input(folder: Path) -> None:
    answer = called("explain", "plan.json", "--why-not", "H100-80", cwd=folder)
    assert answer.returncode == 2
    told = (
        "error: --why-not H100-80: the job does not allow H100-80; add it under 'resources' (H100-80 is offered by aws "
        "and gcp; the job names CPU-fast, "
    )
    assert told in answer.stderr


def test_claims_of_a_file_about_its_proof_and_other_plans_are_not_repeated(folder: Path) -> None:
    document = json.loads((folder / "plan.json").read_text())
    document |= {"status": "optimal", "optimality_gap": 0.0, "bound": 1e-9}
    document["prediction"]["waits"]["bubble_s"] = 1e9
    document["rejected"] = [{"what": "owned", "why": "owned", "ground": "memory"}]
    document["alternatives"] = []
    row = {"subject": "accelerator", "why": "owned", "runs_on": "owned"}
    document["decision"]["left_out"] = [{**row, "name": "CPU-fast"}, {**row, "name": "CPU-slow"}]
    (folder / "forged.json").write_text(json.dumps(document))
    answer = called("explain", "forged.json", "--time-limit", "5", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert "small  plan as given, not searched" in answer.stdout
    assert "owned" not in answer.stdout
    assert "100 % pipeline bubbles" not in answer.stdout
    used = {offer["accelerator"] for offer in document["inputs"]["offers"]}
    for name in ("CPU-fast", "CPU-slow"):
        told = called("explain", "forged.json", "--why-not", name, cwd=folder).stdout
        assert "owned" not in told
        assert (f"the plan uses {name}" in told, "insisting on it" in told) == (name in used, name not in used)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cpu", "did you mean 'CPU-fast' or 'CPU-slow'?"),
        ("LOCAL-A", "did you mean 'local-a'?"),
        ("zzz", "known: CPU-fast, CPU-slow, local, local-a, on-demand"),
    ],
)
def test_a_name_that_the_job_lacks_gets_a_suggestion(name: str, hint: str, folder: Path) -> None:
    answer = called("explain", "job.yaml", "--why-not", name, cwd=folder)
    assert answer.returncode == 2
    assert answer.stderr == f"error: --why-not {name}: the job does not name it ({hint})\n"


def test_an_accelerator_that_the_job_does_not_allow_is_named_in_full(folder: Path) -> None:
    answer = called("explain", "job.yaml", "--why-not", "a10g", cwd=folder)
    assert answer.returncode == 2
    assert answer.stderr == (
        "error: --why-not a10g: the job does not allow A10G-24; add it under 'resources' (A10G-24 is offered by aws; "
        "the job names CPU-fast, CPU-slow, local-a, on-demand, local)\n"
    )


def test_one_search_writes_several_files_each_in_the_form_of_its_ending(folder: Path) -> None:
    answer = called("plan", "job.yaml", "-o", "one.json", "-o", "one.html", "-o", "one.md", "-o", "one.txt", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("small  ")
    assert "why not" in answer.stdout
    assert "cost of the run" not in answer.stdout
    assert "wrote one.json, one.html, one.md, one.txt" in answer.stderr
    assert "sailor-cloud up job.yaml --plan one.json" in answer.stderr
    quiet = called("plan", "job.yaml", "--json", "-o", "one.json", cwd=folder)
    assert (quiet.returncode, quiet.stdout) == (0, (folder / "one.json").read_text())
    assert json.loads(quiet.stdout)["status"] == "optimal"
    assert "wrote one.json" in quiet.stderr
    both = called("plan", "job.yaml", "--json", "-o", "one.html", cwd=folder)
    assert json.loads(both.stdout)["status"] == "optimal"
    begins = {name: (folder / name).read_text()[:15] for name in ("one.html", "one.md", "one.txt")}
    assert begins["one.html"] == "<!doctype html>"
    assert begins["one.md"].startswith(("**", "#"))
    assert begins["one.txt"].startswith("small ")


def test_python_explains_a_plan_by_its_path_as_the_command_does(folder: Path, tmp_path: Path) -> None:
    found = sc.explain(folder / "plan.json", with_gains=False)
    assert found.job == "small"
    assert found == sc.explain(sc.read_plan(folder / "plan.json"), with_gains=False)
    with pytest.raises(sc.RequestError, match="can't read plan"):
        sc.explain(str(tmp_path / "gone.json"))


def test_a_job_in_json_is_explained_as_a_job(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(yaml.safe_load(JOB)))
    assert sc.explain(tmp_path / "job.json", with_gains=False).verdict == "optimal"


@pytest.mark.parametrize("name", ["plan", "explain", "compare", "simulate", "simulate_layout", "offers", "up"])
def test_help_of_a_function_shows_no_address_in_memory(name: str) -> None:
    assert " at 0x" not in str(inspect.signature(getattr(sc, name)))


def test_reasons_are_sentences_and_no_used_accelerator_seems_ruled_out(folder: Path) -> None:
    document = sc.read_plan(folder / "plan.json")
    assert document.plan is not None
    other = Alternative(
        label="all CPU-slow",
        plan=document.plan,
        iteration_s=1000.0,
        throughput_iterations_per_s=0.001,
        usd_per_hour=1.0,
        total_usd=None,
        duration_s=None,
    )
    (reason,) = (line for line in reasons(replace(document, alternatives=(other,))) if "CPU-slow is" in line)
    assert reason.startswith("a plan with all CPU-slow is ")
    assert reason.endswith("slower")
    job = ROOT / "examples" / "llama3-8b-two-clouds.yaml"
    ruled = sc.explain(job, with_gains=False, clock=CountedClock(), time_limit_s=600.0).ruled_out
    memory = [row for row in ruled if row.ground == "memory"]
    assert memory
    assert all(row.what.startswith("the whole model on one ") for row in memory)
    assert all("with stages or tp it may fit" in row.why for row in memory)
