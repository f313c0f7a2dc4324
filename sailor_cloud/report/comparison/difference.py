"""The difference between two PlanDocuments: money, time, plan and job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.plan.groups import hardware_name, plan_hardware
from sailor_cloud.report.plan.money import cost_tree
from sailor_cloud.report.tables import cell, markdown_table, plain_table, print_report, rendered
from sailor_cloud.units import usd_decimals, usd_difference

# The unit of what a whole run costs.
TOTAL = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number before and after; None if a document lacks it."""

    what: str
    unit: str
    base: float | None
    head: float | None

    @property
    def both(self) -> tuple[float | None, float | None]:
        return self.base, self.head

    @property
    def delta(self) -> float | None:
        return None if self.base is None or self.head is None else self.head - self.base

    @property
    def share(self) -> float | None:
        """The change relative to the base; None if that is unknown or 0."""
        return None if self.delta is None or not self.base else self.delta / self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A field of the job or a count of nodes, before and after, as text; "" if absent."""

    what: str
    base: str
    head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two documents' difference.

    `usd` is the whole run, one iteration or an hour: the first of them that is known wherever there is a plan.
    `unknown`: which of BASE and HEAD have a plan without a known total.
    """

    base_job: str
    head_job: str
    base_status: str
    head_status: str
    usd: Figure
    time: Figure
    unknown: tuple[str, ...]
    figures: tuple[Figure, ...]
    branches: tuple[Figure, ...]
    nodes: tuple[Edit, ...]
    job: tuple[Edit, ...]
    message: str

    @property
    def same(self) -> bool:
        return not self.job and not self.nodes and all(not figure.delta for figure in (self.usd, self.time))


def difference(base: PlanDocument, head: PlanDocument) -> Difference:
    """Compare two documents: the base is the old one, the head the proposed one."""
    planned = [which for which, document in enumerate((base, head)) if document.cost is not None]
    usd = next(figure for figure in _usd(base, head) if all(figure.both[which] is not None for which in planned))
    whole = usd.unit == TOTAL
    time = (
        Figure(what="time", unit="s", base=_duration(base), head=_duration(head))
        if whole
        else Figure(what="iteration", unit="s", base=_iteration(base), head=_iteration(head))
    )
    unknown = [
        name for name, each in (("BASE", base), ("HEAD", head)) if each.cost is not None and _total(each) is None
    ]
    return Difference(
        base_job=base.job.name,
        head_job=head.job.name,
        base_status=base.status.value,
        head_status=head.status.value,
        usd=usd,
        time=time,
        unknown=tuple(unknown),
        figures=_figures(base, head, usd, time),
        branches=_branches(base, head) if whole else (),
        nodes=_edits(_nodes(base), _nodes(head)),
        job=_edits(_flat(_job(base)), _flat(_job(head))),
        message=head.infeasibility.message if head.infeasibility else "",
    )


def _usd(base: PlanDocument, head: PlanDocument) -> Iterator[Figure]:
    yield Figure(what="total", unit=TOTAL, base=_total(base), head=_total(head))
    yield Figure(what="price", unit="USD/iteration", base=_per_iteration(base), head=_per_iteration(head))
    yield Figure(what="rate", unit="USD/h", base=_rate(base), head=_rate(head))


def _figures(base: PlanDocument, head: PlanDocument, usd: Figure, time: Figure) -> tuple[Figure, ...]:
    both = (base, head)
    worst = [document.cost.worst_case_usd if document.cost else None for document in both]
    samples = [document.prediction.samples_per_s if document.prediction else None for document in both]
    found = [usd, Figure(what="worst case", unit="USD", base=worst[0], head=worst[1]), time]
    if time.what != "iteration":
        found.append(Figure(what="iteration", unit="s", base=_iteration(base), head=_iteration(head)))
    if usd.what != "rate":
        found.append(Figure(what="rate", unit="USD/h", base=_rate(base), head=_rate(head)))
    found.append(Figure(what="throughput", unit="samples/s", base=samples[0], head=samples[1]))
    return tuple(figure for figure in found if figure.base is not None or figure.head is not None)


def _branches(base: PlanDocument, head: PlanDocument) -> tuple[Figure, ...]:
    sums = [
        {branch.kind: branch for branch in cost_tree(document.cost)} if document.cost else {}
        for document in (base, head)
    ]
    found = []
    for kind in CostKind:
        branches = [known.get(kind) for known in sums]
        title = next((branch.title for branch in branches if branch), None)
        if title is not None:
            before, after = (
                None if document.cost is None else branch.usd if branch else 0.0
                for document, branch in zip((base, head), branches, strict=True)
            )
            found.append(Figure(what=title, unit="USD", base=before, head=after))
    return tuple(found)


def _total(document: PlanDocument) -> float | None:
    return document.cost.total_usd if document.cost else None


def _per_iteration(document: PlanDocument) -> float | None:
    return document.cost.usd_per_iteration if document.cost else None


def _rate(document: PlanDocument) -> float | None:
    return document.cost.usd_per_hour if document.cost else None


def _duration(document: PlanDocument) -> float | None:
    return document.prediction.duration_s if document.prediction else None


def _iteration(document: PlanDocument) -> float | None:
    return document.prediction.iteration_s_replay if document.prediction else None


def _nodes(document: PlanDocument) -> dict[str, str]:
    nodes = plan_hardware(document).values()
    counts = Counter(f"{hardware_name(hardware)} in {hardware.zone}" for hardware in nodes)
    return {name: str(count) for name, count in counts.items()}


