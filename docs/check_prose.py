"""Checks all Markdown pages that git tracks: proselint, the glossary, and the length of sentences.

Docstrings, comments and messages of programs are checked against the glossary. `python docs/check_prose.py [FILE ...]`
prints each finding and exits with 1 if there are any.
"""

from __future__ import annotations

import io
import re
import subprocess
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
# Files of others, and pages that a program writes from schemas.
LEFT_OUT = ("docs/schemas/", "/vendor/", "tests/provision/providers/jobset/")
PROGRAMS = ("sailor_cloud", "runtime/sailor_runtime", "benchmarks", "examples", "terraform")


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


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks and that match any of the patterns, without those of others."""
    # Checkouts in CI may belong to another user.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    names = [name for name in listed.stdout.split("\0") if name and not any(part in name for part in LEFT_OUT)]
    # A file that is deleted but not committed is still listed.
    return [path for name in names if (path := ROOT / name).is_file()]


def main(arguments: list[str]) -> int:
    paths = [Path(name).resolve() for name in arguments] or [
        *tracked("*.md"),
        *tracked(*(f"{folder}/*.py" for folder in PROGRAMS)),
    ]
    found = [finding for path in paths for finding in findings(path)]
    for finding in found:
        print(finding)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
