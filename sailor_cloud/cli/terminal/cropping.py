"""Crops what is shown during a wait to the height of the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Cropped:
    """The top of a screen with a bar below it, at least one line less than the terminal.

    A live display erases only lines that are still on the terminal, so a taller screen would leave its top behind.
    """

    screen: RenderableType
    bar: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(height=None)
        above = console.render_lines(self.screen, unbounded, pad=False)
        below = console.render_lines(self.bar, unbounded, pad=False)
        room = max(0, options.size.height - 1 - len(below))
        if len(above) < room:
            above.append([])
        elif len(above) > room:
            dots = "..." if options.ascii_only else "…"
            above = [*above[: room - 1], [Segment(dots)]] if room else []
        for number, line in enumerate([*above, *below]):
            if number:
                yield Segment.line()
            yield from line
