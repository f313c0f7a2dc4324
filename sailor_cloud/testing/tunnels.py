"""Stand-ins for the programs that reach nodes without a public address: `gcloud`, `aws` and `session-manager-plugin`.

They connect stdin and stdout with the SSH of a fake cloud's machine (`tunnel_program`); the next program of the name on
PATH handles other commands. A log has a line for each opened tunnel.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from sailor_cloud.model.offer import Provider
from sailor_cloud.testing import tunnel_program

_PROGRAMS = {
    Provider("gcp"): {"gcloud": "compute start-iap-tunnel"},
    Provider("aws"): {"aws": "ssm start-session", "session-manager-plugin": ""},
}


def write_programs(provider: Provider, root: Path) -> Path:
    """Write a cloud's programs for the machines with folders in `root`; return the folder to put on PATH."""
    folder = root / "programs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    elsewhere = shlex.quote(os.environ.get("PATH", os.defpath))
    for name, verbs in _PROGRAMS[provider].items():
        # Without site-packages, because hundreds of them may be started.
        carry = shlex.join([sys.executable, "-I", "-S", str(tunnel_program.__file__), str(root), name])
        own = f'case "$1 $2" in "{verbs}") exec {carry} "$@";; esac\n' if verbs else ""
        (folder / name).write_text(f'#!/bin/sh\n{own}PATH={elsewhere} exec {name} "$@"\n')
        (folder / name).chmod(0o700)
    return folder


def opened(root: Path) -> tuple[str, ...]:
    """Return the machine of each opened tunnel, in order."""
    log = root / tunnel_program.LOG
    return tuple(log.read_text().split()) if log.is_file() else ()
