"""Checks of any file from a user before it is used: size, depth, numbers, characters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sailor_cloud.errors import Problem, RequestError, is_control

# A plan for 4,096 devices has less than 8 MiB, the longest job file of the examples 2 KiB.
MOST_PLAN_BYTES = 16 * 2**20
MOST_JOB_BYTES = 64 * 2**10
# The most values in such files; each alias of YAML counts as often as it is used.
MOST_PLAN_VALUES = 1_000_000
MOST_JOB_VALUES = 10_000
DEEPEST = 50
# Suffixes of reports, from which nothing is read.
REPORTS = frozenset({".html", ".htm", ".md"})
_MOST_PROBLEMS = 20
_END = object()


def read_at_most(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file. Raises OSError, or RequestError if it is larger than such a file can be."""
    if path == Path("-") and not path.exists():
        raise RequestError("can't read -: there is no such file; standard input is /dev/stdin")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise RequestError(f"{path} is larger than {most_bytes // 2**10:,} KiB, the most that is read")
    return content


def check_values(raw: Any, *, origin: str, most: int) -> None:
    """Raise RequestError for content that no file of ours has: infinite numbers, control characters, deep nesting.

    `raw` is the result of a JSON or YAML parser. It may hold at most `most` values; one that occurs in several places
    counts in each.
    """
    problems: list[Problem] = []
    for seen, (path, depth, value) in enumerate(_walk(raw)):
        if seen >= most:
            raise RequestError([Problem(path=origin, message=too_many(most))])
        if depth > DEEPEST:
            raise RequestError([Problem(path=origin, message=too_deep())])
        why = _wrong(value)
        if why is not None:
            problems.append(Problem(path=f"{origin}: {path}", message=why))
            if len(problems) == _MOST_PROBLEMS:
                break
    if problems:
        raise RequestError(problems)


def too_many(most: int) -> str:
    return f"holds more than {most:,} values; no such file does"


def too_deep() -> str:
    return f"is nested more than {DEEPEST} deep, the most that is read"


def _walk(raw: Any) -> Iterator[tuple[str, int, Any]]:
    """Yield path, depth and value of everything inside, including keys, without recursion."""
    waiting = [iter([("", raw)])]
    while waiting:
        path, value = next(waiting[-1], ("", _END))
        if value is _END:
            waiting.pop()
            continue
        yield path, len(waiting) - 1, value
        if isinstance(value, dict):
            waiting.append(_fields(path, value))
        elif isinstance(value, list):
            waiting.append(_items(path, value))


def _items(path: str, value: list[Any]) -> Iterator[tuple[str, Any]]:
    for index, inner in enumerate(value):
        yield f"{path}[{index}]", inner


def _fields(path: str, value: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        yield path, key
        yield f"{path}.{key}" if path else str(key), inner


def _wrong(value: Any) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; it must be a finite number"
    if isinstance(value, str) and not value.isprintable() and any(map(is_control, value)):
        return f"holds control characters: {value[:80]!r}"
    return None
