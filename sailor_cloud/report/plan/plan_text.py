"""A plan and its cost, for a terminal or a pipe."""

from __future__ import annotations

import math

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.model.document import CostKind, CostLine, PlanDocument, StageMemory, Status
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import (
    BEST,
    TITLE,
    choices,
    frontier_numbers,
    frontier_rows,
    usd_unit,
    without_plan,
)
from sailor_cloud.report.decision.decision_rows import decision_report
from sailor_cloud.report.plan.facts import (
    Fact,
    assumptions,
    memory_rows,
    notes,
    outcome_facts,
    peak_heading,
    proof,
    request_facts,
    ruled_out,
)
from sailor_cloud.report.plan.groups import GroupLine, group_lines, groups_key, mark, pipeline_groups
from sailor_cloud.report.plan.money import CostBranch, age_days, cost_tree, expected_usd, price_rows, worst_usd
from sailor_cloud.report.tables import plain_table, print_report, rendered
from sailor_cloud.units import pace_text

_EIGHTHS = " ▏▎▍▌▋▊▉"


# Width of a bar in columns, on wide and on narrow terminals.
_WIDE, _NARROW, _WIDE_FROM = 24, 10, 72


def bar_width(terminal_width: int) -> int:
    return _WIDE if terminal_width >= _WIDE_FROM else _NARROW


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar that fills `share` of `width` columns; at most all of them; any share above 0 is visible."""
    share = min(1.0, max(0.0, share))
    if ascii_only:
        full = max(round(share * width), 1 if share else 0)
        return "#" * full + "." * (width - full)
    eighths = max(math.floor(share * width * 8), 1 if share else 0)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn + "·" * (width - len(drawn))


# Below this width, zone, nodes and market share one column on two lines.
WIDE = 110
# Below this width, so do stage and layers, and the age of prices is shown only next to the run's cost.
NARROW = 72


def groups_table(document: PlanDocument, *, width: int) -> Table:
    shape: tuple[str, ...]
    numbers: tuple[str, ...]
    if width >= WIDE:
        shape, numbers = ("stage", "layers", "devices", "zone", "nodes", "market"), ("USD/h", "used", "age")
    elif width >= NARROW:
        shape, numbers = ("stage", "layers", "devices", "zone, nodes, market"), ("USD/h", "used", "age")
    else:
        shape, numbers = ("stage", "devices", "where"), ("USD/h", "used")
    rows = [
        {
            "pipelines": line.pipelines if width >= NARROW else line.pipelines.replace(": ", ":\n"),
            "stage": line.stage if width >= NARROW or not line.layers else f"{line.stage}: {line.layers}",
            "layers": line.layers,
            "devices": line.devices if width >= NARROW else line.devices.replace(", ", ",\n"),
            "zone": line.zone,
            "nodes": line.nodes,
            "market": line.market,
            "zone, nodes, market": _place(line),
            "where": "\n".join(part for part in (line.zone, line.nodes, line.market) if part),
            "USD/h": line.usd_per_hour,
            "used": line.quota,
            "age": line.age,
        }
        for line in group_lines(document, short=True)
    ]
    # Leave out empty columns, such as prices if none is known.
    headings = [name for name in ("pipelines", *shape, *numbers) if any(cells[name] for cells in rows)]
    if width < NARROW and not _fits(rows, headings, width):
        headings = [name for name in headings if name != "used"]
    whole = ("where",) if _fits(rows, headings, width) else ()
    table = plain_table(*headings, numbers=numbers, whole=whole, gap=2 if width >= WIDE else 1)
    for cells in rows:
        table.add_row(*(cells[heading] for heading in headings))
    return table


def _fits(rows: list[dict[str, str]], headings: list[str], width: int) -> bool:
    """Return whether a table with one blank between its columns needs no broken line."""
    cells = ([name, *(row[name] for row in rows)] for name in headings)
    return sum(1 + max(len(line) for cell in column for line in cell.split("\n")) for column in cells) <= width + 1


def recompute_key(document: PlanDocument) -> tuple[str, ...]:
    """Return the meaning of the letters next to layers, for those that occur."""
    met = {row.recompute for group in pipeline_groups(document) for row in group.stages}
    meanings = {
        "(h)": "half of the activations are recomputed in the backward pass",
        "(a)": "attention is recomputed in the backward pass",
        "(r)": "activations are recomputed in the backward pass",
    }
    letters = {mark(document, kind)[1].strip() for kind in met}
    return tuple(f"{letter} {line}" for letter, line in meanings.items() if letter in letters)


def _place(line: GroupLine) -> str:
    return f"{line.zone}\n{line.nodes} {line.market}" if line.zone else line.nodes


# Kinds whose lines are always shown; of other kinds only the sum, unless details are requested.
OPEN_KINDS = (CostKind.COMPUTE, CostKind.EGRESS)


def money_table(document: PlanDocument, *, details: bool, ascii_only: bool) -> Table:
    cost = document.cost
    assert cost is not None
    whole = expected_usd(cost)
    span = "cost of the run" if cost.total_usd is not None else "cost of one hour"
    table = plain_table(span, "expected", "worst case", "from", numbers=("expected", "worst case"))
    for branch in cost_tree(cost):
        opened = details or branch.kind in OPEN_KINDS
        table.add_row(
            f"[bold]{branch.title}[/]",
            f"[bold]{text.usd_aligned(branch.shown_usd, whole)}[/]",
            text.usd_aligned(branch.shown_worst_usd, whole),
            "" if opened else _marked(_summary(document, branch)),
        )
        if opened:
            _add_lines(table, document, branch, details=details, ascii_only=ascii_only)
    table.add_row(
        "[bold]total[/]",
        f"[bold]{text.usd_aligned(whole, whole)}[/]",
        f"[bold]{text.usd_aligned(worst_usd(cost), whole)}[/]",
        "USD",
    )
    return table


def _add_lines(table: Table, document: PlanDocument, branch: CostBranch, *, details: bool, ascii_only: bool) -> None:
    assert document.cost is not None
    whole = expected_usd(document.cost)
    middle, end = ("|-", "`-") if ascii_only else ("├─", "└─")
    for place, (line, shown) in enumerate(zip(branch.lines, branch.shown, strict=True)):
        mark = end if place == len(branch.lines) - 1 else middle
        table.add_row(
            _hanging(mark, line.what),
            *(text.usd_aligned(usd, whole) for usd in shown),
            _marked(_origin(document, line, details=details)),
        )


def _marked(origin: str) -> str:
    """Return text as markup that highlights a stale price."""
    return escape(origin).replace(" STALE", " [yellow]STALE[/]")


def _hanging(mark: str, what: str) -> Table:
    """Return a line whose continuation is indented to its text."""
    cell = Table.grid(padding=(0, 1, 0, 0))
    cell.add_column(no_wrap=True)
    cell.add_column(overflow="fold")
    cell.add_row(mark, escape(what))
    return cell


def _origin(document: PlanDocument, line: CostLine, *, details: bool) -> str:
    amount = f"{text.measure(line.quantity, line.unit)} at {text.usd(line.usd_per_unit)}"
    stale = " STALE" if line.stale else ""
    if details:
        return f"{amount}; {line.price_source}, {line.price_as_of.isoformat()}{stale}"
    return f"{amount}, {age_days(document, line.price_as_of)} d old{stale}"


def _summary(document: PlanDocument, branch: CostBranch) -> str:
    if len(branch.lines) == 1:
        return _origin(document, branch.lines[0], details=False)
    oldest = max(age_days(document, line.price_as_of) for line in branch.lines)
    stale = "" if not branch.stale else " STALE" if all(line.stale for line in branch.lines) else ", some STALE"
    return f"{len(branch.lines)} lines, up to {oldest} d old{stale}"


LARGEST_PARTS = 3
# From this share on, a colour marks memory as tight.
TIGHT = 0.9
# Width of their list in columns.
LARGEST_WIDTH = 48


def memory_table(document: PlanDocument, *, details: bool, ascii_only: bool, width: int) -> Table:
    """Return peak memory per device of each stage against the device's capacity."""
    rows = memory_rows(document)
    bases = {row.basis for row in rows}
    columns = bar_width(width - LARGEST_WIDTH if details else width)
    # The heading of the bars, which would otherwise be empty.
    basis = "" if len(bases) > 1 else "".join(bases)
    basis = basis if len(basis) <= columns else basis.replace(" ", "\n")
    peak = peak_heading(document) if width >= NARROW else peak_heading(document).replace(" + ", "\n+ ")
    headings = ("memory of", basis, peak, "of limit", *(("largest parts",) if details else ()))
    table = plain_table(*headings, numbers=(basis, peak, "of limit"))
    for row in rows:
        cells: list[str | Text] = [
            row.label if basis else f"{row.label}, {row.basis}",
            Text(bar(row.share, columns, ascii_only=ascii_only), style=_warmth(row.share)),
            text.size(row.memory.total_bytes),
            f"{text.share(row.share)} of {text.size(row.memory.limit_bytes)}",
        ]
        style = "red" if row.share > 1 else None
        table.add_row(*cells, *([_largest(row.memory)] if details else []), style=style)
    return table


