"""`sailor-cloud doctor`: checks this machine."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option
from sailor_cloud.cli.terminal.waiting import waiting


@click.command(short_help="Check that this machine has what sailor-cloud needs.")
@json_option
def doctor(as_json: bool) -> int:
    """Check that this machine has what sailor-cloud needs; exits with 1 if something is missing.

    \b
    sailor-cloud doctor
    """
    from dataclasses import asdict

    from sailor_cloud.launch.doctor import examine
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.tables import plain_table, print_report

    with waiting("looking at this machine") as show:
        checks = examine(show)
    if as_json:
        echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        table = plain_table("check", "", "found", "needed for")
        for check in checks:
            mark = "[green]ok[/]" if check.ok else "[yellow]optional[/]" if check.optional else "[red]missing[/]"
            table.add_row(check.name, mark, check.found, check.needed_for)
        print_report(table, result_console())
        for check in checks:
            if not check.ok:
                echo(f"{check.name}: {check.advice}")
    return 0 if all(check.ok or check.optional for check in checks) else 1
