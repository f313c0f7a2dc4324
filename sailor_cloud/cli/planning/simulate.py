"""`sailor-cloud simulate`: time, memory and cost of an existing plan, or of a layout on stated nodes."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import (
    ENGINES,
    as_of_option,
    check_output,
    clock_for,
    cluster_options,
    data_options,
    form_of,
    json_option,
    read_document,
    read_job,
    refuse_on_a_plan,
    write_output,
)
from sailor_cloud.cli.terminal.waiting import Show, waiting
from sailor_cloud.errors import RequestError

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Job
    from sailor_cloud.simulator import Evaluation
    from sailor_cloud.simulator.resimulate import Simulation

INFEASIBLE = 3


@click.command(short_help="Simulate a plan or a layout on nodes: time, memory, money.")
@click.argument("file", metavar="PLAN|JOB", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--layout", metavar="DEGREES", help="The layout of JOB, as 'tp=4 pp=2 dp=4 microbatch=1 zero=1'.")
@click.option(
    "--nodes",
    metavar="NODES",
    multiple=True,
    help="The nodes of JOB, as '4 x a2-highgpu-8g@us-central1-a'; may be given several times.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="The training program to simulate; default: the plan's, or sailor.",
)
@cluster_options
@data_options
@as_of_option
@click.option(
    "--timeline",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every operation of one iteration to FILE, for Perfetto or chrome://tracing.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as one HTML page to FILE.",
)
@json_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan to FILE (.json).",
)
def simulate(
    file: Path,
    layout: str | None,
    nodes: tuple[str, ...],
    engine: str | None,
    on: str | None,
    cluster: Path | None,
    as_of: datetime | None,
    timeline: Path | None,
    html: Path | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Simulate the plan document PLAN, or a layout of the job file JOB. A plan keeps its own prices without --pricing.

    A layout has the degrees tp, pp, dp and microbatch, zero (the ZeRO stage), recompute (none, selective or full),
    schedule (1f1b, zero-bubble or interleaved) and chunks (layer ranges per stage of an interleaved schedule, default
    2). Degrees default to 1; dp defaults to as many pipelines as the devices allow.

    Nodes may be outside the job's resources. Write TYPE@ZONE, TYPE@ZONE/spot for the spot price, TYPE:8xA100-40@ZONE
    if the type carries several accelerators or has no price there, or 8xA100-40@ZONE for your own machine without a
    price.

    -o writes a plan document: edit its pipelines by hand and simulate it again. Exits with 3 if a device has too
    little memory.

    \b
    sailor-cloud simulate plan.json
    sailor-cloud simulate plan.json --timeline trace.json
    sailor-cloud simulate plan.json --json | jq .prediction.iteration_s_replay
    sailor-cloud simulate job.yaml --layout 'tp=4 pp=2 dp=4 recompute=full' \\
        --nodes '4 x a2-highgpu-8g@us-central1-a' --engine megatron -o plan.json
    """
    from sailor_cloud.report.plan.facts import short_of_memory

    for path in (timeline, html, output):
        check_output(path)
    if output is not None and form_of(output, "json", alone=False) != "json":
        raise RequestError(f"can't write {output}: -o writes a plan, so name a .json file; --html FILE writes a report")
    given = layout is not None or bool(nodes)
    if given and (layout is None or not nodes):
        raise RequestError("--layout and --nodes belong together: how to train, and on what")
    spans = timeline is not None or html is not None
    with waiting("simulating the plan") as show:
        if layout is not None:
            job = read_job(file, on=on, cluster=cluster)
            simulation = _layout(job, file.parent, layout, nodes, engine, as_of, show, timeline=spans)
        else:
            refuse_on_a_plan(file, on, cluster)
            simulation = _plan(file, engine, as_of, show, timeline=spans)
    document, evaluation = simulation.document, simulation.evaluation
    if timeline is not None and document.plan is not None:
        from sailor_cloud.simulator.timing.timeline import trace_events

        trace = trace_events(document.plan, evaluation.timeline)
        write_output(timeline, json.dumps(trace, separators=(",", ":")) + "\n")
    if html is not None:
        from sailor_cloud import catalog
        from sailor_cloud.report.html.page import plan_as_html

        write_output(html, plan_as_html(document, timeline=evaluation.timeline, regions=catalog.load().regions()))
    if output is not None:
        write_output(output, document.to_json())
    if as_json:
        echo(json.dumps(_as_json(document, evaluation), indent=2, ensure_ascii=False))
    else:
        _print(document, evaluation)
    return INFEASIBLE if any(short_of_memory(document)) else 0


