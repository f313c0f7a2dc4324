"""The output of `up --dry-run`: the roots that Terraform would get, and each resource with its price."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.clock import SystemClock
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.provision.guards import CloudTraffic
    from sailor_cloud.provision.rendering.preview import PlannedRoot

# A run's key pair is created when the run begins.
_KEY_TO_COME = "ssh-ed25519 (made when the run begins)"


def show_dry_run(document: PlanDocument, *, ssh_from: str | None, with_terraform: bool, as_json: bool) -> None:
    """Print what would be created. Raises RequestError with what the job lacks for its clouds."""
    from sailor_cloud import network, resources
    from sailor_cloud.launch.spend.lifetime import life_s
    from sailor_cloud.provision.dry_run import terraform_plans
    from sailor_cloud.provision.guards import traffic_between_clouds
    from sailor_cloud.provision.rendering.preview import preview
    from sailor_cloud.run.folder import RunFolder, new_run_id

    clock = SystemClock()
    run_id = new_run_id(document.job.name, clock=clock)
    expires_at = clock.now() + timedelta(seconds=life_s(document))
    folder = RunFolder(run_id=run_id, path=resources.home() / "runs" / run_id)
    roots = preview(document, folder, public_key=_KEY_TO_COME, expires_at=expires_at, ssh_from=ssh_from)
    traffic = traffic_between_clouds(document, network.load())
    plans: tuple[str, ...] = ()
    if with_terraform:
        with waiting("asking Terraform for its plan") as show:
            plans = terraform_plans(document, run_id, expires_at=expires_at, ssh_from=ssh_from, on_root=show)
    if as_json:
        echo(json.dumps(_as_json(document, roots, traffic, plans), indent=2))
    else:
        _print(roots, traffic, plans)


def _as_json(
    document: PlanDocument, roots: tuple[PlannedRoot, ...], traffic: tuple[CloudTraffic, ...], plans: tuple[str, ...]
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [dataclasses.asdict(root) for root in roots]
    for root, text in zip(rows, plans, strict=False):
        root["terraform_plan"] = text
    between = [
        {**dataclasses.asdict(pair), "as_of": pair.as_of.isoformat() if pair.as_of else None} for pair in traffic
    ]
    return {"document": json.loads(document.to_json()), "roots": rows, "traffic_between_clouds": between}


def _print(roots: tuple[PlannedRoot, ...], traffic: tuple[CloudTraffic, ...], plans: tuple[str, ...]) -> None:
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.tables import plain_table, print_report

    console = result_console()
    for number, root in enumerate(roots):
        echo(f"\nTerraform root {root.stack} {root.region}: {len(root.resources)} resources")
        table = plain_table("resource", "name", "USD/h", "of which", numbers=("USD/h",))
        for resource in root.resources:
            price = "" if resource.usd_per_hour is None else usd_text(resource.usd_per_hour)
            parts = [f"{what} {usd_text(usd)}" for what, usd in resource.parts] if len(resource.parts) > 1 else []
            table.add_row(resource.type, resource.name, price, "; ".join([*parts, *filter(None, [resource.by_use])]))
        table.add_row("together", "", usd_text(sum(resource.usd_per_hour or 0.0 for resource in root.resources)), "")
        print_report(table, console)
        echo(f"\nvariables\n{json.dumps(root.variables, indent=2, sort_keys=True)}")
        if root.backend is not None:
            echo(f"\nbackend of the state\n{json.dumps(root.backend, indent=2, sort_keys=True)}")
        if plans:
            echo(f"\nTerraform's plan\n{plans[number]}")
    if traffic:
        echo("\ntraffic between the clouds; 'up' does not buy a plan on both:")
        for pair in traffic:
            echo(f"  {pair}")
    echo("\nnothing was created; a run has its own id, so its names differ", err=True)
