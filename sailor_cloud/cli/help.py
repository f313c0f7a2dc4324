"""Help texts for narrow terminals: breaks examples and lists of choices that are too long for a line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

# A word of a command, with blanks only in quotes; a backslash at the end of a line belongs to the last word.
_WORD = re.compile(r"(?:'[^']*'|[^\s'])+(?: \\$)?")
_GAP = re.compile(r" {2,}")
_DEEPER = 4


class _Formatter(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        paragraphs = text.split("\n\n")
        super().write_text("\n\n".join(self._broken(each) if each.startswith("\b\n") else each for each in paragraphs))

    def write_dl(self, rows: Iterable[tuple[str, str]], *args: Any, **kwargs: Any) -> None:
        super().write_dl([(self._choices(first), second) for first, second in rows], *args, **kwargs)

    def _broken(self, paragraph: str) -> str:
        width = self.width - self.current_indent
        return "\n".join(part for line in paragraph.split("\n") for part in _lines(line, width))

    def _choices(self, option: str) -> str:
        width = self.width - self.current_indent
        lines = [""]
        for part in option.split("|") if len(option) > width else [option]:
            joined = f"{lines[-1]}|{part}" if lines[-1] else part
            if len(lines[-1]) and len(joined) >= width:
                lines[-1] += "|"
                lines.append(" " * (self.current_indent + _DEEPER) + part)
            else:
                lines[-1] = joined
        return "\n".join(lines)


class Context(click.Context):
    """A context whose help fits the terminal."""

    formatter_class = _Formatter


def fitting(command: click.Command) -> click.Command:
    """Make the help of a command, and of those below it, fit the terminal; returns the command."""
    command.context_class = Context
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        fitting(below)
    return command


def _lines(line: str, width: int) -> list[str]:
    """Return an example in lines that fit: backslashes continue a command, its explanation gets a line of its own."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    example, *rest = _GAP.split(line.strip(), maxsplit=1)
    deeper = indent + " " * _DEEPER
    lines = [indent]
    for word in _WORD.findall(example):
        joined = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if len(joined) > width - 2 and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(deeper + word)
        else:
            lines[-1] = joined
    return [*lines, *(deeper + text for text in rest)]
