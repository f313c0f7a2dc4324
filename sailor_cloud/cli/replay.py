"""`sailor-cloud replay`: a job against an availability trace, in simulated time."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path

import click

from sailor_cloud.cli.options import as_of_option, clock_for, json_option, read_job
from sailor_cloud.cli.plan import INFEASIBLE
from sailor_cloud.cli.waiting import waiting


@click.command(short_help="Run a job against an availability trace, in simulated time.")
@click.argument("trace_file", metavar="TRACE", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("job_file", metavar="JOB", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(["best", "never-replan", "always-replan"]),
    help="Only this policy; may be repeated. All three are compared by default.",
)
@click.option(
    "--stretch",
    metavar="FACTOR",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="Let the trace run so many times as slowly.",
)
@click.option("-v", "--verbose", is_flag=True, help="Tell what the controller does.")
@as_of_option
@json_option
def replay(
    trace_file: Path,
    job_file: Path,
    policies: tuple[str, ...],
    stretch: float,
    verbose: bool,
    as_of: datetime | None,
    as_json: bool,
) -> int:
    """Run the whole controller on JOB while devices come and go as TRACE says, and compare ways to react.

    'best' weighs money and time to finish, 'never-replan' waits for nodes like those it lost, 'always-replan' takes
    the best plan whenever there is one. Nothing is bought and nothing is trained.

    \b
    sailor-cloud replay examples/traces/lost-zone.csv examples/gcp-a100-v100.yaml
    """
    from dataclasses import asdict

    from sailor_cloud import api
    from sailor_cloud.launch.replanning.replan import Policy
    from sailor_cloud.launch.simulation.trace_file import read_trace
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.replay_text import replay_report
    from sailor_cloud.report.tables import print_report

    trace = read_trace(trace_file).scaled_time(stretch)

    def say(at_s: float, text: str) -> None:
        if verbose:
            click.echo(f"{at_s / 3600:7.2f} h  {text}", err=True)

    with nullcontext(_silent) if verbose else waiting("running the controller on the trace") as show:
        results = api.replay(
            read_job(job_file),
            trace,
            policies=[Policy(name) for name in policies] or list(Policy),
            base=job_file.parent,
            clock=clock_for(as_of),
            say=say,
            progress=show,
        )
    if not results:
        click.echo("error: no plan is feasible with the devices that the trace has at its start", err=True)
        return INFEASIBLE
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print_report(replay_report(results), result_console())
    return 0


def _silent(done: float, of: float, what: str = "") -> None:
    """With --verbose the lines tell how far it is."""
