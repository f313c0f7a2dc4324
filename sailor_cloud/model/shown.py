"""How values appear at a Python prompt and in a notebook: a short repr, a table in HTML, a pandas frame."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
MOST_ROWS, MOST_REPRS = 50, 5


class Rows(tuple[T, ...]):
    """A tuple of records that becomes a pandas frame, and a table in a notebook."""

    __slots__ = ()

    def to_frame(self) -> DataFrame:
        """Return one row per record, without plans; counts by name get a column each, such as `devices.A100-40`."""
        import pandas

        frame = pandas.json_normalize([_record(row) for row in self])
        counts = [name for name in frame.columns if "." in name]
        return frame.fillna(dict.fromkeys(counts, 0)).astype(dict.fromkeys(counts, int))

    def __repr__(self) -> str:
        if self and len(self) <= MOST_REPRS and isinstance(self[0], Shown):
            return super().__repr__()
        first = f" of {type(self[0]).__name__}" if self else ""
        return f"<{len(self)} rows{first}; .to_frame() makes a pandas frame>"

    def _repr_html_(self) -> str:
        records = [_record(row) for row in self[:MOST_ROWS]]
        if not records:
            return "<p>no rows</p>"
        rest = f"<p>{len(self) - MOST_ROWS:,} more rows</p>" if len(self) > MOST_ROWS else ""
        return html_table(list(records[0]), [[_cell(value) for value in row.values()] for row in records]) + rest

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        (inner,) = get_args(source) or (Any,)
        return core_schema.no_info_after_validator_function(cls, handler(tuple.__class_getitem__((inner, ...))))


class Shown:
    """Gives a dataclass a repr of one line and a table in a notebook, both from `shown_facts`; records become Rows."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if type(value) is tuple and value and dataclasses.is_dataclass(value[0]):
                object.__setattr__(self, field.name, Rows(value))

    def shown_facts(self) -> Sequence[tuple[str, str]]:
        """Return what to show, most important first; the first value is the title."""
        raise NotImplementedError

    def shown_rows(self) -> Sequence[tuple[str, Rows[Any]]]:
        """Return tables that a notebook shows below the facts, each with its caption."""
        return ()

    def __repr__(self) -> str:
        (_, title), *rest = self.shown_facts()
        return f"<{type(self).__name__} {title}: {', '.join(value for _, value in rest)}>"

    def _repr_html_(self) -> str:
        (name, title), *rest = self.shown_facts()
        facts = html_table([name, title], [list(row) for row in rest])
        tables = [f"<p>{html.escape(caption)}</p>{rows._repr_html_()}" for caption, rows in self.shown_rows() if rows]
        return facts + "".join(tables)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str] = ()) -> str:
    """Return an HTML table of plain texts; `below` has a text for each row, as wide as all columns but the first."""
    lines = [_row("th", header)]
    for place, row in enumerate(rows):
        lines.append(_row("td", row))
        if place < len(below):
            cell = f"<td align=left colspan={len(header) - 1}>{html.escape(below[place])}</td>"
            lines.append(f"<tr><td></td>{cell}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag} align=left>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _record(row: Any) -> dict[str, Any]:
    return {
        field.name: getattr(row, field.name)
        for field in dataclasses.fields(row)
        if not _holds_records(getattr(row, field.name))
    }


def _holds_records(value: Any) -> bool:
    return dataclasses.is_dataclass(value[0] if isinstance(value, tuple) and value else value)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
