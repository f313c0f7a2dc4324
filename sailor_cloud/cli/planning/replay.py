"""`sailor-cloud replay`: a job against an availability trace, in simulated time."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.planning.plan import INFEASIBLE
from sailor_cloud.cli.terminal.options import POSITIVE, as_of_option, clock_for, cluster_options, json_option, read_job
from sailor_cloud.cli.terminal.waiting import waiting

if TYPE_CHECKING:
    from sailor_cloud.model.job import Job


@click.command(short_help="Run a job against an availability trace, in simulated time.")
@click.argument("trace_file", metavar="TRACE", type=click.Path(path_type=Path))
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
    type=POSITIVE,
    default=1.0,
    help="Multiply the trace's times by this factor; below 1, its events come earlier.",
)
@click.option(
    "--deadline",
    "deadlines",
    multiple=True,
    metavar="DURATION",
    help="With recorded spot availability: a deadline such as 60h; may be repeated. The job's own otherwise.",
)
@click.option(
    "--every",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="With recorded spot availability: start the job again at this interval.",
)
@cluster_options
@click.option("-v", "--verbose", is_flag=True, help="Show what the controller does.")
@as_of_option
@json_option
def replay(
    trace_file: Path,
    job_file: Path,
    policies: tuple[str, ...],
    stretch: float,
    deadlines: tuple[str, ...],
    every: str,
    on: str | None,
    cluster: Path | None,
    verbose: bool,
    as_of: datetime | None,
    as_json: bool,
) -> int:
    """Run the whole controller on JOB while devices come and go as TRACE says, and compare ways to react.

    'best' weighs money and time to finish, 'never-replan' waits for nodes like those it lost, 'always-replan' takes
    the best plan whenever there is one. Nothing is bought or trained.

    If TRACE is recorded spot availability, a JSON file per zone as in skypilot-org/spot-traces or a folder of them, the
    command compares policies for a deadline instead: when to wait for spot, when to pay for on-demand.

    \b
    sailor-cloud replay examples/traces/lost-zone.csv examples/gcp-a100-v100.yaml --stretch 0.5
    sailor-cloud replay spot-traces/aws-02-15-2023 job.yaml --deadline 60h --deadline 92h
    """
    from dataclasses import asdict

    from sailor_cloud import api
    from sailor_cloud.launch.replanning.replan import Policy
    from sailor_cloud.launch.simulation.trace_file import read_trace
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.replay_text import replay_report
    from sailor_cloud.report.tables import print_report

    job = read_job(job_file, on=on, cluster=cluster)
    if trace_file.is_dir() or trace_file.suffix == ".json":
        return _replay_spot(trace_file, job, job_file.parent, deadlines, every, as_of, as_json)
    trace = read_trace(trace_file).scaled_time(stretch)

    def say(at_s: float, text: str) -> None:
        if verbose:
            echo(f"{at_s / 3600:7.2f} h  {text}", err=True)

    with nullcontext(_silent) if verbose else waiting("running the controller on the trace") as show:
        results = api.replay(
            job,
            trace,
            policies=[Policy(name) for name in policies] or list(Policy),
            base=job_file.parent,
            clock=clock_for(as_of),
            say=say,
            progress=show,
        )
    if not results:
        echo("error: no plan is feasible with the devices that the trace has at its start", err=True)
        return INFEASIBLE
    if as_json:
        echo(json.dumps([asdict(result) for result in results], indent=2))
    else:
        print_report(replay_report(results), result_console())
    return 0


def _replay_spot(
    traces: Path, job: Job, base: Path, deadlines: tuple[str, ...], every: str, as_of: datetime | None, as_json: bool
) -> int:
    from dataclasses import asdict

    from sailor_cloud import api
    from sailor_cloud.launch.simulation.spot_traces import read_spot_traces
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.replay_text import spot_replay_report
    from sailor_cloud.report.tables import print_report

    zones = read_spot_traces(traces)
    every_s, deadlines_s = _duration("--every", every), [_duration("--deadline", text) for text in deadlines]
    with waiting("running policies on the traces") as show:
        rows = api.replay_spot(
            job,
            zones,
            deadlines_s=deadlines_s,
            every_s=every_s,
            base=base,
            clock=clock_for(as_of),
            progress=show,
        )
    if not rows:
        echo("error: no plan on demand is feasible, so there is nothing to fall back to", err=True)
        return INFEASIBLE
    if as_json:
        echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_report(spot_replay_report(rows, zones=[zone.zone for zone in zones]), result_console())
    return 0


def _duration(name: str, text: str) -> float:
    from sailor_cloud.errors import Problem, RequestError
    from sailor_cloud.units import parse_duration_s

    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise RequestError([Problem(path=name, message=str(error))]) from error
    if seconds <= 0:
        raise RequestError([Problem(path=name, message=f"must be more than 0, not {text!r}")])
    return seconds


def _silent(done: float, of: float, what: str = "") -> None:
    """Show no bar: with --verbose the lines show the progress."""
