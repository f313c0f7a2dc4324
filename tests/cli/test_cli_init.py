from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from factories.called import called, searches_end_after
from factories.commands import COMMAND


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("preset", ["local", "gcp", "aws"])
def test_a_preset_writes_a_job_file_that_plans(preset: str, tmp_path: Path) -> None:
    answer = called("init", "--preset", preset, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "next: sailor-cloud plan job.yaml" in answer.stdout
    text = (tmp_path / "job.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=sailor-cloud-job.schema.json\n")
    assert json.loads((tmp_path / "sailor-cloud-job.schema.json").read_text())["title"] == "sailor-cloud job file"
    # Pages of the documentation search the other two to the end.
    with searches_end_after(600) if preset == "aws" else nullcontext():
        planned = called("plan", "job.yaml", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr + planned.stdout


def test_without_schema_only_the_job_is_written(tmp_path: Path) -> None:
    answer = called("init", "--preset", "local", "--no-schema", "--json", cwd=tmp_path)
    assert json.loads(answer.stdout) == {"written": ["job.yaml"]}
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_a_hyphen_as_output_prints_the_job_file_and_writes_nothing(tmp_path: Path) -> None:
    answer = called("init", "--preset", "gcp", "-o", "-", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "provider: gcp" in answer.stdout
    assert not answer.stdout.startswith("# yaml-language-server")
    assert list(tmp_path.iterdir()) == []
    both = called("init", "--preset", "gcp", "-o", "-", "--json", cwd=tmp_path)
    assert both.returncode == 2
    assert "-o - and --json both print on standard output" in both.stderr


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("mine")
    answer = called("init", "--preset", "local", cwd=tmp_path)
    assert answer.returncode == 2
    assert "job.yaml already exists; give --force" in answer.stderr
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert called("init", "--preset", "local", "--force", cwd=tmp_path).returncode == 0


def test_without_a_terminal_a_preset_is_needed(tmp_path: Path) -> None:
    answer = called("init", cwd=tmp_path, answers="")
    assert answer.returncode == 2
    assert "there is no terminal to ask on; give --preset" in answer.stderr


def test_questions_are_asked_on_a_terminal_and_wrong_zones_are_asked_again(tmp_path: Path) -> None:
    replies = ["gcp", "mine", "gpt2", "us-central1-q", "us-central1-a", "A100-40", "4", "minimize-cost", "70", "6h"]
    shown = converse(tmp_path, replies)
    assert "us-central1-q is not known" in shown
    text = (tmp_path / "job.yaml").read_text()
    for expected in (
        "name: mine",
        "preset: gpt2",
        "zones: [us-central1-a]",
        "{A100-40: 4}",
        "goal: minimize-cost",
        "budget_usd: 70",
        "deadline: 6h",
    ):
        assert expected in text


def test_a_zone_name_of_an_account_gets_the_ids_of_its_region(tmp_path: Path) -> None:
    replies = ["aws", "mine", "gpt2", "us-east-1a", "use1-az1", "A100-40", "4", "minimize-cost", "70", "6h"]
    shown = converse(tmp_path, replies)
    assert "us-east-1a is not known: zone names with a letter mean another zone in every AWS account" in shown


def converse(folder: Path, replies: list[str]) -> str:
    """Answer the questions of `init` on a pseudo-terminal, one line each, and return what was shown."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [str(COMMAND), "init"],
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={"PATH": "/usr/bin:/bin", "TERM": "dumb"},
    )
    os.close(terminal)
    shown, pending, deadline = "", list(replies), time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([controller], [], [], 0.2)
        if ready:
            try:
                read = os.read(controller, 4096).decode()
            except OSError:
                break
            shown += read
            if pending and read.rstrip(" ").endswith(":"):
                os.write(controller, f"{pending.pop(0)}\n".encode())
        elif process.poll() is not None:
            break
    os.close(controller)
    assert process.wait(timeout=60) == 0, shown
    return shown
