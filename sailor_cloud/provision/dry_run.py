"""Terraform's own plan of a run before it begins: rendered and planned in a temporary folder."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.apply.apply import open_driver
from sailor_cloud.provision.errors.causes import Cause, classify, error_of, most_severe
from sailor_cloud.provision.rendering.preview import PlannedRoot, preview
from sailor_cloud.provision.rendering.root import Part, stack_of, write_cli_config, write_root
from sailor_cloud.provision.terraform.binary import TerraformBinary, find_terraform
from sailor_cloud.provision.terraform.driver import TerraformCommandError, TerraformDriver
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.run.folder import RunFolder


def terraform_plans(
    document: PlanDocument,
    run_id: str,
    *,
    expires_at: datetime,
    ssh_from: str | None,
    on_root: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[str, ...]:
    """Return Terraform's plan of each root, in the order of `preview`.

    `on_root` gets before each root the number planned so far and the total. Needs the providers and, on a cloud,
    credentials; creates nothing. Raises RequestError, TerraformError, CredentialsError, or ProvisionInterrupted.
    """
    binary = find_terraform()
    with tempfile.TemporaryDirectory(prefix="sailor-cloud-") as scratch:
        folder = RunFolder.create(run_id, root=Path(scratch))
        key = ensure_ssh_key(folder)
        roots = preview(document, folder, public_key=key, expires_at=expires_at, ssh_from=ssh_from)
        write_cli_config(folder)
        plans = []
        for done, root in enumerate(roots):
            on_root(done, len(roots))
            plans.append(_planned(folder, root, binary))
        return tuple(plans)


def _planned(folder: RunFolder, root: PlannedRoot, binary: TerraformBinary) -> str:
    if root.stack == stack_of(root.provider, Part.LINKS):
        return "Terraform can plan a link once the networks of both regions exist.\n"
    driver = open_driver(
        folder,
        # Without the backend: a dry run must not write where runs keep their states.
        write_root(folder, root.provider, root.region, root.variables, stack=root.stack),
        binary=binary,
        interrupt=Interrupt(),
        on_event=None,
        timeout_s=300.0,
    )
    try:
        return _text(driver)
    except TerraformCommandError as failure:
        faults = [classify(root.provider, providers.of(root.provider).errors, fault) for fault in failure.faults]
        if faults and most_severe(faults).cause is not Cause.OTHER:
            raise error_of(most_severe(faults)) from failure
        raise


def _text(driver: TerraformDriver) -> str:
    driver.init()
    driver.plan()
    return driver.show_plan()


def checked_source(ssh_from: str | None) -> str | None:
    """Return the CIDR from which SSH is allowed. Raises RequestError if it is invalid, or allows everyone."""
    if ssh_from is None:
        return None
    try:
        network = ipaddress.IPv4Network(ssh_from)
    except ValueError as error:
        raise RequestError(
            f"--ssh-from {ssh_from!r} is not an IPv4 address or network ({error}); give yours, such as 203.0.113.7/32"
        ) from error
    if network.prefixlen == 0:
        raise RequestError(f"--ssh-from {ssh_from} would let anyone in; give your own address, such as 203.0.113.7/32")
    return str(network)
