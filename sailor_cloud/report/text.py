"""Numbers for people: short, with units, and uniform."""

from __future__ import annotations

from collections.abc import Iterable

from sailor_cloud.units import GIB, MIB, duration_text, usd_decimals, usd_text


def usd(amount: float | None) -> str:
    return "unknown" if amount is None else usd_text(amount)


def usd_aligned(amount: float, whole: float) -> str:
    """Return dollars with the decimals that suit `whole`, so that the parts align below it."""
    return f"{amount:,.{usd_decimals(whole)}f}"


def signed_usd_aligned(amount: float, whole: float) -> str:
    """Return a difference in dollars with the decimals that suit the larger of it and `whole`."""
    return f"{'-' if amount < 0 else '+'}{usd_aligned(abs(amount), max(abs(amount), abs(whole)))}"


def signed_usd(amount: float) -> str:
    """Return a difference in dollars: `+38.20`, `-0.0312`."""
    return f"{'-' if amount < 0 else '+'}{usd(abs(amount))}"


def seconds(duration_s: float | None) -> str:
    return "unknown" if duration_s is None else duration_text(duration_s)


def amount(quantity: float) -> str:
    """Return any count with four digits, never in powers of ten: `0.1056`, `843.9`, `1,688`."""
    if abs(quantity) >= 1000:
        return f"{quantity:,.0f}"
    return f"{quantity:.4g}" if abs(quantity) >= 1e-4 or quantity == 0 else f"{quantity:.6f}"


def measure(quantity: float, unit: str) -> str:
    """Return a quantity with the unit of its price: `1.447 h`, `8.132 x 1000 requests`, `12.1 GB`."""
    if unit[0].isdigit():
        return f"{amount(quantity)} x {unit}"
    return f"{amount(quantity)} {'h' if unit == 'hour' else unit}"


def size(count_bytes: float) -> str:
    return f"{count_bytes / GIB:.1f} GiB" if count_bytes >= GIB else f"{count_bytes / MIB:.1f} MiB"


def share(fraction: float) -> str:
    """Return a share as a percentage: `6 %`, `0.4 %`."""
    percent = 100 * fraction
    return f"{percent:.0f} %" if abs(percent) >= 10 or percent == 0 else f"{percent:.1f} %"


def change(fraction: float) -> str:
    """Return a relative difference: `+12 %`, `-0.4 %`; if it is more than tenfold, `x 6,555`."""
    if fraction >= 10:
        return f"x {1 + fraction:,.0f}"
    return f"{'-' if fraction < 0 else '+'}{share(abs(fraction))}"


def signed_seconds(duration_s: float) -> str:
    """Return a difference in time: `+4 h`, `-12 min 5 s`."""
    return f"{'-' if duration_s < 0 else '+'}{seconds(abs(duration_s))}"


def ranges(numbers: Iterable[int]) -> str:
    """Return a short list of whole numbers: `0-3, 7`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