def _job(document: PlanDocument) -> dict[str, Any]:
    """Return the job, and the program that trains it."""
    return {"engine": document.engine, **document.job.model_dump(mode="json", exclude_none=True)}


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Return the leaves of nested JSON values by their path."""
    if isinstance(value, dict):
        children = ((f"{path}.{name}" if path else str(name), child) for name, child in value.items())
    elif isinstance(value, list):
        children = ((f"{path}[{place}]", child) for place, child in enumerate(value))
    else:
        return {path: str(value)}
    return {name: leaf for child_path, child in children for name, leaf in _flat(child, child_path).items()}


def _edits(base: dict[str, str], head: dict[str, str]) -> tuple[Edit, ...]:
    names = sorted({*base, *head})
    return tuple(
        Edit(what=name, base=base.get(name, ""), head=head.get(name, ""))
        for name in names
        if base.get(name) != head.get(name)
    )


NO_CHANGE = "no change in cost, time or plan"


def headline(found: Difference) -> str:
    """Return the total difference in one line: `+38.20 USD (+12 %), +4 h`."""
    if found.head_status == "infeasible":
        return f"no plan any more: {found.message}" if found.base_status != "infeasible" else "infeasible as before"
    if found.base_status == "infeasible":
        time = f", {text.seconds(found.time.head)}" if found.time.head is not None else ""
        return f"feasible now: {text.usd(found.usd.head)} {found.usd.unit}{time}"
    if found.same:
        return NO_CHANGE
    money = f"{_delta(found.usd)} {found.usd.unit}"
    if found.usd.share is not None:
        money += f" ({text.change(found.usd.share)})"
    if len(found.unknown) == 1:
        money += f", total of {found.unknown[0]} unknown"
    if found.time.delta is None:
        return money
    per = " per iteration" if found.time.what == "iteration" else ""
    return f"{money}, {_delta(found.time)}{per}"


def difference_report(found: Difference) -> RenderableType:
    title = Text(f"{_name(found)}: ", style="bold")
    title.append(headline(found))
    parts: list[RenderableType] = [title]
    if found.same:
        return title
    numbers = ("before", "after", "change", "share")
    figures = plain_table("", *numbers, numbers=numbers)
    for row in _rows(found):
        figures.add_row(*row)
    parts.append(Padding(figures, (1, 0, 0, 0)))
    for heading, edits in (("nodes", found.nodes), ("job", found.job)):
        if edits:
            rows = plain_table(heading, "before", "after")
            for edit in edits:
                rows.add_row(*_edit(edit))
            parts.append(Padding(rows, (1, 0, 0, 0)))
    return Group(*parts)


def print_difference(found: Difference, console: Console) -> None:
    print_report(difference_report(found), console)


def difference_as_text(found: Difference, *, width: int = 120) -> str:
    """Return the report as plain text for a file."""
    return rendered(difference_report(found), width=width)


def difference_as_markdown(found: Difference) -> str:
    parts = [f"### {cell(_name(found))}: {cell(headline(found))}"]
    if not found.same:
        numbers = ("before", "after", "change", "share")
        parts.append(markdown_table(("", *numbers), _rows(found), numbers=numbers))
        for heading, edits in (("nodes", found.nodes), ("job", found.job)):
            if edits:
                parts.append(markdown_table((heading, "before", "after"), (_edit(edit) for edit in edits)))
    return "\n\n".join(parts) + "\n"


def difference_as_json(found: Difference) -> str:
    content = asdict(found)
    content["headline"] = headline(found)
    for figure, value in (
        (content["usd"], found.usd),
        (content["time"], found.time),
        *zip(content["figures"], found.figures, strict=True),
        *zip(content["branches"], found.branches, strict=True),
    ):
        figure["delta"], figure["share"] = value.delta, value.share
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _name(found: Difference) -> str:
    return found.head_job if found.base_job == found.head_job else f"{found.base_job} to {found.head_job}"


def _rows(found: Difference) -> list[tuple[str, str, str, str, str]]:
    """Return the cells of every figure; parts of a total have its decimals, as in a plan's report."""
    whole = max(found.usd.base or 0.0, found.usd.head or 0.0)
    return [*(_cells(figure) for figure in found.figures), *(_part(figure, whole) for figure in found.branches)]


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    share = text.change(figure.share) if figure.share else ""
    return _name_of(figure), _value(figure, figure.base), _value(figure, figure.head), _delta(figure), share


def _part(figure: Figure, whole: float) -> tuple[str, str, str, str, str]:
    decimals = usd_decimals(whole)
    base, head = (None if amount is None else round(amount, decimals) for amount in (figure.base, figure.head))
    before, after = ("-" if amount is None else text.usd_aligned(amount, whole) for amount in (base, head))
    if base is None or head is None:
        return _name_of(figure), before, after, "-", ""
    delta = round(head - base, decimals)
    change = text.signed_usd_aligned(delta, whole) if delta else "0"
    return _name_of(figure), before, after, change, text.change(figure.share) if delta and figure.share else ""


def _name_of(figure: Figure) -> str:
    return f"{figure.what}, {figure.unit}" if figure.unit != "s" else figure.what


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return text.seconds(value) if figure.unit == "s" else text.usd(value)


def _delta(figure: Figure) -> str:
    if figure.delta is None:
        return "-"
    if figure.delta == 0:
        return "0"
    if figure.unit == "s":
        return text.signed_seconds(figure.delta)
    base, head = figure.base or 0.0, figure.head or 0.0
    difference = text.signed_usd_aligned(usd_difference(head, base), max(abs(base), abs(head)))
    # A difference smaller than the amounts' decimals is shown with more decimals.
    return difference if difference.strip("+-0.") else text.signed_usd(figure.delta)


def _edit(edit: Edit) -> tuple[str, str, str]:
    return edit.what, edit.base or "-", edit.head or "-"
