"""What a file, a cloud or a rank says is shown without anything that steers a terminal."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import unicodedata
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from factories.commands import COMMAND, ROOT
from sailor_cloud.cli.echo import PersistentStream, discard_output, echo
from sailor_cloud.cli.runs.logs import _as_shown
from sailor_cloud.errors import is_control
from sailor_cloud.report.console import PlainConsole
from sailor_cloud.report.run.live import PlainLines

EVIL = "a\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202eb"
SHOWN = "a\\x1b[2J\\x1b]0;owned\\x07\\r\\u009b31m\\u202eb"
_TURNING = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
_MARKS = ("\N{LEFT-TO-RIGHT MARK}", "\N{RIGHT-TO-LEFT MARK}", "\N{ARABIC LETTER MARK}")


def test_control_characters_are_those_that_unicode_calls_so_and_those_that_turn_text() -> None:
    for number in range(0x10000):
        character = chr(number)
        turns = unicodedata.bidirectional(character) in _TURNING or character in _MARKS
        told = turns or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        assert is_control(character) == (told and character not in "\n\t"), hex(number)


def test_printed_text_shows_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL)
    PlainLines(lambda line: echo(line, err=True), None).note(EVIL)  # type: ignore[arg-type]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_json_stays_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    echo(json.dumps({"name": EVIL}, ensure_ascii=False, indent=2))
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": EVIL}
    assert not any(map(is_control, out))


def test_a_console_keeps_its_own_colours_and_none_of_a_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=80, force_terminal=True, color_system="standard")
    table = Table("name")
    table.add_row(Text(EVIL, style="green"))
    console.print(table)
    console.print(f"error: {EVIL}", style="red", markup=False)
    assert "\x1b[32m" in shown.getvalue()
    assert "\x1b[31m" in shown.getvalue()
    assert not any(trace in shown.getvalue() for trace in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e"))
    assert "owned\\u009b31m\\u202eb" in shown.getvalue()


def test_lines_of_logs_lose_their_colours_and_show_a_progress_bar_as_it_was_drawn_last() -> None:
    assert _as_shown("\x1b[1;32mloss\x1b[0m 2.5") == "loss 2.5"
    assert _as_shown("10 %\r50 %\r100 %\r") == "100 %"
    assert _as_shown("\x1b[2Jgone") == "\x1b[2Jgone"


def test_commands_print_in_no_other_way() -> None:
    """The rest of the command line is `PlainConsole`, and main's own errors, which are escaped where they are made."""
    modules = [path for path in (ROOT / "sailor_cloud").rglob("*.py") if path.name != "echo.py"]
    assert [
        path.name for path in modules if re.search(r"click\.(echo|secho)\(|[^.\w]Console\(", path.read_text())
    ] == []


def test_a_stream_that_nobody_reads_any_more_keeps_no_writer_from_going_on() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", buffering=1) as stream:
        lasting = PersistentStream(stream)
        os.close(reader)
        assert lasting.write("a line\n") == 7
        print("another", file=lasting, flush=True)
    with Path("/dev/full").open("w", buffering=1) as full:
        with pytest.raises(OSError, match="No space left"):
            PersistentStream(full, BrokenPipeError).write("a line\n")
        discard_output(full)


def test_wrong_input_keeps_its_exit_code_where_stderr_can_t_be_written(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([COMMAND, "plan", "gone.yaml"], stderr=full, cwd=tmp_path, check=False)
    assert done.returncode == 2
