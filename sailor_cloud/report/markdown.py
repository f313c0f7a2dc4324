"""The pieces of Markdown that reports are made of, in the dialect that GitHub and GitLab share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(content: str) -> str:
    """Return text that can't break out of a table cell or become markup."""
    escaped = content.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    for character in "*_`<>[]":
        escaped = escaped.replace(character, f"\\{character}" if character not in "<>" else _ENTITIES[character])
    return escaped


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """Return a table; cells are escaped, columns named in `numbers` are aligned to the right."""
    lines = [
        f"| {' | '.join(headings)} |",
        f"| {' | '.join('---:' if heading in numbers else '---' for heading in headings)} |",
    ]
    lines += [f"| {' | '.join(cell(content) for content in row)} |" for row in rows]
    return "\n".join(lines)


def folded(summary: str, content: str) -> str:
    """Return a section that readers open themselves."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


_ENTITIES = {"<": "&lt;", ">": "&gt;"}
