"""HTML tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sailor_cloud.report.html.markup import Markup, element

# Columns of sentences, and columns of short words, which never fold.
WIDE = ("what", "price of")
TIGHT = ("pipelines", "devices", "zone", "nodes", "market", "as of", "from", "to")


def html_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = (), total: bool = False
) -> Markup:
    """Return a table whose rows become lines where the page is narrow; `total` sets the last row apart."""
    classes = [_class(heading, numbers) for heading in headings]
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


def _class(heading: str, numbers: Sequence[str]) -> str | None:
    if heading in numbers:
        return "number"
    return "tight" if heading in TIGHT else "wide" if heading in WIDE else None
