from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import COMMAND, ROOT, sailor
from factories.documents import document

JOB = str(ROOT / "examples" / "quickstart.yaml")
PLAN = ("plan", JOB, "--as-of", "2026-11-21")

pytestmark = pytest.mark.xdist_group("plans")


def on_a_terminal(folder: Path, environment: Mapping[str, str]) -> str:
    """Return what the report of a plan looks like on a pseudo-terminal, control sequences and all."""
    (folder / "plan.json").write_text(document().to_json())
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [str(COMMAND), "simulate", "plan.json"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", **environment},
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            read = os.read(controller, 65536)
        except OSError:
            break
        if not read:
            break
        shown += read
    os.close(controller)
    assert process.wait(timeout=60) == 0
    return shown.decode()


def test_a_pipe_gets_neither_colour_nor_trailing_blanks() -> None:
    shown = sailor(*PLAN, environment={"LANG": "C.UTF-8"}).stdout
    assert "\x1b" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert "█" in shown


def test_a_terminal_gets_colour_unless_no_color_is_set(tmp_path: Path) -> None:
    assert "\x1b[32m" in on_a_terminal(tmp_path, {"COLUMNS": "100"})
    plain = on_a_terminal(tmp_path, {"COLUMNS": "100", "NO_COLOR": "1"})
    assert not any(f"\x1b[3{colour}" in plain for colour in range(8))


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_columns_sets_the_width(columns: int) -> None:
    lines = called(*PLAN, environment={"COLUMNS": str(columns), "LANG": "C.UTF-8"}).stdout.splitlines()
    assert max(len(line) for line in lines) <= columns


def test_a_width_of_zero_is_no_width() -> None:
    command = ("bandwidth", "us-central1-a", "us-central1-b")
    shown = called(*command, environment={"COLUMNS": "0"}).stdout
    assert shown == called(*command, environment={"COLUMNS": "120"}).stdout != ""


def test_a_narrow_report_folds_where_a_wide_one_does_not() -> None:
    narrow = called(*PLAN, environment={"COLUMNS": "80"}).stdout
    wide = called(*PLAN, environment={"COLUMNS": "140"}).stdout
    assert "zone, nodes, market" in narrow
    assert "zone, nodes, market" not in wide


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_encoding_without_bars_gets_plain_characters(encoding: str) -> None:
    answer = called(*PLAN, encoding=encoding)
    assert answer.returncode == 0, answer.stderr
    assert "####" in answer.stdout
    assert "?" not in answer.stdout
    assert ("+/-" if encoding == "ascii" else "±") in answer.stdout


def test_a_process_on_an_ascii_terminal_writes_ascii() -> None:
    shown = sailor("schema", "job", environment={"PYTHONIOENCODING": "ascii"})
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.isascii()
