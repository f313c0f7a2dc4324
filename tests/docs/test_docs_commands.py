"""Runs the commands that the documentation shows, page by page, and compares what they print."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import COMMAND, ROOT
from factories.quick_runs import EXTRA_PATHS, RANKS
from sailor_cloud.launch.fleet import agents

DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name != "design.md")
ANYTHING = "..."


@dataclass(frozen=True)
class Shown:
    """A command of a page with the lines that stand below it."""

    command: str
    expected: tuple[str, ...]
    exit_code: int
    slow: bool


def commands(page: str) -> list[Shown]:
    found = []
    text = (DOCS / page).read_text()
    for match in re.finditer(r"(<!-- slow -->\n)?```console\n(.*?)```", text, re.DOTALL):
        current: list[str] | None = None
        for line in match[2].splitlines():
            if line.startswith("$ "):
                command, _, note = line[2:].partition("  # exits with ")
                current = []
                found.append((command, current, int(note or 0), bool(match[1])))
            elif current is not None:
                current.append(line)
    return [Shown(command, tuple(lines), code, slow) for command, lines, code, slow in found]


def matches(expected: tuple[str, ...], shown: str) -> bool:
    """Tell whether the lines occur in order; "..." alone stands for any lines, inside a line for any text."""
    pattern = r"\A"
    for line in expected:
        if line == ANYTHING:
            pattern += r"(?:.*\n)*?"
            continue
        parts = [r"\s+".join(re.escape(word) for word in part.split()) for part in line.split(ANYTHING)]
        pattern += r"\s*" + r".*".join(parts) + r".*\n"
    return re.search(pattern, shown) is not None


@pytest.mark.xdist_group("plans")
@pytest.mark.parametrize("page", [page for page in PAGES if any(not shown.slow for shown in commands(page))])
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    for shown in commands(page):
        if not shown.slow:
            check(shown, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial_trains_to_the_receipt(tmp_path: Path) -> None:
    (slow,) = [shown for shown in commands("index.md") if shown.slow]
    assert called("init", "--preset", "local", cwd=tmp_path).returncode == 0
    job = tmp_path / "job.yaml"
    assert "steps: 100 " in job.read_text()
    # As far as the receipt a short training goes the same way.
    job.write_text(job.read_text().replace("steps: 100 ", "steps: 8 "))
    check(slow, tmp_path)


def check(shown: Shown, folder: Path) -> None:
    environment = {
        "PATH": f"{COMMAND.parent}:/usr/bin:/bin",
        "SAILOR_CLOUD_HOME": str(folder / "home"),
        "HOME": str(folder),
        "COLUMNS": "200",
        "LANG": "C.UTF-8",
    }
    words = shlex.split(shown.command)
    answer: subprocess.CompletedProcess[str]
    if words[0] == "sailor-cloud" and not shown.slow:
        answer = called(*words[1:], home=folder / "home", cwd=folder, environment=environment)
    else:
        answer = subprocess.run(
            ["bash", "-c", shown.command], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
        )
    assert answer.returncode == shown.exit_code, (shown.command, answer.stdout, answer.stderr)
    assert matches(shown.expected, answer.stdout), (shown.command, shown.expected, answer.stdout)


def test_commands_that_need_an_account_name_options_that_exist() -> None:
    mentioned = set()
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
            mentioned |= {line for line in block.splitlines() if line.startswith("sailor-cloud ")}
        mentioned |= set(re.findall(r"`(sailor-cloud [a-z]+[^`]*)`", (DOCS / page).read_text()))
    for line in sorted(mentioned):
        words = shlex.split(line)[1:]
        helped = called(words[0], "--help")
        assert helped.returncode == 0, f"{line}: {helped.stderr}"
        for option in (word for word in words if word.startswith("--")):
            assert option in helped.stdout, line


def test_the_examples_of_the_python_api_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `up` trains with is short: ranks that need no torch."""
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    monkeypatch.setattr(agents, "RANK_MODULE", RANKS)
    monkeypatch.setattr(agents, "EXTRA_PATHS", EXTRA_PATHS)
    result = doctest.testfile(str(DOCS / "api.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 25
    assert result.failed == 0


def test_matching_is_strict_where_nothing_is_left_out() -> None:
    assert matches(("a  b", ANYTHING, "d"), "a b\nc\nd\n")
    assert not matches(("a", "d"), "a\nc\nd\n")
    assert matches(("total ... USD",), "total  5.00 USD\n")
