"""Produces every message of the troubleshooting table."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from factories.commands import ROOT, sailor
from factories.documents import document

TABLE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = re.findall(r"^\| `([^|]+?)` \|", TABLE, re.MULTILINE)
QUICKSTART = (ROOT / "examples" / "quickstart.yaml").read_text()

Answer = subprocess.CompletedProcess[str]


def planning(folder: Path, text: str) -> Answer:
    (folder / "job.yaml").write_text(text)
    return sailor("plan", "job.yaml", "--as-of", "2026-11-21", cwd=folder, environment={"COLUMNS": "200"})


def gcp_job(folder: Path) -> str:
    assert sailor("init", "--preset", "gcp", "--no-schema", cwd=folder).returncode == 0
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").unlink()
    return text


def replaced(old: str, new: str) -> Callable[[Path], Answer]:
    def produce(folder: Path) -> Answer:
        text = re.sub(old, new, QUICKSTART)
        assert text != QUICKSTART
        return planning(folder, text)

    return produce


def gcp_replaced(old: str, new: str) -> Callable[[Path], Answer]:
    def produce(folder: Path) -> Answer:
        text = gcp_job(folder)
        assert old in text
        return planning(folder, text.replace(old, new))

    return produce


def up_with_another_plan(folder: Path) -> Answer:
    (folder / "plan.json").write_text(document().to_json())
    return sailor("up", str(ROOT / "examples" / "quickstart.yaml"), "--plan", "plan.json", "--yes", cwd=folder)


def up_without_a_terminal(folder: Path) -> Answer:
    return sailor("up", str(ROOT / "examples" / "quickstart.yaml"), home=folder / "home", answers="")


def plan_of_another_version(folder: Path) -> Answer:
    (folder / "old.json").write_text(json.dumps({"schema_version": 0}))
    return sailor("diff", "old.json", "old.json", cwd=folder)


def costlier(folder: Path) -> Answer:
    base = json.loads(document().to_json())
    (folder / "base.json").write_text(json.dumps(base))
    base["cost"]["total_usd"] += 5
    (folder / "head.json").write_text(json.dumps(base))
    return sailor("diff", "base.json", "head.json", "--fail-above-usd", "1", cwd=folder)


def init_twice(folder: Path) -> Answer:
    assert sailor("init", "--preset", "local", cwd=folder).returncode == 0
    return sailor("init", "--preset", "local", cwd=folder)


PRODUCERS: dict[str, Callable[[Path], Answer]] = {
    "can't read job file nowhere.yaml: No such file or directory": lambda folder: sailor(
        "plan", "nowhere.yaml", cwd=folder
    ),
    "is not a field here (did you mean 'global_batch_size'?)": replaced("global_batch_size", "global_batch"),
    "is missing (add 'sequence_length')": replaced(r" *sequence_length: \d+\n", ""),
    "'us-central1-z' is not a known zone of gcp": gcp_replaced("us-central1-b", "us-central1-z"),
    "'A100' is not a known accelerator offered by gcp": gcp_replaced("A100-40", "A100"),
    "'gpt5' is not a preset": gcp_replaced("preset: opt-350m", "preset: gpt5"),
    "is not a duration; write for example 90s, 10m, 24h or 1h30m": replaced("deadline: 10m", "deadline: soon"),
    "infeasible: budget_usd": replaced(r"budget_usd: [\d.]+", "budget_usd: 0.0001"),
    "infeasible: does not fit in memory: quota 1 CPU-fast <": replaced(
        r"num_hidden_layers: \d+", "num_hidden_layers: 200"
    ),
    "STALE: prices from": gcp_replaced("name: opt-350m", "name: stale"),
    "was made for another job than": up_with_another_plan,
    "this version reads 1": plan_of_another_version,
    "there is no terminal to ask on; give --yes": up_without_a_terminal,
    "no command 'paln'; did you mean 'plan'?": lambda folder: sailor("paln"),
    "no run 'nope'": lambda folder: sailor("down", "nope", home=folder),
    "can't read plan missing.json": lambda folder: sailor("diff", "missing.json", "missing.json", cwd=folder),
    "job.yaml is there already; give --force": init_twice,
    "the change costs": costlier,
}


def test_every_message_of_the_table_has_a_producer() -> None:
    assert set(MESSAGES) == set(PRODUCERS)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_appears_as_the_table_quotes_it(message: str, tmp_path: Path) -> None:
    answer = PRODUCERS[message](tmp_path)
    assert message in answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