def _warmth(share: float) -> str:
    return "red" if share > 1 else "yellow" if share > TIGHT else "green"


def waits_table(document: PlanDocument, *, ascii_only: bool, width: int) -> Table:
    """Return how the busiest stage spends an iteration."""
    assert document.prediction is not None
    waits = document.prediction.waits
    table = plain_table("iteration", "", "time", "share", numbers=("", "time", "share"))
    parts = (
        ("compute", waits.compute_s),
        ("transfer", waits.transfer_s),
        ("bubble", waits.bubble_s),
        ("all-reduces", waits.sync_s),
    )
    whole = sum(spent for _, spent in parts)
    for name, spent in parts:
        share = spent / whole if whole else 0.0
        table.add_row(name, bar(share, bar_width(width), ascii_only=ascii_only), text.seconds(spent), text.share(share))
    return table


def _largest(row: StageMemory) -> str:
    largest = sorted(row.parts.items(), key=lambda part: -part[1])[:LARGEST_PARTS]
    return ", ".join(f"{name} {text.size(part)}" for name, part in largest)


REJECTED_SHOWN = 5


def alternatives_table(document: PlanDocument, *, width: int) -> Table:
    """Return the other plans; on a narrow terminal without iteration time and hourly price."""
    wide = width >= NARROW
    numbers: tuple[str, ...] = ("iteration", "per iteration", "USD/h") if wide else ("per iteration",)
    numbers = (*numbers, usd_unit(document), "more USD")
    table = plain_table("instead", *numbers, "", numbers=numbers, gap=2 if wide else 1)
    for other in choices(document):
        if other.chosen:
            continue
        table.add_row(
            other.label,
            *((text.seconds(other.iteration_s),) if wide else ()),
            pace_text(1.0 + other.slower),
            *((text.usd(other.usd_per_hour),) if wide else ()),
            text.usd(other.usd),
            text.signed_usd_aligned(other.extra_usd, other.usd),
            other.verdict,
        )
    for row in without_plan(document):
        table.add_row(row.what, *("-" for _ in numbers), row.why)
    return table


