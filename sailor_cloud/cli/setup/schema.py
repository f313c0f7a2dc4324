"""`sailor-cloud schema`: the JSON Schemas of job files and plans."""

from __future__ import annotations

from pathlib import Path

import click

from sailor_cloud.cli.terminal.options import write_output


@click.command(short_help="Print the JSON Schema of job files or of plans.")
@click.argument("kind", type=click.Choice(["job", "plan"]))
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity; a schema is JSON anyway.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE.")
def schema(kind: str, as_json: bool, output: Path | None) -> None:
    """Print the JSON Schema of a job file, for editors, or of a plan, for programs.

    \b
    sailor-cloud schema job -o sailor-cloud-job.schema.json
    sailor-cloud schema plan | jq '.properties | keys'

    An editor with the YAML language server completes and checks a job file that begins with the line
    '# yaml-language-server: $schema=sailor-cloud-job.schema.json'.
    """
    write_output(output, schema_text(kind))


def schema_text(kind: str) -> str:
    """Return the schema named `job` or `plan`."""
    from sailor_cloud.report.files.json_schema import as_text, document_schema, job_schema

    if kind == "plan":
        return as_text(document_schema())
    from sailor_cloud import catalog
    from sailor_cloud.model.presets import PRESETS

    known = catalog.load()
    offered = sorted({offer.accelerator for offer in known.offers()})
    return as_text(job_schema(presets=sorted(PRESETS), accelerators=offered, zones=known.zones()))
