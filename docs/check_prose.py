"""Checks the words of all Markdown pages: proselint, the glossary, and the length of sentences.

Docstrings, comments and messages of programs are checked against the glossary. `python docs/check_prose.py [FILE ...]`
prints each finding and exits with 1 if there are any.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parents[1]
CheckRegistry().register_many(__register__)
GLOSSARY = ROOT / "docs" / "glossary.md"
MOST_WORDS = 25
# A few more are allowed, for lists of names. A colon or a semicolon ends a sentence here.
SPARE_WORDS = 5
# What doesn't suit technical English that is written in ASCII, and what proselint mistakes here.
_CHECKS = {
    **DEFAULT["checks"],
    "annotations": False,
    "dates_times": False,
    "lexical_illusions": False,
    "typography": False,
    "spelling": False,
    "needless_variants": False,
    "restricted": False,
}
# The folders that are checked, besides the pages at the top.
PAGES = ("docs", "benchmarks", "bandwidth_profiles", "compute_profiles", "examples", "pricing", "terraform")
PROGRAMS = ("sailor_cloud", "runtime/sailor_runtime", "benchmarks", "examples", "terraform")
# Pages that are still to be rewritten, and how much is found there. The numbers may only fall.
PENDING: dict[str, int] = {
    "bandwidth_profiles/README.md": 1,
    "benchmarks/results/faults.md": 1,
    "benchmarks/results/prediction_errors.md": 1,
    "benchmarks/results/published_time.md": 3,
    "benchmarks/results/run-any-code.md": 1,
    "benchmarks/results/simulator_accuracy.md": 2,
    "benchmarks/results/spot_policies.md": 1,
    "compute_profiles/README.md": 1,
    "pricing/README.md": 3,
    "terraform/modules/aws-cluster/README.md": 1,
    "terraform/modules/placement/README.md": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place to mend."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def forbidden() -> dict[str, str]:
    """Return what the glossary says to write instead of each phrase that it forbids."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        phrase.strip(): term.strip() for term, phrases in rows[1:] for phrase in phrases.split(";") if phrase.strip()
    }


def prose(text: str) -> str:
    """Return Markdown without what is no prose, each line where it was: code, addresses, pictures."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())  # noqa: E731
    text = re.sub(r"^(```|~~~).*?^\1", blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>\n]+>", blank, text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", lambda match: "x" * len(match.group()), text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", blank, text)
    return re.sub(r"\]\([^)]*\)", lambda match: "]" + " " * (len(match.group()) - 1), text)


def words_of_program(text: str) -> str:
    """Return comments and strings of Python code, each line where it was, the rest blank."""
    lines = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for offset, line in enumerate(token.string.split("\n")):
                lines[token.start[0] - 1 + offset] += f" {line}"
    return re.sub(r"`[^`\n]*`", lambda match: "x" * len(match.group()), "\n".join(lines))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with its line; a blank line, a row, an item and a heading end one."""
    for block in re.finditer(r"(?:(?!\n\s*\n|\n\s*[-*#|>]|\n\s*\d+\. ).)+", text, flags=re.DOTALL):
        cells = re.finditer(r"[^|]+", block.group()) if block.group().lstrip().startswith("|") else [block]
        for cell in cells:
            start = block.start() + (cell.start() if cell is not block else 0)
            for found in re.finditer(r"[^.?!;:]+(?:[.?!;:](?!\s)[^.?!;:]*)*", cell.group()):
                line = text.count("\n", 0, start + found.start() + len(found.group()) - len(found.group().lstrip())) + 1
                yield line, " ".join(found.group().split())


def findings(path: Path) -> list[Finding]:
    """Return what is to be mended in one file."""
    written = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return list(_against_glossary(path, words_of_program(written)))
    text = prose(written)
    found = [
        Finding(path=path, line=line, what=f"{len(words)} words: {' '.join(words[:8])} …")
        for line, sentence in sentences(text)
        if len(words := re.findall(r"[^\W_][\w'’/.-]*", sentence)) > MOST_WORDS + SPARE_WORDS
    ]
    if path != GLOSSARY:
        found += _against_glossary(path, text)
        for result in LintFile(source=path, content=text).lint({**DEFAULT, "checks": _CHECKS}):
            found.append(Finding(path=path, line=result.pos[0], what=result.check_result.message))
    return sorted(found, key=lambda each: each.line)


def _against_glossary(path: Path, text: str) -> Iterator[Finding]:
    terms = {phrase.lower(): term for phrase, term in forbidden().items()}
    pattern = "|".join(re.escape(phrase).replace(r"\ ", r"[\s>#]+") for phrase in terms)
    for match in re.finditer(rf"\b(?:{pattern})\b", text, flags=re.IGNORECASE):
        phrase = " ".join(re.findall(r"[^\s>#]+", match.group()))
        line = text.count("\n", 0, match.start()) + 1
        yield Finding(path=path, line=line, what=f"{phrase!r}: write {terms[phrase.lower()]}")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def main(arguments: list[str]) -> int:
    paths = [Path(name).resolve() for name in arguments] or [
        *sorted(ROOT.glob("*.md")),
        *sorted(path for folder in PAGES for path in (ROOT / folder).rglob("*.md")),
        *sorted(path for folder in PROGRAMS for path in (ROOT / folder).rglob("*.py")),
    ]
    failed = False
    for path in paths:
        found, pending = findings(path), PENDING.get(_name(path), 0)
        if len(found) > pending or (found and arguments):
            print(*found, sep="\n")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
