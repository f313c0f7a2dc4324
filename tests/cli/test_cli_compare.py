"""Published planners by name: `plan --strategy` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from factories.called import called
from factories.counted_clock import CountedClock
from sailor_cloud import compare, plan
from sailor_cloud.errors import RequestError
from sailor_cloud.report.comparison.planners import as_html, as_json_text, as_markdown, as_text
from sailor_cloud.report.plan.facts import proof

JOB = """
name: small
model: {model_type: gpt2, vocab_size: 5000, hidden_size: 512, num_hidden_layers: 3, num_attention_heads: 8,
        max_position_embeddings: 512}
training: {global_batch_size: 32, sequence_length: 512, precision: fp32}
resources:
  - {provider: gcp, zones: [us-central1-a], markets: [on-demand], accelerators: {A100-40: 4, V100-16: 4}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_a_plan_by_a_strategy_says_whose_it_is(folder: Path) -> None:
    answer = called("plan", "job.yaml", "--strategy", "varuna", "--json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert (document["status"], document["optimality_gap"]) == ("feasible", None)
    run = document["search"]["strategy"]
    assert (run["name"], run["oracle"]) == ("varuna", False)
    assert run["estimate_s"] > 0
    assert all(stage["recompute"] for pipeline in document["plan"]["pipelines"] for stage in pipeline["stages"])
    shown = called("plan", "job.yaml", "--strategy", "varuna", "--oracle", cwd=folder)
    assert "by varuna: our simulator's choice among its plans, 0 plans before it out of memory" in shown.stdout


def test_a_strategy_s_plan_can_be_simulated_and_carried_on(folder: Path) -> None:
    called("plan", "job.yaml", "--strategy", "amp", "-o", "plan.json", cwd=folder)
    answer = called("simulate", "plan.json", cwd=folder)
    assert answer.returncode == 0, answer.stderr


def test_planners_are_compared_in_every_form(folder: Path) -> None:
    asked = ("compare", "job.yaml", "--strategies", "varuna,amp", "--no-oracle")
    table = called(*asked, cwd=folder)
    assert table.returncode == 0, table.stderr
    names = [line.split()[0] for line in table.stdout.splitlines()[1:4]]
    assert names[0] == "sailor-cloud"
    assert sorted(names[1:]) == ["amp", "varuna"]
    raw = json.loads(called(*asked, "--json", cwd=folder).stdout)
    ours, *others = raw["contenders"]
    assert all(ours["iteration_s"] <= other["iteration_s"] * 1.002 for other in others)
    assert "| sailor-cloud |" in called(*asked, "--format", "markdown", cwd=folder).stdout
    assert json.loads(called(*asked, "--json", "-o", "page.html", cwd=folder).stdout)["contenders"]
    page = (folder / "page.html").read_text()
    assert page.count(" iterations/s, ") == 3
    assert 'class="echart"' in page
    assert "planners compared" in page


def test_a_strategy_s_plan_keeps_the_limits_as_probably_as_the_job_asks(folder: Path) -> None:
    job = JOB.replace("precision: fp32", "precision: fp32, steps: 20000")

    def planned(limits: str) -> dict[str, Any]:
        (folder / "job.yaml").write_text(job + f"constraints: {{{limits}}}\n")
        return dict(json.loads(called("plan", "job.yaml", "--strategy", "varuna", "--json", cwd=folder).stdout))

    deadline = int(planned("")["prediction"]["duration_s"] * 1.01) + 1
    assert 0.4 < planned(f"deadline: {deadline}s")["totals"]["within_limits"] < 0.7
    sure = planned(f"deadline: {deadline}s, probability: 0.9")
    assert sure["infeasibility"]["message"].endswith("break a limit of the job")


def test_the_time_limit_that_ends_a_strategy_is_reported(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("A100-40: 4", "A100-40: 64"))
    shown = called("plan", "job.yaml", "--strategy", "varuna", "--time-limit", "0.001", cwd=folder)
    assert shown.returncode == 3, shown.stderr
    assert "the time limit ended varuna before it found a plan that fits" in shown.stdout


def test_every_form_says_whose_search_the_time_limit_ended(folder: Path) -> None:
    told = "ended by the time limit"
    for limit_s, notes in ((1e9, ["", ""]), (150.0, [told, ""])):
        if limit_s < 1e9:
            (folder / "job.yaml").write_text(JOB.replace("A100-40: 4", "A100-40: 64"))
        found = compare(
            folder / "job.yaml", strategies=["varuna"], oracle=False, clock=CountedClock(), time_limit_s=limit_s
        )
        assert [each.note for each in found.contenders] == notes
        for form in (as_text, as_markdown, as_html, as_json_text):
            assert form(found).count(told) == notes.count(told)
    short = plan(folder / "job.yaml", clock=CountedClock(), time_limit_s=150.0)
    assert proof(short).endswith(told)


def test_a_comparison_holds_the_other_planners_where_our_time_was_too_short_for_a_plan(folder: Path) -> None:
    found = compare(folder / "job.yaml", strategies=["varuna"], clock=CountedClock(looks=10), time_limit_s=1.0)
    ours, *others = found.contenders
    assert (ours.name, ours.iteration_s, len(others)) == ("sailor-cloud", None, 2)
    told = "no plan was found within the time limit of 1 s; allow more time"
    assert ours.note == told
    for form in (as_text, as_markdown, as_json_text, as_html):
        assert " ".join(form(found).split()).count("no plan was found within") == 1


def test_a_job_none_of_whose_gpus_can_be_used_says_so(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("fp32", "bf16").replace("A100-40: 4, ", ""))
    answer = called("plan", "job.yaml", "--strategy", "amp", cwd=folder)
    assert answer.returncode == 3, answer.stderr
    assert "infeasible: no node of the job's resources can be used" in answer.stdout
    assert "has no bf16" in answer.stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("plan", "job.yaml", "--strategy", "metsi"), "no strategy 'metsi'; did you mean 'metis'?"),
        (("plan", "job.yaml", "--oracle"), "oracle belongs to strategy; give both"),
        (("plan", "job.yaml", "--prove", "--engine", "megatron"), "and needs engine sailor or sailor-artifact"),
        (
            ("plan", "job.yaml", "--strategy", "amp", "--top", "3"),
            "strategy runs another planner's search; restrictions, top",
        ),
        (("compare", "job.yaml", "--strategies", ","), "--strategies names no planner; leave it out to compare all"),
        (("compare", "job.yaml", "-o", "page.docx"), "error: can't tell the format of page.docx; give it a suffix"),
        (("compare", "job.yaml", "--strategies", "amp,nobody"), "no strategy 'nobody'; known: sailor-paper, metis"),
    ],
)
def test_wrong_names_exit_2(command: tuple[str, ...], message: str, folder: Path) -> None:
    answer = called(*command, cwd=folder)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "iterations/s" not in answer.stderr  # before any search


