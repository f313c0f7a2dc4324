"""What is asked of the runtime, and what came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One demand, in words: what, the figure that was found and the one that was asked for."""

    what: str
    found: str
    asked: str
    met: bool

    @property
    def verdict(self) -> str:
        return "met" if self.met else "MISSED"


def table(bars: list[Bar]) -> list[str]:
    rows = [f"| {bar.what} | {bar.found} | {bar.asked} | {bar.verdict} |" for bar in bars]
    return ["| bar | measured | asked for | |", "|---|---|---|---|", *rows]
