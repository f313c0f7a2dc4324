"""`sailor-cloud diff`: the cost of a change in the job file."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import PersistentStream, echo
from sailor_cloud.cli.terminal.options import (
    NOT_NEGATIVE,
    check_output,
    form_of,
    json_option,
    read_document,
    write_output,
)
from sailor_cloud.errors import RequestError
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from sailor_cloud.report.comparison.difference import Difference

TOO_MUCH = 1
INFEASIBLE = 3

_DOCUMENT = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Show what the change from one plan to another costs.")
@click.argument("base", metavar="BASE.json", type=_DOCUMENT)
@click.argument("head", metavar="HEAD.json", type=_DOCUMENT)
@click.option("--format", "form", type=click.Choice(["table", "json", "markdown"]), help="Output format.")
@json_option
@click.option("--fail-above-usd", metavar="USD", type=NOT_NEGATIVE, help="Exit with 1 if the increase exceeds this.")
@click.option(
    "--fail-above-percent",
    metavar="PERCENT",
    type=NOT_NEGATIVE,
    help="Exit with 1 if the increase exceeds this share of BASE.",
)
@click.option("-o", "--output", metavar="FILE", type=_DOCUMENT, help="Write to FILE: .json, .md or .txt.")
def diff(
    base: Path,
    head: Path,
    form: str | None,
    as_json: bool,
    fail_above_usd: float | None,
    fail_above_percent: float | None,
    output: Path | None,
) -> int:
    """Show what a change costs: from the plan in BASE.json to the plan in HEAD.json, both written by 'plan -o'.

    Exits with 3 if HEAD is infeasible, and with 1 if it costs more than a limit allows. If BASE is infeasible, the
    whole cost of HEAD counts as the change.

    \b
    sailor-cloud diff before.json after.json
    sailor-cloud diff before.json after.json --format markdown -o comment.md
    sailor-cloud diff before.json after.json --fail-above-usd 50 --fail-above-percent 10
    """
    from sailor_cloud.report.comparison.difference import (
        difference,
        difference_as_json,
        difference_as_markdown,
        difference_as_text,
        print_difference,
    )
    from sailor_cloud.report.console import result_console

    check_output(output)
    forms = {"json": difference_as_json, "markdown": difference_as_markdown, "table": difference_as_text}
    chosen = "json" if as_json else form or "table"
    wanted = form or ("json" if as_json else None)
    into = chosen if output is None else form_of(output, wanted, alone=form is not None)
    if into not in forms:
        raise RequestError(f"can't write {output}: 'diff' has no {into}; name a .json, .md or .txt file")
    documents = [read_document(file) for file in (base, head)]
    for document in documents:
        document.check_offers()
    found = difference(*documents)
    # A reader that leaves early must not change the exit code.
    with redirect_stdout(PersistentStream(sys.stdout, BrokenPipeError)):
        if chosen == "table" and output is None:
            print_difference(found, result_console())
        else:
            write_output(output, forms[into](found))
            if as_json and output is not None:
                write_output(None, difference_as_json(found))
        sys.stdout.flush()
    excess = _excess(found, fail_above_usd, fail_above_percent)
    if excess:
        echo(f"error: {excess}", err=True)
        return TOO_MUCH
    return INFEASIBLE if found.head_status == "infeasible" else 0


def _excess(found: Difference, usd: float | None, percent: float | None) -> str:
    """Return the exceeded limit, or one that can't be checked; "" if there is none.

    Without a base plan, the whole cost counts as the change.
    """
    from sailor_cloud.report.comparison.difference import TOTAL

    unit, head, delta, share = found.usd.unit, found.usd.head, found.usd.delta, found.usd.share
    if head is None or (usd is None and percent is None):
        return ""
    if len(found.unknown) == 1 or (usd is not None and unit != TOTAL):
        whose = " and ".join(found.unknown)
        return (
            f"the limit can't be checked, since the total of {whose} is unknown; it needs training.steps, and "
            "throughput for a command"
        )
    if delta is None:
        if usd is None:
            return (
                f"BASE has no plan to compare with, so a limit of {percent:g} % can't be checked; give --fail-above-usd"
            )
        if head > usd:
            return f"BASE has no plan, so the whole cost counts: {usd_text(head)} {unit}, allowed are {usd_text(usd)}"
        return ""
    if usd is not None and delta > usd:
        return f"the change costs {usd_text(delta)} {unit} more, allowed are {usd_text(usd)}"
    if percent is not None and share is None and delta > 0.0:
        return f"BASE costs nothing, so a limit of {percent:g} % can't be checked; give --fail-above-usd"
    if percent is not None and share is not None and 100 * share > percent:
        return f"the change costs {100 * share:.3g} % more, allowed are {percent:g} %"
    return ""
