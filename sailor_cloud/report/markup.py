"""HTML elements and tables, with everything escaped that is not markup already."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str | None) -> Markup:
    """Return an element; text children are escaped, `class_` is `class`, `data_tip` is `data-tip`, None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(child if isinstance(child, Markup) else html.escape(child, quote=False) for child in children)
    return Markup(f"<{name}{given}>{inner}</{name}>")


def joined(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else html.escape(part, quote=False) for part in parts))


# Columns of sentences, and columns of short words, which never wrap.
WIDE = ("what", "price of")
TIGHT = ("pipelines", "devices", "zone", "nodes", "market", "as of", "from", "to")


def html_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = (), total: bool = False
) -> Markup:
    """Return a table whose rows become lines on a narrow page; `total` sets the last row apart."""
    classes = [_column_class(heading, numbers) for heading in headings]
    head = element(
        "tr",
        *(
            element("th", heading, scope="col", class_=class_)
            for heading, class_ in zip(headings, classes, strict=True)
        ),
    )
    listed = list(rows)
    body = [
        element(
            "tr",
            *(
                element("td", content, class_=class_, data_of=heading)
                for content, class_, heading in zip(row, classes, headings, strict=True)
            ),
            class_="total" if total and place == len(listed) - 1 else None,
        )
        for place, row in enumerate(listed)
    ]
    table = element("table", element("thead", head), element("tbody", *body))
    return element("div", table, class_="scroll rows")


def _column_class(heading: str, numbers: Sequence[str]) -> str | None:
    if heading in numbers:
        return "number"
    return "tight" if heading in TIGHT else "wide" if heading in WIDE else None
