"""`sailor-cloud import` and `sailor-cloud export`: other tools' formats."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click

from sailor_cloud.cli.options import as_of_option, clock_for, json_option, read_document, write_output
from sailor_cloud.cli.waiting import waiting

_FORMATS = click.Choice(["sailor-artifact"])


@click.command(name="import", short_help="Read another tool's profiles, network and clusters into our formats.")
@click.argument("form", metavar="FORMAT", type=_FORMATS)
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o", "--output", metavar="OUT", required=True, type=click.Path(file_okay=False, path_type=Path), help="New folder."
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="What the layer times stand for; the artifact doesn't say.",
)
@as_of_option
@json_option
def import_data(form: str, folder: Path, output: Path, precision: str, as_of: datetime | None, as_json: bool) -> None:
    """Read Sailor's artifact in DIR and write compute profiles, curves, prices and jobs to OUT.

    DIR is the root of its repository as it was published, or a folder with its data files. Without --engine, plans are
    judged by our simulator; with it, by the artifact's own formulas.

    \b
    sailor-cloud import sailor-artifact sailor/ -o mine
    sailor-cloud plan mine/jobs/scaled-0-opt-350.yaml --profiles mine/compute_profiles \\
        --network mine/bandwidth_profiles --pricing mine/pricing --engine sailor-artifact -o plan.json
    sailor-cloud export plan.json --format sailor-artifact
    """
    from dataclasses import asdict

    from sailor_cloud.errors import RequestError
    from sailor_cloud.interchange import import_artifact
    from sailor_cloud.model.offer import Precision

    if output.exists() and any(output.iterdir()):
        raise RequestError(f"{output} is not empty; name a new folder with -o")
    with waiting("reading the artifact") as show:
        day = clock_for(as_of).now().date()
        done = import_artifact(folder, output, precision=Precision(precision), as_of=day, progress=show)
    if as_json:
        click.echo(json.dumps({**asdict(done), "folder": str(done.folder)}, indent=2))
        return
    click.echo(f"profiles of {', '.join(done.accelerators)} in {output / 'compute_profiles'}")
    if done.tf32:
        click.echo(f"faster than FP32 units can be, hence with TF32, and kept apart: models on {', '.join(done.tf32)}")
    if done.differing:
        names = ", ".join(f"{model} on {accelerator}" for model, accelerator in done.differing)
        click.echo(f"its planner and its simulator have different times, and the simulator's were taken: {names}")
    click.echo(f"{done.curves} bandwidth curves in {output / 'bandwidth_profiles'}")
    click.echo(f"offers and egress prices in {output / 'pricing'}")
    if done.unpriced:
        click.echo(f"no price in the artifact, hence no offers: {', '.join(done.unpriced)}")
    click.echo(f"{done.jobs} jobs in {output / 'jobs'}")


@click.command(name="export", short_help="Write a plan in another tool's format.")
@click.argument("plan_file", metavar="PLAN", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--format", "form", type=_FORMATS, required=True, help="Whose format.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE.")
@json_option
def export(plan_file: Path, form: str, output: Path | None, as_json: bool) -> None:
    """Write the plan document PLAN as the JSON that Sailor's artifact reads.

    Without -o the plan itself is printed; with it, --json tells what was written where.

    \b
    sailor-cloud export plan.json --format sailor-artifact -o sailor.json
    """
    from sailor_cloud.errors import RequestError
    from sailor_cloud.interchange import export_plan

    document = read_document(plan_file)
    if document.plan is None:
        raise RequestError(f"{plan_file} is {document.status} and holds no plan; there is nothing to export")
    content = json.dumps(export_plan(document.plan, document.inputs.hardware_by_id()), indent=1)
    if output is None:
        click.echo(content)
    else:
        write_output(output, content + "\n")
        if as_json:
            click.echo(json.dumps({"format": form, "plan": str(plan_file), "output": str(output)}, indent=2))
