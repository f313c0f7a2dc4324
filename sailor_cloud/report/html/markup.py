"""Elements of HTML, with everything escaped that is not markup already."""

from __future__ import annotations

import html


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
