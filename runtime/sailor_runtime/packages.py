"""Packages that a job's `setup` installs on a node, only for this job. Standard library only."""

from __future__ import annotations

import importlib.util
import os
import sys
import venv
from pathlib import Path


def library(home: Path) -> Path:
    """Return the folder from which Python imports packages of `setup` on a node."""
    return home / "packages" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def installing(home: Path) -> dict[str, str]:
    """Return variables with which pip installs packages only for this node.

    They go into a virtual environment that sees all packages of this interpreter. There pip adds another version
    without removing the existing one. Otherwise it would replace packages of the machine's owner.
    """
    packages, own = home / "packages", Path(sys.executable).parent
    if not (packages / "bin" / "pip").exists():
        brings_pip = importlib.util.find_spec("pip") is None
        venv.EnvBuilder(symlinks=True, with_pip=brings_pip).create(packages)
        seen = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        sees = f"import site; list(map(site.addsitedir, {[path for path in seen if path != str(library(home))]}))\n"
        (library(home) / "outside.pth").write_text(sees)
        # Programs such as torchrun would otherwise start the interpreter with which they were installed.
        for program in own.iterdir() if sys.prefix != sys.base_prefix else ():
            if (
                program.is_file()
                and not program.name.startswith("pip")
                and _first_line(program).startswith(f"#!{own}/")
            ):
                _run_here(packages, program.name, f'"{program}"')
        if not brings_pip:
            _run_here(packages, "pip3", "-m pip")
            _run_here(packages, "pip", "-m pip")
    return {
        "PATH": os.pathsep.join([str(packages / "bin"), str(own), os.environ.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": str(packages),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _first_line(program: Path) -> str:
    with program.open(errors="replace") as file:
        return file.readline(1000)


def _run_here(packages: Path, name: str, what: str) -> None:
    program = packages / "bin" / name
    program.write_text(f'#!/bin/sh\nexec "{packages}/bin/python" {what} "$@"\n')
    program.chmod(0o755)
