"""The packages that cloud nodes need besides the runtime, and how a node gets them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.catalog import Catalog
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import TURING, of_different_builds

# The versions with which the runtime was tested; a test compares them with pyproject.toml and constraints.txt.
TORCH = "2.13.0"
PACKAGES = (
    "deepspeed==0.19.8",
    "transformers==5.23.0",
    "safetensors==0.8.0",
    "tokenizers==0.23.3",
    "fsspec==2026.9.0",
    "obstore==0.12.1",
)
# torch from 2.11 on has kernels for compute capability 7.0 (V100) in its CUDA 12.6 builds only
# (github.com/pytorch/pytorch/issues/172352), and all ranks must share one NCCL.
OLD_CUDA = "cu126"
# The last branch of NVIDIA's driver that runs Pascal and Volta, supported until June 2028, and its packages in Ubuntu's
# component restricted: linux-modules-nvidia-580-server-KERNEL holds the proprietary modules, which these need
# (docs.nvidia.com/datacenter/tesla/drivers and packages.ubuntu.com, looked up 2026-11-27).
OLD_DRIVER = "580-server"
# The oldest driver that runs a build, by its CUDA version's major number
# (docs.nvidia.com/cuda/cuda-toolkit-release-notes, "CUDA Driver", looked up 2026-11-23). torch 2.13 on PyPI is built
# for CUDA 13; an image's driver is checked against this before anything is installed.
OLDEST_DRIVER = {12: "525.60.13", 13: "580.65.06"}
PYPI_CUDA = 13
OLD_CUDA_INDEX = f"https://download.pytorch.org/whl/{OLD_CUDA}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Packages for every node of a run. `build` is the required CUDA build of torch; None allows any."""

    torch: str = TORCH
    build: str | None = None
    index: str | None = None
    packages: tuple[str, ...] = PACKAGES

    @property
    def oldest_driver(self) -> str:
        """The oldest NVIDIA driver that runs this build of torch."""
        return OLDEST_DRIVER[PYPI_CUDA if self.build is None else int(self.build.removeprefix("cu")[:2])]

    @property
    def torch_requirement(self) -> str:
        return f"torch=={self.torch}" + (f"+{self.build}" if self.build else "")

    @property
    def index_options(self) -> tuple[str, ...]:
        """Options with which pip finds this build of torch."""
        return ("--extra-index-url", self.index) if self.index else ()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.script.encode()).hexdigest()

    @property
    def script(self) -> str:
        """A shell script: `check` prints an interpreter that has all packages, `install` makes one.

        `install BRANCH` first installs this branch of NVIDIA's driver if the image has none.
        """
        return _SCRIPT.format(
            torch=self.torch,
            build=self.build or "",
            packages=" ".join(self.packages),
            requirements=" ".join((self.torch_requirement, *self.packages)),
            index=" ".join(self.index_options),
            driver=self.oldest_driver,
        )


def software_for(capabilities: Iterable[float | None]) -> Software:
    """Return the packages for nodes with accelerators of these compute capabilities; all nodes get one build."""
    known = [capability for capability in capabilities if capability is not None]
    if known and min(known) < TURING:
        return Software(build=OLD_CUDA, index=OLD_CUDA_INDEX)
    return Software()


def driver_for(capability: float | None) -> str | None:
    """Return the branch to install on an image without a driver; None for devices whose images have one."""
    return OLD_DRIVER if capability is not None and capability < TURING else None


def job_of_one_build(document: PlanDocument, prices: Catalog) -> Job:
    """Return a plan's job without the accelerators that need another build of torch than the plan's nodes.

    So no later plan of the run mixes builds. A command brings its own torch.
    """
    job, plan = document.job, document.plan
    names = {name for entry in job.resources for name in entry.accelerators}
    apart = of_different_builds({name: prices.accelerator(name).compute_capability for name in names})
    if job.run is not None or plan is None or apart is None:
        return job
    old, new = apart
    offers = document.inputs.offers_by_id()
    other = old if {offers[node.offer].accelerator for node in plan.nodes} & new else new
    entries = (
        entry.model_copy(update={"accelerators": {n: most for n, most in entry.accelerators.items() if n not in other}})
        for entry in job.resources
    )
    return job.model_copy(update={"resources": tuple(entry for entry in entries if entry.accelerators)})


# A prepared image passes the check with its own python3; otherwise a virtual environment is made next to the script.
# The runtime needs Python 3.11. Ubuntu 22.04 has Python 3.10 as python3 and 3.11 in its package index; 24.04 has 3.12
# as python3. A fresh machine's own updates hold dpkg's lock and that of the package lists for minutes; apt does not
# wait for the second. A driver comes as Ubuntu's signed modules for the running kernel, else it is built for that.
_SCRIPT = """#!/bin/sh
set -e
place="$(dirname "$0")/$(basename "$0" .sh)"
has() {{
    "$1" - "{torch}" "{build}" {packages} <<'PYTHON' 2>/dev/null
import os, sys
from importlib.metadata import version
assert sys.version_info >= (3, 11)
torch, build, *packages = sys.argv[1:]
number, _, found = version("torch").partition("+")
assert number == torch
assert not build or found == build or os.environ.get("SAILOR_CLOUD_ACCELERATORS") == "cpu"
for package in packages:
    name, _, number = package.partition("==")
    # Internals of deepspeed are used, so it must be that one; the others may be what the image brings.
    assert version(name) == number or name != "deepspeed"
PYTHON
}}
case "$1" in
check)
    for python in "$place/bin/python" python3; do
        if has "$python"; then command -v "$python"; exit 0; fi
    done
    if [ -f "$place.failed" ]; then echo failed; fi
    ;;
install)
    rm -f "$place.failed"
    trap 'code=$?; [ $code -eq 0 ] || touch "$place.failed"' EXIT
    apt() {{ sudo DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 "$@"; }}
    refresh() {{
        tries=0
        until apt update; do
            tries=$((tries + 1))
            [ $tries -lt 30 ] || exit 1
            sleep 10
        done
    }}
    if [ "$SAILOR_CLOUD_ACCELERATORS" != cpu ]; then
        if [ -n "$2" ] && ! command -v nvidia-smi > /dev/null && command -v apt-get > /dev/null; then
            refresh
            kernel=$(uname -r)
            apt install "linux-modules-nvidia-$2-$kernel" "nvidia-headless-no-dkms-$2" "nvidia-utils-$2" ||
                apt install "linux-headers-$kernel" "nvidia-headless-$2" "nvidia-utils-$2"
            sudo modprobe nvidia
            sudo modprobe nvidia-uvm
        fi
        driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
        if [ -z "$driver" ]; then
            echo "nvidia-smi names no NVIDIA driver; name an image that has one: cloud: {{image: ...}}"
            exit 1
        fi
        if [ "$(printf '%s\n' {driver} "$driver" | sort -V | head -n 1)" != {driver} ]; then
            echo "the image has NVIDIA driver $driver, and torch=={torch} needs {driver} or newer;" \
                "name another image: cloud: {{image: ...}}"
            exit 1
        fi
    fi
    for python in python3.13 python3.12 python3.11 python3; do
        if "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi
        python=""
    done
    if [ -z "$python" ]; then
        refresh
        if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            apt install python3-venv
            python=python3
        else
            apt install python3.11 python3.11-venv
            python=python3.11
        fi
    fi
    "$python" -m venv "$place"
    "$place/bin/python" -m pip install --quiet --disable-pip-version-check {index} {requirements}
    has "$place/bin/python"
    ;;
esac
"""
