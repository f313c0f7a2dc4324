"""Opens the Terraform root of a run and reads the events of its resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sailor_cloud.provision.pace import Pace
from sailor_cloud.provision.progress import Interrupt, Progress, Step
from sailor_cloud.provision.rendering.root import Root, environment
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.driver import EventListener, TerraformDriver
from sailor_cloud.run.folder import RunFolder, private_dir

_STEPS = {
    "apply_start": Step.STARTED,
    "apply_progress": Step.RUNNING,
    "apply_complete": Step.DONE,
    "apply_errored": Step.FAILED,
}


def open_driver(
    folder: RunFolder,
    root: Root,
    *,
    binary: TerraformBinary,
    interrupt: Interrupt,
    on_event: EventListener | None,
    timeout_s: float,
    pace: Pace | None = None,
) -> TerraformDriver:
    """Return the driver of a root that was written; its logs go to the run's `logs/terraform`."""
    return TerraformDriver(
        root.path,
        binary=binary,
        environment=environment(folder),
        log_dir=private_dir(folder.logs_dir / "terraform"),
        interrupt=interrupt,
        on_event=on_event,
        timeout_s=timeout_s,
        pace=pace,
    )


def progress_of(root: Root, event: Mapping[str, Any]) -> Progress | None:
    """Return what an event of Terraform's JSON stream says about one resource, or None where it says nothing."""
    step = _STEPS.get(event.get("type", ""))
    if step is None:
        return None
    hook = event["hook"]
    resource = hook["resource"]
    return Progress(
        action=hook.get("action", ""),
        step=step,
        provider=root.provider,
        region=root.region,
        resource=resource["resource_type"],
        key=str(resource.get("resource_key") or resource["resource_name"]),
        elapsed_s=float(hook.get("elapsed_seconds", 0)),
        message=str(event.get("@message", "")),
    )
