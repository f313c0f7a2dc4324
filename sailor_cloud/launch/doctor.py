"""Checks whether this machine can run sailor-cloud."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sailor_cloud import resources
from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.provision import providers
from sailor_cloud.provision.terraform.binary import find_terraform
from sailor_cloud.units import GIB

LEAST_FREE_BYTES = 2 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check; `needed_for` names what fails without it, `advice` what to do.

    An optional one is needed only by some jobs.
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    advice: str = ""
    optional: bool = False


def examine(progress: Callable[[int, int], None] = lambda done, of: None) -> tuple[Check, ...]:
    """Return all checks; they create the folder of runs, and use no network.

    `progress` is called before each check with the number done and the total.
    """
    looks: tuple[Callable[[], Check], ...] = (
        _python,
        _terraform,
        lambda: _package("torch", "training on this machine"),
        lambda: _package("deepspeed", "training on this machine"),
        lambda: _package("transformers", "training on this machine"),
        *(partial(_clients, name) for name, provider in providers.all_providers() if provider.packages),
        _loopback,
        _home,
        _disk,
    )
    checks = []
    for done, look in enumerate(looks):
        progress(done, len(looks))
        checks.append(look())
    return tuple(checks)


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check(
        name="Python", ok=ok, found=platform.python_version(), needed_for="everything", advice="use 3.11 or newer"
    )


def _terraform() -> Check:
    try:
        binary = find_terraform()
    except ProvisionError as error:
        return Check(name="Terraform", ok=False, found="none", needed_for="up, down", advice=str(error))
    return Check(
        name="Terraform",
        ok=True,
        found=f"{binary.version} ({binary.kind}: {' '.join(binary.command)})",
        needed_for="up, down",
    )


def _package(name: str, needed_for: str) -> Check:
    if importlib.util.find_spec(name) is None:
        advice = "pip install 'sailor-cloud[runtime]'"
        return Check(name=name, ok=False, found="not installed", needed_for=needed_for, advice=advice)
    return Check(name=name, ok=True, found=importlib.metadata.version(name), needed_for=needed_for)


def _clients(provider: str) -> Check:
    """Check the modules that requests to a cloud import."""
    missing = providers.missing_packages(provider)
    return Check(
        name=f"{provider} clients",
        ok=not missing,
        found="not installed" if missing else ", ".join(providers.of(provider).packages),
        needed_for=f"runs, quotas and fresh prices on {provider}",
        advice="; ".join(str(error) for error in missing),
        optional=True,
    )


def _loopback() -> Check:
    address = "127.83.65.73"
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        advice = "local nodes need Linux, where all of 127.0.0.0/8 is this machine"
        return Check(name="loopback", ok=False, found=str(error), needed_for="local nodes", advice=advice)
    return Check(name="loopback", ok=True, found="addresses of 127.0.0.0/8 can be used", needed_for="local nodes")


def _home() -> Check:
    check = partial(Check, name="run folder", needed_for="up, down, status")
    try:
        return check(ok=True, found=f"{resources.writable_home()} (writable)")
    except RequestError as error:
        return check(ok=False, found=str(error), advice="set SAILOR_CLOUD_HOME to a folder that you may write to")


def _disk() -> Check:
    folder = resources.home()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    ok = free >= LEAST_FREE_BYTES
    return Check(
        name="disk",
        ok=ok,
        found=f"{free / GIB:.0f} GiB free",
        needed_for="checkpoints and logs",
        advice="" if ok else f"free at least {LEAST_FREE_BYTES / GIB:.0f} GiB",
    )
