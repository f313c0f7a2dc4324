from __future__ import annotations

from pathlib import Path

import pytest

from factories.called import called
from factories.commands import sailor


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    answer = called("completion", shell)
    assert answer.returncode == 0, answer.stderr
    assert f"_SAILOR_CLOUD_COMPLETE={shell}_complete" in answer.stdout


def complete(words: str, position: int, *, home: Path | None = None, program: bool = False) -> list[str]:
    environment = {"_SAILOR_CLOUD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    return (sailor if program else called)(environment=environment, home=home).stdout.splitlines()


def test_commands_complete() -> None:
    assert "plain,plan" in complete("sailor-cloud pl", 1, program=True)
    assert complete("sailor-cloud sta", 1) == ["plain,status"]


def test_options_and_their_values_complete() -> None:
    assert "plain,--as-of" in complete("sailor-cloud plan --as", 2)
    assert complete("sailor-cloud plan --format m", 3) == ["plain,markdown"]


def test_files_are_left_to_the_shell() -> None:
    assert complete("sailor-cloud plan ", 2) == ["file,"]


@pytest.mark.parametrize("command", ["status", "down", "resume", "logs", "ssh", "cost", "dashboard"])
def test_runs_complete(command: str, tmp_path: Path) -> None:
    for name in ("quickstart-a1", "quickstart-b2", "other-c3"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    found = complete(f"sailor-cloud {command} quick", 2, home=tmp_path)
    assert sorted(found) == ["plain,quickstart-a1", "plain,quickstart-b2"]
    assert "".join(complete(f"sailor-cloud {command} x", 2, home=tmp_path)) == ""
