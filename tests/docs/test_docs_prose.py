from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from factories.commands import ROOT


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    pytest.importorskip("proselint")
    spec = importlib.util.spec_from_file_location("check_prose", ROOT / "docs" / "check_prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_prose"] = module
    spec.loader.exec_module(module)
    return module


def found(prose: ModuleType, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    return [str(finding) for finding in prose.findings(page)]


def test_words_that_the_glossary_forbids_are_found_with_what_to_write(
    prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(prose, "One line.\n\nEvery step is told, and zones are\ndearer.\n", tmp_path, monkeypatch) == [
        "page.md:3: 'is told': write says, reports or shows",
        "page.md:4: 'dearer': write more expensive",
    ]


def test_a_long_sentence_is_found_and_a_list_of_short_ones_is_not(
    prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = found(prose, f"Short. {'word ' * 31}end.\n", tmp_path, monkeypatch)
    assert one.startswith("page.md:1: 32 words: word word")
    assert found(prose, "- item of words\n" * 20, tmp_path, monkeypatch) == []
    assert found(prose, f"| {'one two three four |' * 20}\n", tmp_path, monkeypatch) == []


def test_proselint_reads_the_page(prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (one, *_) = found(prose, "Short.\n\nThis is very unique.\n", tmp_path, monkeypatch)
    assert one.startswith("page.md:3: ")
    assert "unique" in one


def test_code_and_addresses_are_no_prose(prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "```\nEvery step is told.\n```\n\nThe flag `dearer` in [a page](https://example.org/dearer).\n"
    assert found(prose, text, tmp_path, monkeypatch) == []


def test_docstrings_comments_and_messages_of_code_are_held_against_the_glossary(
    prose: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    code = tmp_path / "code.py"
    code.write_text('dearer = 1  # dearer by one\n\n"""Goes\nthrough."""\nraise ValueError(f"{cost} is told")\n')
    assert [str(finding) for finding in prose.findings(code)] == [
        "code.py:1: 'dearer': write more expensive",
        "code.py:3: 'Goes through': write is read, checked or passes through",
        "code.py:5: 'is told': write says, reports or shows",
    ]


def test_every_page_that_git_tracks_is_checked_but_none_of_others(prose: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the files come from git, and this is no checkout")
    pages = {path.relative_to(ROOT).as_posix() for path in prose.tracked("*.md")}
    assert {"README.md", "docs/decisions/deepspeed.md", "pricing/README.md", "terraform/stacks/aws/README.md"} <= pages
    assert not [page for page in pages if "/vendor/" in page]
    assert ROOT / "examples/run/lightning/train.py" in prose.tracked("examples/*.py")