def _layout(
    job: Job,
    base: Path,
    layout: str,
    nodes: tuple[str, ...],
    engine: str | None,
    as_of: datetime | None,
    show: Show,
    *,
    timeline: bool,
) -> Simulation:
    from sailor_cloud import api

    return api.simulate_layout(
        job,
        layout=layout,
        nodes=nodes,
        engine=engine or ENGINES[0],
        base=base,
        clock=clock_for(as_of),
        timeline=timeline,
        progress=show,
    )


def _plan(file: Path, engine: str | None, as_of: datetime | None, show: Show, *, timeline: bool) -> Simulation:
    from sailor_cloud import catalog as catalogs
    from sailor_cloud import network as networks
    from sailor_cloud import resources, workload
    from sailor_cloud.simulator.resimulate import simulate_document, without_search_results

    if file.suffix in (".yaml", ".yml"):
        raise RequestError(f"{file} is a job file; give --layout and --nodes with it, or simulate a plan document")
    document = read_document(file)
    show(0, 4, "reading prices")
    prices = catalogs.load()
    show(1, 4, "reading bandwidths")
    links = networks.load()
    show(2, 4, "reading compute profiles")
    speeds = workload.profiles.load()
    show(3, 4, "simulating the plan")
    simulation = simulate_document(
        document,
        catalog=prices,
        network=links,
        profiles=speeds,
        decoder=workload.job_decoder(document.job, base=file.parent),
        as_of=clock_for(as_of).now() if as_of else document.as_of,
        engine=engine,
        reprice=resources.folders().pricing is not None,
        timeline=timeline,
    )
    return replace(simulation, document=without_search_results(simulation.document))


def _as_json(document: PlanDocument, evaluation: Evaluation) -> dict[str, Any]:
    raw = document.to_dict()
    return {
        "schema_version": raw["schema_version"],
        "as_of": raw["as_of"],
        "engine": raw["engine"],
        "fits": evaluation.fits,
        "prediction": raw["prediction"],
        "cost": raw["cost"],
        "links": raw["inputs"]["links"],
        "compute_profiles": raw["inputs"]["compute_profiles"],
        "stage_waits": [
            {
                "pipeline": stage.pipeline,
                "stage": stage.stage,
                "compute_s": stage.waits.compute_s,
                "transfer_s": stage.waits.transfer_s,
                "bubble_s": stage.waits.bubble_s,
                "sync_s": stage.waits.sync_s,
            }
            for stage in evaluation.stage_waits
        ],
    }


def _print(document: PlanDocument, evaluation: Evaluation) -> None:
    from sailor_cloud.report import text
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.plan.facts import short_of_memory
    from sailor_cloud.report.plan.plan_text import print_plan

    for line in short_of_memory(document):
        echo(f"{line}\n")
    console = result_console()
    print_plan(document, console, details=True)
    seconds = evaluation.prediction.iteration_s_replay
    echo(f"\nwhat each stage does in an iteration of {text.seconds(seconds)}")
    for first, last, lines in _alike(evaluation, seconds):
        name = f"pipeline {first}" if first == last else f"pipelines {first}-{last}"
        for stage, waits_of_stage in enumerate(lines):
            line = f"  {name} stage {stage}: {waits_of_stage}"
            echo(textwrap.fill(line, console.width, subsequent_indent="    ", break_long_words=False))


def _alike(evaluation: Evaluation, seconds: float) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return the work of each pipeline's stages, once for equal neighbours: first, last, lines."""
    from sailor_cloud.report import text

    stages: dict[int, list[str]] = {}
    for stage in evaluation.stage_waits:
        waits = stage.waits
        shares = (
            ("compute", waits.compute_s),
            ("transfer", waits.transfer_s),
            ("bubble", waits.bubble_s),
            ("all-reduce", waits.sync_s),
        )
        parts = ", ".join(f"{name} {text.share(part / seconds)}" for name, part in shares)
        stages.setdefault(stage.pipeline, []).append(parts)
    found: list[tuple[int, int, tuple[str, ...]]] = []
    for pipeline, lines in stages.items():
        if found and found[-1][2] == tuple(lines):
            found[-1] = (found[-1][0], pipeline, tuple(lines))
        else:
            found.append((pipeline, pipeline, tuple(lines)))
    return found
