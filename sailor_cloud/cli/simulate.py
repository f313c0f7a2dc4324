"""`sailor-cloud simulate`: time, memory and money of a plan that is already made."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.options import (
    as_of_option,
    clock_for,
    data_options,
    json_option,
    read_document,
    write_output,
)
from sailor_cloud.cli.waiting import waiting

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.simulator import Evaluation


@click.command(short_help="Simulate a plan: time, memory, money, and what it waits for.")
@click.argument("plan_file", metavar="PLAN", type=click.Path(dir_okay=False, path_type=Path))
@data_options
@as_of_option
@click.option(
    "--timeline",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every operation of one iteration to FILE, for Perfetto or chrome://tracing.",
)
@json_option
def simulate(
    plan_file: Path,
    profiles: Path | None,
    network: Path | None,
    pricing: Path | None,
    as_of: datetime | None,
    timeline: Path | None,
    as_json: bool,
) -> None:
    """Simulate the plan document PLAN, as 'plan -o' writes it, at its own prices unless --pricing is given.

    \b
    sailor-cloud simulate plan.json
    sailor-cloud simulate plan.json --timeline trace.json
    sailor-cloud simulate plan.json --json | jq .prediction.iteration_s_replay
    """
    from sailor_cloud import catalog as catalogs
    from sailor_cloud import network as networks
    from sailor_cloud import workload
    from sailor_cloud.simulator.resimulate import simulate_document
    from sailor_cloud.simulator.timeline import trace_events

    document = read_document(plan_file)
    with waiting("simulating the plan") as show:
        show(0, 4, "reading prices")
        prices = catalogs.load(pricing=pricing)
        show(1, 4, "reading bandwidths")
        links = networks.load(profiles=network, pricing=pricing)
        show(2, 4, "reading compute profiles")
        speeds = workload.profiles.load(profiles=profiles)
        show(3, 4, "simulating the plan")
        simulation = simulate_document(
            document,
            catalog=prices,
            network=links,
            profiles=speeds,
            decoder=workload.decoder(document.job.model, base=plan_file.parent),
            as_of=clock_for(as_of).now() if as_of else document.as_of,
            reprice=pricing is not None,
            timeline=timeline is not None,
        )
    if timeline is not None and document.plan is not None:
        trace = trace_events(document.plan, simulation.evaluation.timeline)
        write_output(timeline, json.dumps(trace, separators=(",", ":")) + "\n")
    if as_json:
        click.echo(json.dumps(_as_json(simulation.document, simulation.evaluation), indent=2, ensure_ascii=False))
    else:
        _print(simulation.document, simulation.evaluation)


def _as_json(document: PlanDocument, evaluation: Evaluation) -> dict[str, Any]:
    raw = document.to_dict()
    return {
        "schema_version": raw["schema_version"],
        "as_of": raw["as_of"],
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
    from sailor_cloud.report.plan_text import print_plan

    print_plan(document, result_console(), details=True)
    seconds = evaluation.prediction.iteration_s_replay
    click.echo(f"\nwhat each stage does in an iteration of {text.seconds(seconds)}")
    for first, last, lines in _alike(evaluation, seconds):
        name = f"pipeline {first}" if first == last else f"pipelines {first}-{last}"
        for stage, told in enumerate(lines):
            click.echo(f"  {name} stage {stage}: {told}")
    if not evaluation.fits:
        short = [stage for stage in evaluation.prediction.memory if stage.total_bytes > stage.limit_bytes]
        click.echo(f"\ndoes not fit: {len(short)} of {len(evaluation.prediction.memory)} stages need too much memory")


def _alike(evaluation: Evaluation, seconds: float) -> list[tuple[int, int, tuple[str, ...]]]:
    """Return what the stages of each pipeline do, once for neighbours that do the same: first, last, lines."""
    from sailor_cloud.report import text

    stages: dict[int, list[str]] = {}
    for stage in evaluation.stage_waits:
        waits = stage.waits
        shares = (
            ("compute", waits.compute_s),
            ("transfer", waits.transfer_s),
            ("bubble", waits.bubble_s),
            ("sync", waits.sync_s),
        )
        told = ", ".join(f"{name} {text.share(part / seconds)}" for name, part in shares)
        stages.setdefault(stage.pipeline, []).append(told)
    found: list[tuple[int, int, tuple[str, ...]]] = []
    for pipeline, lines in stages.items():
        if found and found[-1][2] == tuple(lines):
            found[-1] = (found[-1][0], pipeline, tuple(lines))
        else:
            found.append((pipeline, pipeline, tuple(lines)))
    return found