@pytest.mark.parametrize(
    "options", [{"top": 3}, {"frontier": True}, {"restrictions": "one-zone"}, {"choose": "fastest"}]
)
def test_options_of_our_search_are_refused_with_another_planner_in_python(
    options: dict[str, Any], folder: Path
) -> None:
    with pytest.raises(RequestError, match="restrictions, top, frontier and choose work with ours only"):
        plan(folder / "job.yaml", strategy="amp", **options)
    with pytest.raises(RequestError, match="oracle belongs to strategy"):
        plan(folder / "job.yaml", oracle=True)


def test_a_comparison_shows_each_planner_as_soon_as_it_has_a_plan(folder: Path) -> None:
    rows: list[str] = []
    found = compare(folder / "job.yaml", strategies=["varuna"], oracle=False, found=lambda row: rows.append(row.name))
    assert rows == ["sailor-cloud", "varuna"]
    assert {each.name for each in found.contenders} == set(rows)
    answer = called("compare", "job.yaml", "--strategies", "varuna", "--no-oracle", cwd=folder)
    assert [line.partition(":")[0] for line in answer.stderr.splitlines()] == rows
    assert all("iterations/s, " in line for line in answer.stderr.splitlines())


def test_a_wrong_choice_in_python_names_the_three(folder: Path) -> None:
    with pytest.raises(RequestError, match="choose is 'best'; it may be cheapest, balanced, fastest"):
        plan(folder / "job.yaml", choose="best")
