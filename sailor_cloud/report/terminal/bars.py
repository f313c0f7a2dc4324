"""Bars made of characters."""

from __future__ import annotations

import math

_EIGHTHS = " ▏▎▍▌▋▊▉"


# Columns of a bar, and on narrow terminals.
_WIDE, _NARROW, _WIDE_FROM = 24, 10, 72


def bar_width(terminal_width: int) -> int:
    return _WIDE if terminal_width >= _WIDE_FROM else _NARROW


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar that fills `share` of `width` columns; more than the whole is cut, anything above 0 is visible."""
    share = min(1.0, max(0.0, share))
    if ascii_only:
        full = max(round(share * width), 1 if share else 0)
        return "#" * full + "." * (width - full)
    eighths = max(math.floor(share * width * 8), 1 if share else 0)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "·" * (width - len(drawn))
