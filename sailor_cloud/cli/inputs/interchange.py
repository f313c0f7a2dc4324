"""`sailor-cloud import` and `sailor-cloud export`: other tools' formats."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import as_of_option, clock_for, json_option, read_document, write_output
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.model import provider
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument

_FORMATS = click.Choice(["sailor-artifact", "slurm", "jobset", "torchtitan", "skypilot"])


@click.command(name="import", short_help="Read profiles, clusters or reserved capacity into our formats.")
@click.argument("form", metavar="FORMAT", type=click.Choice(["sailor-artifact", "slurm", "capacity"]))
@click.argument("source", metavar="[DIR|JOB]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o", "--output", metavar="OUT", required=True, type=click.Path(path_type=Path), help="New folder, or inventory."
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
    default="fp32",
    show_default=True,
    help="The precision of the artifact's layer times, which it does not state.",
)
@click.option("--checkpoints", metavar="PLACE", help="slurm: a folder that all nodes have, gs:// or s3://.")
@click.option("--python", metavar="PATH", default="python3", help="slurm: an interpreter with torch, on all nodes.")
@click.option(
    "--days", type=click.IntRange(1, 182), default=1, show_default=True, help="capacity: length of the blocks, in days."
)
@as_of_option
@json_option
def import_data(
    form: str,
    source: Path | None,
    output: Path,
    precision: str,
    checkpoints: str | None,
    python: str,
    days: int,
    as_of: datetime | None,
    as_json: bool,
) -> None:
    """Read Sailor's artifact in DIR and write compute profiles, curves, prices and jobs to OUT.

    DIR is the published repository, or a folder with its data files. Our simulator judges plans made from it; with
    'plan --engine sailor-artifact' the artifact's own formulas do.

    With 'capacity', list what the accounts of the job file JOB have reserved, and the capacity blocks that AWS offers.
    OUT is then a capacity file for the job.

    With 'slurm', read sinfo and scontrol and write the cluster's inventory to OUT.

    \b
    sailor-cloud import sailor-artifact sailor/ -o mine
    sailor-cloud plan mine/jobs/scaled-0-opt-350.yaml --profiles mine/compute_profiles \\
        --network mine/bandwidth_profiles --pricing mine/pricing --engine sailor-artifact -o plan.json
    sailor-cloud export plan.json --format sailor-artifact
    sailor-cloud import capacity job.yaml -o capacity.yaml --days 2
    sailor-cloud import slurm -o cluster.yaml --checkpoints /shared/checkpoints --python /shared/venv/bin/python
    """
    from sailor_cloud.errors import RequestError

    if form == "capacity":
        if source is None or source.is_dir():
            raise RequestError("name a job file: its zones and accelerators are looked up")
        _import_capacity(source, output, days, as_of, as_json)
        return
    folder = source
    if folder is not None and not folder.is_dir():
        raise RequestError(f"{folder} is not a folder")
    if form == "slurm":
        if folder is not None:
            raise RequestError(f"import slurm takes no folder ({folder}): it reads sinfo and scontrol")
        _import_slurm(output, checkpoints, python, as_of, as_json)
        return
    if folder is None:
        raise RequestError("name the folder DIR with the artifact's data files")
    _import_artifact(folder, output, precision, as_of, as_json)


def _import_capacity(job_file: Path, output: Path, days: int, as_of: datetime | None, as_json: bool) -> None:
    from sailor_cloud import catalog
    from sailor_cloud.catalog.capacity import as_yaml
    from sailor_cloud.errors import RequestError
    from sailor_cloud.model.job_file import read_job
    from sailor_cloud.provision.checks.capacity_offers import found_capacity

    if output.exists():
        raise RequestError(f"{output} exists; name a new file with -o")
    found, missing = found_capacity(read_job(job_file), catalog.load(), days, clock_for(as_of).now())
    if not found:
        why = f"not everything was read: {'; '.join(missing)}" if missing else "try other --days or zones"
        raise RequestError(f"found nothing reserved and nothing offered for {job_file}; {why}")
    write_output(output, as_yaml(found))
    if as_json:
        entries = [entry.model_dump(mode="json", exclude_none=True) for entry in found]
        echo(json.dumps({"capacity": str(output), "entries": entries, "missing": missing}, indent=2))
        return
    for entry in found:
        price = "held already" if entry.id is not None else f"{usd_text(entry.usd or 0.0)} USD"
        begins = "now" if entry.starts_at is None else f"{entry.starts_at:%Y-%m-%d %H:%M} UTC"
        echo(f"{entry.name}: {entry.nodes} x {entry.instance_type} in {entry.zone} from {begins}, {price}")
    for note in missing:
        echo(f"note: {note}", err=True)


def _import_slurm(output: Path, checkpoints: str | None, python: str, as_of: datetime | None, as_json: bool) -> None:
    from sailor_cloud import catalog
    from sailor_cloud.catalog.clusters import as_yaml
    from sailor_cloud.errors import RequestError
    from sailor_cloud.provision import providers

    if output.exists():
        raise RequestError(f"{output} exists; name a new file with -o")
    if checkpoints is None or not checkpoints.startswith(("/", "gs://", "s3://")):
        raise RequestError("--checkpoints must be a folder under one name on all nodes, gs:// or s3://")
    scheduler = providers.of(provider.Provider(provider.CLUSTERS[0])).scheduler
    assert scheduler is not None
    found = scheduler.inventory(
        accelerators=catalog.load().accelerator_names(),
        checkpoints=checkpoints,
        python=python,
        as_of=clock_for(as_of).now().date(),
    )
    write_output(output, as_yaml(found.inventory))
    if as_json:
        groups = {name: group.nodes for name, group in found.inventory.groups.items()}
        echo(json.dumps({"inventory": str(output), "groups": groups, "notes": found.notes}, indent=2))
        return
    for name, group in found.inventory.groups.items():
        echo(f"{name}: {group.nodes} nodes of {group.devices_per_node} {group.accelerator}")
    for note in found.notes:
        echo(f"note: {note}", err=True)


def _import_artifact(folder: Path, output: Path, precision: str, as_of: datetime | None, as_json: bool) -> None:
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
        echo(json.dumps({**asdict(done), "folder": str(done.folder)}, indent=2))
        return
    echo(f"profiles of {', '.join(done.accelerators)} in {output / 'compute_profiles'}")
    if done.tf32:
        echo(f"too fast for FP32 units, so TF32, and kept separate: models on {', '.join(done.tf32)}")
    if done.differing:
        names = ", ".join(f"{model} on {accelerator}" for model, accelerator in done.differing)
        echo(f"its planner and its simulator have different times; the simulator's are used: {names}")
    echo(f"{done.curves} bandwidth curves in {output / 'bandwidth_profiles'}")
    echo(f"offers and egress prices in {output / 'pricing'}")
    if done.unpriced:
        echo(f"no price in the artifact, so no offers: {', '.join(done.unpriced)}")
    echo(f"{done.jobs} jobs in {output / 'jobs'}")


@click.command(name="export", short_help="Write a plan in another tool's format.")
@click.argument("plan_file", metavar="PLAN", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--format", "form", type=_FORMATS, required=True, help="Whose format.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE.")
@click.option(
    "--wheel",
    metavar="ADDRESS",
    envvar="SAILOR_CLOUD_WHEEL",
    help="skypilot: the wheel of sailor-cloud that nodes install, an https address or a path in their image.",
)
@json_option
def export(plan_file: Path, form: str, output: Path | None, wheel: str | None, as_json: bool) -> None:
    """Write the plan document PLAN for another tool: JSON for Sailor's artifact, a batch script for Slurm's sbatch,
    manifests with a JobSet for Kubernetes, options for torchtitan, a task for SkyPilot.

    Scripts and manifests hold the whole plan. Nothing watches the jobs that they start: no budget is kept and nothing
    is re-planned. Without -o the result is printed; with -o, --json lists the files written.

    \b
    sailor-cloud export plan.json --format sailor-artifact -o sailor.json
    sailor-cloud export plan.json --format slurm | sbatch
    sailor-cloud export plan.json --format jobset | kubectl create -f -
    """
    from sailor_cloud.errors import RequestError

    document = read_document(plan_file)
    document.check_offers()
    if document.plan is None:
        raise RequestError(f"{plan_file} is {document.status} and holds no plan; there is nothing to export")
    content = _exported(document, form, plan_file.parent, wheel)
    if output is None:
        echo(content, nl=False)
    else:
        write_output(output, content)
        if as_json:
            echo(json.dumps({"format": form, "plan": str(plan_file), "output": str(output)}, indent=2))


def _exported(document: PlanDocument, form: str, base: Path, wheel: str | None) -> str:
    assert document.plan is not None
    if form == "sailor-artifact":
        from sailor_cloud.interchange import export_plan

        return json.dumps(export_plan(document.plan, document.inputs.hardware_by_id()), indent=1) + "\n"
    if form == "torchtitan":
        from sailor_cloud import workload
        from sailor_cloud.interchange.torchtitan import as_toml, differences, torchtitan_options

        job = document.job
        decoder = workload.decoder(job.model, base=base) if job.model else None
        options = torchtitan_options(document.plan, layers=decoder.layers if decoder else 0, training=job.training)
        family, notes = decoder.family if decoder else None, differences(job, document.plan)
        return as_toml(options, family=family, notes=notes)
    if form == "skypilot":
        from sailor_cloud.launch.fleet.skypilot import skypilot_task

        return skypilot_task(document, base=base, wheel=wheel)
    from sailor_cloud.errors import RequestError
    from sailor_cloud.launch.fleet.job_artefact import exported_job
    from sailor_cloud.provision import providers

    given = exported_job(document, base=base)
    for name in provider.CLUSTERS:
        scheduler = providers.of(name).scheduler
        if scheduler is not None and scheduler.form == form:
            if name != given.inventory.scheduler:
                cluster = f"the plan's inventory {given.inventory.name} is for {given.inventory.scheduler}"
                raise RequestError(f"{cluster}; --format {form} needs a plan made with --on {name}")
            return scheduler.text(given)
    raise AssertionError(form)
