"""Elements, scales and axes: the little that hand-written SVG and HTML need."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | float | bool | None) -> Markup:
    """Return an element; text children are escaped, `class_` is `class`, `data_tip` is `data-tip`, None is left out."""
    given = "".join(f' {_attribute(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    inner = "".join(child if isinstance(child, Markup) else html.escape(child, quote=False) for child in children)
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part, quote=False) for part in parts))


def chart(width: float, height: float, title: str, *children: str) -> Markup:
    """Return a drawing that scales with the page; `title` is what screen readers say."""
    view = f"0 0 {number(width)} {number(height)}"
    drawing = element("svg", *children, viewBox=view, role="img", aria_label=title, class_="chart")
    return element("div", drawing, class_="scroll")


def label(x: float, y: float, content: str, *, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=class_)


def box(x: float, y: float, width: float, height: float, *, class_: str, tip: str | None = None) -> Markup:
    """Return a rectangle; with a tip it can be pointed at and reached with the keyboard."""
    return element(
        "rect",
        x=x,
        y=y,
        width=max(0.0, width),
        height=height,
        class_=class_,
        data_tip=tip,
        tabindex=0 if tip else None,
    )


def line(x1: float, y1: float, x2: float, y2: float, *, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Return round numbers from `low` to `high`, at most about `most` of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * size for factor in (1.0, 2.0, 2.5, 5.0) if factor * size >= rough), 10.0 * size)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Return a coordinate, to a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _attribute(key: str) -> str:
    return key if key in ("viewBox", "patternUnits") else key.rstrip("_").replace("_", "-")


def _value(value: str | float | bool) -> str:
    if isinstance(value, str):
        return html.escape(value)
    return number(value)
