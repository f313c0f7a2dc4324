"""Output on terminals and in pipes that can't show every character."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

HANDLER = "sailor-cloud-plain"
_PLAIN = {
    "±": "+/-",
    "×": "x",
    "–": "-",
    "—": "-",
    "→": "->",
    "…": "...",
    "├": "|",
    "└": "`",
    "│": "|",
    "─": "-",
    "━": "-",
    "╸": "-",
    "╺": "-",
    "·": ".",
    "█": "#",
    "▉": "#",
    "▊": "#",
    "▋": "#",
    "▌": "#",
    "▍": ".",
    "▎": ".",
    "▏": ".",
}


def make_writable(stream: TextIO) -> None:
    """Make a stream write a plain substitute for each character that its encoding lacks, instead of failing."""
    if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
        codecs.register_error(HANDLER, _stand_in)
        stream.reconfigure(errors=HANDLER)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in missing), error.end
