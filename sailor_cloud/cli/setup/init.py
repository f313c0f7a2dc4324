"""`sailor-cloud init`: writes a commented job file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import POSITIVE, ProviderName, write_output
from sailor_cloud.errors import RequestError

if TYPE_CHECKING:
    from sailor_cloud.catalog.providers import JobExample
    from sailor_cloud.model.provider import Provider

SCHEMA_FILE = "sailor-cloud-job.schema.json"


def _with_example() -> tuple[Provider, ...]:
    from sailor_cloud.catalog.providers import with_example

    return with_example()


@click.command(short_help="Write a commented job file.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="job.yaml",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Job file to write; '-' prints it.",
)
@click.option("--preset", type=ProviderName(_with_example), help="Ask nothing; write the job file for these machines.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--no-schema", is_flag=True, help="Do not write the JSON Schema that lets editors complete job files.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON document.")
def init(output: Path, preset: Provider | None, force: bool, no_schema: bool, as_json: bool) -> None:
    """Write a commented job file, by asking a few questions or from a preset.

    Also writes sailor-cloud-job.schema.json next to it, with which editors complete and check job files. '-o -' prints
    the job file and writes nothing.

    \b
    sailor-cloud init
    sailor-cloud init --preset local && sailor-cloud plan job.yaml
    sailor-cloud init --preset gcp -o opt.yaml
    """
    import json

    from sailor_cloud.model.job_file import parse_job
    from sailor_cloud.report.files.job_template import job_text

    to_stdout = output == Path("-")
    if to_stdout and as_json:
        raise RequestError("-o - and --json both print on standard output; give only one of them")
    if not to_stdout and output.exists() and not force:
        raise RequestError(f"{output} already exists; give --force to replace it, or another name with -o")
    if preset is None and not sys.stdin.isatty():
        *others, last = _with_example()
        raise RequestError(f"there is no terminal to ask on; give --preset {', '.join(others)} or {last}")
    provider, answers = (preset, _example(preset)) if preset else _ask()
    content = job_text(provider, answers, schema=None if no_schema or to_stdout else SCHEMA_FILE)
    parse_job(content, origin=str(output))
    write_output(None if to_stdout else output, content)
    if to_stdout:
        return
    written = [output]
    if not no_schema:
        from sailor_cloud.cli.setup.schema import schema_text

        schema_path = output.parent / SCHEMA_FILE
        write_output(schema_path, schema_text("job"))
        written.append(schema_path)
    if as_json:
        echo(json.dumps({"written": [str(path) for path in written]}, indent=2))
        return
    echo(f"wrote {', '.join(str(path) for path in written)}")
    echo(f"next: sailor-cloud plan {output}")


def _ask() -> tuple[Provider, JobExample]:
    """Ask on stderr, so that stdout contains only the result; every question has a default answer."""
    from dataclasses import replace

    from sailor_cloud.catalog.providers import of
    from sailor_cloud.model.provider import Provider

    known = _with_example()
    machines = Provider(_choice("Where to train", known, known[0]))
    answers = _example(machines)
    changes: dict[str, object] = {"name": click.prompt("Name of the job", default=answers.name, err=True)}
    if not of(machines).on_this_machine:
        changes["model"] = _model(answers.model)
        changes["zones"] = _zones(machines, answers.zones)
        changes["accelerators"] = _accelerators(machines, answers.accelerators)
    goals = ("maximize-throughput", "minimize-cost", "minimize-time")
    changes["goal"] = _choice("Goal", goals, answers.goal)
    changes["budget_usd"] = click.prompt("Budget in USD", default=answers.budget_usd, type=POSITIVE, err=True)
    changes["deadline"] = click.prompt("Deadline", default=answers.deadline, err=True)
    return machines, replace(answers, **changes)  # type: ignore[arg-type]


def _example(provider: Provider) -> JobExample:
    from sailor_cloud.catalog.providers import of

    found = of(provider).example
    assert found is not None
    return found


def _choice(question: str, choices: tuple[str, ...], default: str) -> str:
    chosen: str = click.prompt(question, type=click.Choice(choices), default=default, err=True)
    return chosen


def _model(default: str) -> str:
    from sailor_cloud.model.presets import PRESETS

    return _choice("Model", tuple(sorted(PRESETS)), default)


def _zones(provider: Provider, default: tuple[str, ...]) -> tuple[str, ...]:
    from sailor_cloud import catalog
    from sailor_cloud.catalog.providers import of

    prices = catalog.load()
    zones = prices.zones(provider)
    return _names("Zones", zones, default, lambda name: of(provider).zone_hint(name, map(prices.zone, zones)))


def _accelerators(provider: Provider, default: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    from sailor_cloud import catalog

    offered = sorted({offer.accelerator for offer in catalog.load().offers(provider=provider)})
    names = _names("Accelerators", tuple(offered), tuple(name for name, _ in default))
    known = dict(default)
    return tuple(
        (
            name,
            click.prompt(
                f"At most how many {name} per zone", default=known.get(name, 8), type=click.IntRange(min=1), err=True
            ),
        )
        for name in names
    )


def _names(
    question: str,
    known: tuple[str, ...],
    default: tuple[str, ...],
    hint: Callable[[str], str] = lambda name: "",
) -> tuple[str, ...]:
    """Ask until all names are known; for an unknown name, give its hint or suggest the closest."""
    from sailor_cloud.catalog.catalog import did_you_mean

    while True:
        given = click.prompt(f"{question}, separated by blanks", default=" ".join(default), err=True)
        names = tuple(dict.fromkeys(given.replace(",", " ").split()))
        wrong = [name for name in names if name not in known]
        if names and not wrong:
            return names
        for name in wrong:
            echo(f"{name} is not known: {hint(name) or did_you_mean(name, known)}", err=True)
