from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import ROOT
from sailor_cloud.cli.main import COMMANDS

# A group's subcommands have the option.
GROUPS = {"prices": ("list", "refresh", "diff", "history")}

WAIT = """
import sys
from sailor_cloud.cli.terminal.waiting import waiting
with waiting("searching", patience_s=float(sys.argv[1])) as show:
    sys.stdin.readline()
    show(3, 12, "judging")
    sys.stdin.readline()
"""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_shows_an_example(name: str) -> None:
    for words in [(name,), *((name, part) for part in GROUPS.get(name, ()))]:
        shown = called(*words, "--help", environment={"COLUMNS": "120"}).stdout
        lines = [line.strip() for line in shown.splitlines() if not line.startswith("Usage:")]
        assert [line for line in lines if line.startswith(f"sailor-cloud {' '.join(words)}")], shown


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_result_comes_as_json_too(name: str) -> None:
    for words in [(name, part) for part in GROUPS.get(name, ())] or [(name,)]:
        assert "--json" in called(*words, "--help").stdout, words


def test_an_infeasible_up_prints_one_json_document_and_buys_nothing(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    job = tmp_path / "job.yaml"
    job.write_text(re.sub(r"budget_usd: [\d.]+", "budget_usd: 0.0001", text))
    answer = called("up", str(job), "--json", "--yes", home=tmp_path / "home")
    assert answer.returncode == 3, answer.stderr
    assert json.loads(answer.stdout)["infeasibility"]["constraint"] == "budget_usd"
    assert "infeasible" in answer.stderr


def wait_on_a_terminal(patience_s: float, *signs: bytes) -> str:
    """Return what a wait draws that advances a step and ends, as soon as each of some signs has been drawn."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT, str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(terminal)
    assert process.stdin is not None
    shown = b""
    with process.stdin as steps:
        for sign in signs:
            while sign not in shown:
                shown += os.read(controller, 65536)
            steps.write(b"\n")
            steps.flush()
    while True:
        try:
            shown += os.read(controller, 65536)
        except OSError:
            break
    os.close(controller)
    assert process.wait(timeout=60) == 0
    return shown.decode()


def test_long_work_shows_progress_and_leaves_no_trace() -> None:
    shown = wait_on_a_terminal(0.0, b"searching", b" 25 %")
    first, _, then = shown.partition("judging")
    assert "searching" in first
    assert "%" not in first
    assert " 25 %" in then
    assert shown.endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))


def test_short_work_shows_no_progress() -> None:
    assert wait_on_a_terminal(60.0) == ""


def test_a_pipe_sees_no_progress() -> None:
    command = [sys.executable, "-c", WAIT, "0"]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout + answer.stderr == ""


def test_the_package_says_that_it_is_typed() -> None:
    import sailor_cloud

    assert (Path(sailor_cloud.__file__).parent / "py.typed").exists()
    assert {"compare", "explain", "plan", "simulate", "simulate_layout", "up"} <= set(sailor_cloud.__all__)
    for name in sailor_cloud.__all__:
        assert callable(getattr(sailor_cloud, name))


TALL = """
import sys
from sailor_cloud.cli.terminal.waiting import waiting
with waiting("searching for the best plan") as show:
    show.screen("\\n".join(f"line {number}." for number in range(60)))
    show(42, 100)
    sys.stdin.readline()
"""


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 20)])
def test_a_screen_taller_than_the_terminal_is_cropped_and_leaves_nothing(columns: int, lines: int) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TALL],
        stdin=subprocess.PIPE,
        stdout=terminal,
        stderr=terminal,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)},
    )
    os.close(terminal)
    assert process.stdin is not None
    shown = b""
    with process.stdin as steps:
        while b"line 0." not in shown:
            shown += os.read(controller, 65536)
        steps.write(b"\n")
    while True:
        try:
            shown += os.read(controller, 65536)
        except OSError:
            break
    os.close(controller)
    assert process.wait(timeout=60) == 0
    drawn = shown.decode()
    assert "line 0." in drawn
    assert f"line {lines - 4}." in drawn
    assert f"line {lines - 3}." not in drawn
    frames = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", frame) for frame in drawn.split("line 0.")[1:]]
    assert all(frame.rstrip().count("\n") == lines - 2 for frame in frames), frames
    assert all(len(line) <= columns - 2 for frame in frames for line in re.split(r"[\r\n]+", frame)), frames
    assert drawn.rpartition("100 %")[2].count("\x1b[1A\x1b[2K") == lines - 1
