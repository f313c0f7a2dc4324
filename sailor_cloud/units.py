"""Units of size and time: GiB is 2**30 bytes, GB is 10**9 bytes, durations are seconds."""

from __future__ import annotations

import re

KIB = 2**10
MIB = 2**20
GIB = 2**30
MB = 10**6
GB = 10**9
GBIT_BYTES = 125_000_000
SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730.0

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `10m`, `24h`, `2d` or `1h30m`. Raises ValueError."""
    compact = text.strip().lower()
    parts = _DURATION.findall(compact)
    if not parts or _DURATION.sub("", compact).strip():
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m, 24h or 1h30m")
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))