def frontier_table(document: PlanDocument, *, width: int) -> Table:
    """Return the plans from the fastest to the cheapest; on a narrow terminal without zones and budget."""
    numbers, zones = frontier_numbers(document), ("",) if width >= NARROW else ()
    table = plain_table(TITLE, *zones, *numbers, BEST, numbers=numbers, gap=2 if width >= NARROW else 1)
    for devices, zone, *rest, best in frontier_rows(document):
        table.add_row(devices, *(zone for _ in zones), *rest, best if zones else best.partition(",")[0])
    return table


def rejected_table(document: PlanDocument, *, details: bool) -> Table:
    table = plain_table("ruled out", "why")
    found = ruled_out(document)
    shown = found if details else found[:REJECTED_SHOWN]
    for row in shown:
        table.add_row(row.what, row.why)
    hidden = len(found) - len(shown)
    if hidden:
        table.add_row(f"and {hidden} more", "see --details")
    return table


_COLOURS = {Status.OPTIMAL: "green", Status.FEASIBLE: "yellow", Status.INFEASIBLE: "bold red", Status.GIVEN: "cyan"}


def plan_report(
    document: PlanDocument,
    *,
    details: bool = False,
    whole: bool = True,
    rest: str = "",
    width: int = 120,
    ascii_only: bool = False,
) -> RenderableType:
    """Return the cost report of a plan; `details` adds sources of prices, every stage and the assumptions.

    Without `whole`, return only the decision, if there is one, and where the `rest` can be read.
    """
    if document.plan is None:
        return _infeasible(document)
    parts: list[RenderableType] = []
    if document.decision is not None and document.decision.choices:
        parts.append(decision_report(document.job, document.decision, width=width, ascii_only=ascii_only))
        if not whole:
            return Group(*parts, *([_block(Group(_title(document), Text(rest, style="dim")))] if rest else []))
        parts.append(_block(_title(document)))
    else:
        parts.append(_title(document))
    if not whole:
        return Group(*parts, _block(_facts(outcome_facts(document))))
    parts.append(_facts(request_facts(document)))
    tables: list[RenderableType] = [groups_table(document, width=width)]
    tables += [Text(line, style="dim") for line in (groups_key(document), *recompute_key(document)) if line]
    parts.append(_block(Group(*tables)))
    parts.append(_block(_facts(outcome_facts(document))))
    if document.cost is not None:
        parts.append(_block(money_table(document, details=details, ascii_only=ascii_only)))
    if document.prediction is not None:
        parts.append(_block(memory_table(document, details=details, ascii_only=ascii_only, width=width)))
    if details and document.prediction is not None:
        parts.append(_block(waits_table(document, ascii_only=ascii_only, width=width)))
    if document.alternatives or without_plan(document):
        parts.append(_block(alternatives_table(document, width=width)))
    if document.frontier:
        parts.append(_block(frontier_table(document, width=width)))
    if ruled_out(document):
        parts.append(_block(rejected_table(document, details=details)))
    if details and document.cost is not None:
        parts.append(_block(_prices(document)))
    if details and document.prediction is not None:
        parts.append(_block(_list("assumptions", assumptions(document))))
    if warnings := notes(document):
        parts.append(_block(Text("\n".join(warnings), style="yellow")))
    return Group(*parts)


