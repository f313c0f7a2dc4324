"""`sailor-cloud reap`: removes resources that no live run owns."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.runs.down import show_unwritten
from sailor_cloud.cli.terminal.options import PRIVATE, json_option
from sailor_cloud.cli.terminal.waiting import waiting

if TYPE_CHECKING:
    from sailor_cloud.provision.cleanup.reap import FoundLeftovers, Leftover
    from sailor_cloud.provision.live_resources import Scopes


@click.command(short_help="Delete tagged resources that no live run owns.")
@click.option("--older-than", metavar="TIME", help="Only what began, or was abandoned, at least this long ago: 1h, 2d.")
@click.option("--project", "projects", multiple=True, metavar="ID", help="Also search this Google Cloud project.")
@click.option("--region", "regions", multiple=True, metavar="REGION", help="Also search this AWS region.")
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@json_option
def reap(older_than: str | None, projects: tuple[str, ...], regions: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Look for resources with the tag of a run, and delete what no live run owns.

    Looks into every project and region that runs of this machine have used. Resources of another machine's runs are
    left alone until they expire, unless --older-than says otherwise. Resources without a run's tag are never touched.

    \b
    sailor-cloud reap
    sailor-cloud reap --older-than 1h --yes
    sailor-cloud reap --project my-project --region us-east-1
    """
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.provision.cleanup.reap import find_leftovers, readable, scopes_to_sweep
    from sailor_cloud.provision.cloud_clock import by_cloud
    from sailor_cloud.provision.scopes import scopes_named
    from sailor_cloud.run.folder import RunFolder

    os.umask(PRIVATE)
    scopes = scopes_named("project", projects) | scopes_named("region", regions)
    age = _age(older_than)
    folders, unreadable = readable(RunFolder.list(checked=False))
    # If this machine's clock is ahead, runs of other machines would seem to have expired.
    clock = by_cloud(SystemClock(), scopes_to_sweep(folders, scopes), lambda text, ahead_s: echo(text, err=True))
    with waiting("searching for leftovers of runs") as show:
        found = find_leftovers(
            folders, clock=clock, unreadable=unreadable, scopes=scopes, older_than=age, progress=show
        )
    if not as_json:
        _show(found)
    if not found.reapable:
        return _show_result(found, {}, as_json=as_json)
    if not yes and not _confirmed(found):
        echo("nothing was deleted", err=True)
        return 1
    removed = {}
    with waiting("deleting") as show:
        for done, leftover in enumerate(found.reapable):
            show(done, len(found.reapable), f"deleting leftovers of {leftover.run_id}")
            removed[leftover.run_id] = _removed(leftover, scopes)
    return _show_result(found, removed, as_json=as_json)


def _age(older_than: str | None) -> Any:
    from datetime import timedelta

    from sailor_cloud.errors import RequestError
    from sailor_cloud.units import parse_duration_s

    if older_than is None:
        return None
    try:
        return timedelta(seconds=parse_duration_s(older_than))
    except ValueError as error:
        raise RequestError(f"--older-than {older_than!r}: {error}") from error


def _removed(leftover: Leftover, asked: Scopes) -> tuple[str, ...]:
    """Delete a run's leftovers, and search again; return what is left, or not confirmed as deleted."""
    import time

    from sailor_cloud.clock import SystemClock
    from sailor_cloud.errors import SailorError
    from sailor_cloud.launch.down import take_down
    from sailor_cloud.provision.cleanup.reap import deletion_problems, remove_foreign, scopes_of_resources
    from sailor_cloud.provision.terraform.progress import ProvisionInterrupted

    echo(f"{leftover.run_id}: deleting {len(leftover.resources)} resources", err=True)
    if leftover.folder is None:
        return remove_foreign(leftover, pause=time.sleep)
    try:
        # If another cloud does not answer, that says nothing about the resources on this one.
        clouds = {found.provider for found in leftover.resources}
        also = scopes_of_resources(leftover.resources) | {scope for scope in asked if scope.provider in clouds}
        receipt = take_down(leftover.folder, clock=SystemClock(), also=also)
    except ProvisionInterrupted:
        raise
    except (SailorError, OSError) as error:
        return (str(error), *deletion_problems(leftover))
    show_unwritten(leftover.folder)
    wording = {True: "still there", False: "not confirmed as gone"}
    unsure = [f"{wording[row.found]}: {row.type} {row.name}" for row in receipt.left]
    unsure += [place.problem for place in receipt.unanswered]
    return tuple(dict.fromkeys((*unsure, *deletion_problems(leftover))))


def _show(found: FoundLeftovers) -> None:
    for leftover in found.live:
        echo(f"{leftover.run_id}: {len(leftover.resources)} resources, left alone: {leftover.why}")
    for leftover in found.reapable:
        owner = f", owner {leftover.owner}" if leftover.owner else ""
        echo(f"{leftover.run_id}: {leftover.why}{owner}")
        for resource in leftover.resources:
            echo(f"  {resource.provider} {resource.zone or resource.region}  {resource.type}  {resource.name}")
    if not found.reapable:
        echo("nothing found to delete, but not every place has answered" if found.problems else "nothing to delete")


def _confirmed(found: FoundLeftovers) -> bool:
    from sailor_cloud.errors import RequestError

    if not sys.stdin.isatty():
        raise RequestError("there is no terminal to ask on; give --yes to delete without being asked")
    count = sum(len(leftover.resources) for leftover in found.reapable)
    return click.confirm(f"Delete these {count} resources?", err=True)


def _show_result(found: FoundLeftovers, removed: dict[str, tuple[str, ...]], *, as_json: bool) -> int:
    import json

    problems = [*found.problems, *(f"{run_id}: {text}" for run_id, texts in removed.items() for text in texts)]
    if as_json:
        result = {
            "deleted": [_as_json(leftover) for leftover in found.reapable if removed.get(leftover.run_id) == ()],
            "live": [_as_json(leftover) for leftover in found.live],
            "problems": problems,
        }
        echo(json.dumps(result, indent=2))
    else:
        for problem in problems:
            echo(f"problem: {problem}", err=True)
        clean = [run_id for run_id, texts in removed.items() if not texts]
        if clean:
            echo(f"deleted (verified by a second query): {', '.join(clean)}")
    return 1 if problems else 0


def _as_json(leftover: Leftover) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "run": leftover.run_id,
        "owner": leftover.owner,
        "why": leftover.why,
        "resources": [asdict(resource) for resource in leftover.resources],
    }
