"""Sizes, times and money, and their texts: GiB is 2**30 bytes, GB is 10**9 bytes, durations are seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

MIB = 2**20
GIB = 2**30
MB = 10**6
GB = 10**9
GBIT_BYTES = 125_000_000
SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730.0

_YEAR_S = 365 * 86400.0
# Longer times are mistakes.
LONGEST_S = 100 * _YEAR_S

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|s|minutes?|min|m|hours?|h|days?|d)")


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `24h`, `1h30m` or `10 minutes`. Raises ValueError."""
    compact = text.strip().lower()
    parts = _DURATION.findall(compact)
    if not parts or _DURATION.sub("", compact).strip():
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 10m, 24h or 1h30m")
    seconds = float(sum(float(number) * _SECONDS[unit[0]] for number, unit in parts))
    if seconds > LONGEST_S:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return seconds


def duration_text(duration_s: float) -> str:
    """Return a time span: `0.412 s`, `41.2 s`, `12 min 5 s`, `7 h 40 min`, `3 d 4 h`, `3.2 years`."""
    if duration_s >= 2 * _YEAR_S:
        return f"{duration_s / _YEAR_S:,.1f} years"
    if duration_s < 1:
        return f"{duration_s:.3f} s"
    if duration_s < 99.95:
        return f"{duration_s:.1f} s" if duration_s >= 10 else f"{duration_s:.2f} s"
    whole = round(duration_s)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            major, rest = divmod(whole, size)
            minor = rest // small
            return f"{major} {name} {minor} {small_name}" if minor else f"{major} {name}"
    return f"{whole} s"


def sufficient_duration_text(duration_s: float) -> str:
    """Return the shortest time span that `duration_text` shows exactly and that is at least the given one."""
    for size, step in ((2 * _YEAR_S, 0.1 * _YEAR_S), (86400, 3600), (3600, 60), (99.95, 1), (10, 0.1), (1, 0.01)):
        if duration_s >= size:
            return duration_text(math.ceil(duration_s / step * (1.0 - 1e-12)) * step)
    return duration_text(math.ceil(duration_s * 1000.0 * (1.0 - 1e-12)) / 1000.0)


def probability_text(chance: float) -> str:
    """Return a probability that is never rounded to certainty."""
    if 0.001 <= chance <= 0.999:
        return f"{100 * chance:.3g} %"
    return "more than 99.9 %" if chance > 0.5 else "less than 0.1 %"


def usd_text(amount: float) -> str:
    """Return dollars to the cent, below 1 USD with three significant digits: `812.40`, `0.0312`, `0.000412`."""
    return f"{amount:,.{usd_decimals(amount)}f}"


def usd_texts(amounts: Sequence[float]) -> tuple[str, ...]:
    """Return the dollars of one table: all to the cent if one of them is 1 USD or more, else like `usd_text`."""
    largest = max((abs(amount) for amount in amounts), default=0.0)
    if usd_decimals(largest) > 2:
        return tuple(usd_text(amount) for amount in amounts)
    return tuple(f"{amount:,.2f}" if round(amount, 2) else usd_text(amount) for amount in amounts)


def usd_decimals(amount: float) -> int:
    """Return the decimals with which `usd_text` shows dollars."""
    # Rounded first, since 0.9999 is shown as 1.00.
    rounded = abs(float(f"{amount:.3g}"))
    return 2 if rounded >= 1 or rounded == 0 else 2 - math.floor(math.log10(rounded))


def usd_parts(amounts: Sequence[float], whole: float, decimals: int) -> tuple[float, ...]:
    """Return the parts of `whole`, rounded so that they add up to the rounded whole.

    The rest goes to the largest parts, one unit of the last digit each.
    """
    unit = 10.0**-decimals
    counts = [round(amount / unit) for amount in amounts]
    left = round(whole / unit) - sum(counts)
    largest = sorted(range(len(counts)), key=lambda place: (-amounts[place], place))
    for number in range(abs(left) if counts else 0):
        counts[largest[number % len(counts)]] += 1 if left > 0 else -1
    return tuple(round(count * unit, decimals) for count in counts)


def usd_difference(amount: float, base: float) -> float:
    """Return how much more an amount is than `base`, both rounded as `usd_text` shows them.

    A reader who subtracts the shown figures finds the same difference.
    """
    shown, other = (round(each, usd_decimals(each)) for each in (amount, base))
    return round(shown - other, max(usd_decimals(amount), usd_decimals(base)))


def counted(count: int, noun: str) -> str:
    """Return a number of things: `1 node`, `2 nodes`."""
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"


def pace_text(ratio: float, other: str = "") -> str:
    """Return the speed of something that takes `ratio` times as long: `3.0× faster`, `12 % slower`, `as fast`.

    Percentages compare speeds: 0.8 of the time is 25 % faster.

    With `other`, such as `the fastest`, it ends in `than the fastest` or `as the fastest`.
    """
    faster = ratio < 1.0
    times = 1.0 / ratio if faster else ratio
    if times < 1.0005:
        return f"as fast as {other}" if other else "as fast"
    percent = 100.0 * (times - 1.0)
    amount = f"{times:,.1f}×" if times >= 1.5 else f"{percent:.0f} %" if percent >= 9.5 else f"{percent:.1f} %"
    pace = f"{amount} {'faster' if faster else 'slower'}"
    return f"{pace} than {other}" if other else pace


def signed_usd_text(amount: float) -> str:
    """Return a difference in dollars: `+6.56 USD`, `-0.0312 USD`, `the same cost`."""
    # An iteration may cost 0.0004 USD, of which this is a thousandth.
    if abs(amount) < 0.0000005:
        return "the same cost"
    return f"{'-' if amount < 0 else '+'}{usd_text(abs(amount))} USD"


def usd_difference_text(amount: float, base: float, *, largest: float = 0.0) -> str:
    """Return `usd_difference` like `signed_usd_text`; to the cent if one of the amounts is 1 USD or more.

    `largest`: the largest amount of the same table.
    """
    if usd_decimals(max(abs(amount), abs(base), abs(largest))) > 2:
        return signed_usd_text(usd_difference(amount, base))
    cents = round(round(amount, 2) - round(base, 2), 2)
    return f"{'-' if cents < 0 else '+'}{abs(cents):,.2f} USD" if cents else "the same cost"