def print_plan(
    document: PlanDocument, console: Console, *, details: bool = False, whole: bool = True, rest: str = ""
) -> None:
    """Print the cost report of a plan; see plan_report."""
    report = plan_report(
        document,
        details=details,
        whole=whole,
        rest=rest,
        width=console.width,
        ascii_only=console.options.ascii_only,
    )
    print_report(report, console)


def plan_as_text(document: PlanDocument, *, details: bool = False, width: int = 120, ascii_only: bool = False) -> str:
    """Return the report as plain text for a file."""
    return rendered(plan_report(document, details=details, width=width, ascii_only=ascii_only), width=width)


def _block(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


def _title(document: PlanDocument) -> Text:
    title = Text()
    title.append(document.job.name, style="bold")
    title.append("  ")
    title.append(proof(document), style=_COLOURS[document.status])
    return title


def _facts(facts: tuple[Fact, ...]) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for fact in facts:
        rows.add_row(fact.name, fact.value)
    return rows


def _prices(document: PlanDocument) -> Table:
    table = plain_table("price of", "USD per unit", "as of", "age", "source", numbers=("USD per unit", "age"))
    for row in price_rows(document):
        day = row.as_of_from.isoformat()
        if row.as_of_to != row.as_of_from:
            day += f" to {row.as_of_to.isoformat()}"
        table.add_row(
            row.what,
            f"{text.usd(row.usd)}/{row.unit}",
            day + (" STALE" if row.stale else ""),
            f"{row.age_days} d",
            row.provenance,
        )
    return table


def _list(heading: str, lines: tuple[str, ...]) -> RenderableType:
    rows = Table.grid(padding=(0, 1))
    rows.add_column()
    rows.add_column(overflow="fold")
    for line in lines:
        rows.add_row("-", line)
    return Group(Text(heading, style="bold"), rows)


def _infeasible(document: PlanDocument) -> RenderableType:
    reason = document.infeasibility
    message = reason.message if reason else "no plan meets the constraints"
    parts: list[RenderableType] = [Text(f"{document.job.name}: infeasible: {message}", style="bold red")]
    if ruled_out(document):
        parts.append(_block(rejected_table(document, details=True)))
    return Group(*parts)
