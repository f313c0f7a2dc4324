"""What people get wrong: every fault is told on one line, with the place and the way out, and exits with 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import ROOT

QUICKSTART = (ROOT / "examples" / "quickstart.yaml").read_text()
# What to replace in the quickstart by what, or a whole text, and what is said about it.
WRONG_JOBS = {
    "empty": ("", "is empty ('sailor-cloud init' writes a job file)"),
    "a list": ("- 1", "must be a mapping"),
    "unclosed": ("name: [x", "is not YAML: while parsing a flow sequence: expected ',' or ']'"),
    "tab": ("name: x\n\tgoal: y", "is not YAML: while scanning for the next token"),
    "field": ("goal:", "gaol:", "gaol: is not a field here (did you mean 'goal'?)"),
    "goal": (
        "maximize-throughput",
        "maximise-throughput",
        "goal: is 'maximise-throughput' (did you mean 'maxim",
    ),
    "negative": (
        r"budget_usd: [\d.]+",
        "budget_usd: -5",
        "budget_usd: must be greater than 0, got -5",
    ),
    "unit of money": (
        r"budget_usd: [\d.]+",
        "budget_usd: 5 EUR",
        "budget_usd: must be a valid number",
    ),
    "unit of time": (r"deadline: \w+", "deadline: 2 weeks", "'2 weeks' is not a duration; write for example 90s"),
    "market": (
        r"\[on-demand\]",
        "[on-demnad]",
        "markets[0]: is 'on-demnad' (did you mean 'on-demand'? one of",
    ),
    "provider": (
        "provider: local",
        "provider: gpc",
        "provider: is 'gpc' (did you mean 'gcp'? one of",
    ),
    "zone": ("local-a,", "locl-a,", "'locl-a' is not a known zone of local (did you mean 'local-a'"),
    "no list": (r"zones: \[.*\]", "zones: local-a", "zones: must be a list, got 'local-a' (write [local-a])"),
    "no mapping": (
        r"(?s)model:\n.*(?=data:)",
        "model: gpt2\n",
        "model: must be a mapping, got 'gpt2' (write {preset: gpt2})",
    ),
    "precision": ("precision: fp32", "precision: float32", "training.precision: is 'float32' (one of "),
}


@pytest.mark.parametrize("fault", WRONG_JOBS)
def test_each_fault_of_a_job_file_is_one_line_that_names_its_place_and_the_way_out(fault: str, tmp_path: Path) -> None:
    *change, message = WRONG_JOBS[fault]
    text = re.sub(change[0], change[1], QUICKSTART, count=1) if len(change) == 2 else change[0]
    assert text != QUICKSTART
    (tmp_path / "job.yaml").write_text(text)
    answer = called("plan", "job.yaml", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("plan", "."), "'.' is a directory"),
        (("diff", "empty", "empty"), "(a plan document is what 'sailor-cloud plan JOB -o plan.json' writes)"),
        (("simulate", "job.yaml"), "job.yaml is a job file; give --layout and --nodes with it"),
        (("up", "job.yaml", "--plan", "empty", "--yes"), "empty: is not JSON"),
        (("up", "job.yaml", "--plan", "gone.json"), "can't read plan gone.json: No such file"),
        (("plan", "job.yaml", "-o", "gone/plan.json"), "can't write gone/plan.json: there is no folder gone"),
        (("plan", "job.yaml", "--format", "htlm"), "'htlm' is not one of 'table', 'json', 'markdown', 'html'"),
        (("plan", "job.yaml", "--as-of", "yesterday"), "'yesterday' does not match the format"),
        (("plan", "job.yaml", "--pricing", "gone"), "'gone' does not exist"),
        (("up", "job.yaml", "--budget", "-5"), "-5.0 is not in the range x>0"),
        (("prices", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("explain", "empty"), "empty: is empty"),
    ],
)
def test_wrong_files_and_values_exit_2_with_the_reason_on_one_line(
    command: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(QUICKSTART)
    (tmp_path / "empty").touch()
    answer = called(*command, cwd=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert message in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
