from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from factories.cloud_plans import cloud_document, cloud_offer
from sailor_cloud.catalog import load
from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.packages import prepared_python
from sailor_cloud.launch.fleet.software import (
    OLD_DRIVER,
    PACKAGES,
    TORCH,
    Software,
    driver_for,
    job_of_one_build,
    software_for,
)
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.providers.aws.machines import AWS_IMAGE_DRIVER
from sailor_cloud.provision.providers.gcp.machines import BLACKWELL_IMAGE, DEFAULT_GCP_IMAGE

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Here:
    """A node's shell, in a folder of this machine. `first` comes before everything on PATH."""

    folder: Path
    first: Path
    variables: dict[str, str]

    async def run(self, argv: list[str]) -> str:
        path = f"{self.first}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, **self.variables}
        done = subprocess.run(argv, cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    async def write(self, path: str, content: bytes) -> None:
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_bytes(content)


@pytest.fixture
def node(tmp_path: Path) -> Here:
    first = tmp_path / "bin"
    first.mkdir()
    wrapper = first / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return Here(tmp_path, first, {"SAILOR_CLOUD_ACCELERATORS": "cpu"})


def test_a_v100_among_the_accelerators_gives_all_nodes_the_cuda_12_6_build() -> None:
    mixed = software_for([8.0, 7.0])
    assert (mixed.build, mixed.index) == ("cu126", "https://download.pytorch.org/whl/cu126")
    assert f"torch=={TORCH}+cu126" in mixed.script
    assert "--extra-index-url https://download.pytorch.org/whl/cu126" in mixed.script


@pytest.mark.parametrize("capabilities", [[8.0], [7.5, 8.9], [None], []])
def test_without_one_torch_is_the_build_of_the_package_index(capabilities: list[float | None]) -> None:
    assert software_for(capabilities).build is None
    assert f"torch=={TORCH} " in software_for(capabilities).script


def test_the_pins_are_those_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"torch=={TORCH}" in extras["runtime"]
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    assert [package for package in PACKAGES if package not in pinned] == []
    names = {requirement.split("=")[0].split(">")[0] for requirement in (*extras["runtime"], *extras["stores"])}
    assert {package.partition("==")[0] for package in PACKAGES} == names - {"torch"}


def test_a_prepared_image_is_taken_as_it_is(node: Here) -> None:
    assert asyncio.run(prepared_python(node, Software(), node="n0")) == str(node.first / "python3")
    assert asyncio.run(prepared_python(node, software_for([7.0]), node="n0")) == str(node.first / "python3")


def test_the_wrong_build_of_torch_is_not_taken_for_prepared(node: Here) -> None:
    gpu = replace(node, variables={"SAILOR_CLOUD_ACCELERATORS": ""})
    asyncio.run(gpu.write("software/x.sh", software_for([7.0]).script.encode()))
    assert asyncio.run(gpu.run(["sh", "software/x.sh", "check"])) == ""


def command(node: Here, name: str, script: str) -> None:
    """Put a command before everything on the node's PATH."""
    path = node.first / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def failed_installation(node: Here, software: Software) -> str:
    with pytest.raises(LaunchError) as error:
        asyncio.run(prepared_python(node, software, node="n0", poll_s=0.05, patience_s=60.0))
    return str(error.value)


def test_an_installation_that_fails_is_reported_with_its_last_lines(node: Here) -> None:
    # Answers whether it is new enough, and fails to make an environment.
    command(node, "python3.13", '[ "$1" != -m ] || { echo "no room for $3"; exit 1; }')
    told = failed_installation(node, Software(torch="0.0.1"))
    assert "installing torch 0.0.1 on node n0 failed; its last lines:\nno room for " in told


@pytest.mark.parametrize(
    ("software", "driver", "needed"),
    [
        (software_for([8.0]), "570.172.08", "580.65.06"),
        (software_for([8.0]), "98.1", "580.65.06"),
        (software_for([7.0]), "470.82.01", "525.60.13"),
    ],
)
def test_a_driver_that_is_too_old_is_reported_before_anything_is_installed(
    node: Here, software: Software, driver: str, needed: str
) -> None:
    gpu = replace(node, variables={"SAILOR_CLOUD_ACCELERATORS": ""})
    command(gpu, "nvidia-smi", f"echo {driver}; echo {driver}")
    command(gpu, "python3.13", 'echo "python began"; exit 1')
    told = failed_installation(gpu, replace(software, torch="0.0.1"))
    assert f"the image has NVIDIA driver {driver}, and torch==0.0.1 needs {needed} or newer" in told
    assert "python began" not in told


def test_a_node_without_a_driver_is_reported(node: Here) -> None:
    gpu = replace(node, variables={"SAILOR_CLOUD_ACCELERATORS": ""})
    command(gpu, "nvidia-smi", "echo 'has failed because it could not communicate with the driver' >&2; exit 9")
    assert "nvidia-smi names no NVIDIA driver" in failed_installation(gpu, Software(torch="0.0.1"))


APT_GET = """case "$*" in *update*) exit 0 ;; *{missing}*) echo "Unable to locate {missing}"; exit 100 ;; esac
echo "$@" >> installed
printf '#!/bin/sh\\necho 580.178.04\\n' > bin/nvidia-smi; chmod +x bin/nvidia-smi"""


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (
            "nothing",
            "install linux-modules-nvidia-580-server-6.17.0-1021-gcp nvidia-headless-no-dkms-580-server "
            "nvidia-utils-580-server",
        ),
        ("linux-modules", "install linux-headers-6.17.0-1021-gcp nvidia-headless-580-server nvidia-utils-580-server"),
    ],
    ids=["signed", "built here"],
)
def test_a_v100_on_an_image_without_a_driver_gets_the_last_one_that_runs_it(
    node: Here, missing: str, expected: str
) -> None:
    bare = replace(node, variables={"SAILOR_CLOUD_ACCELERATORS": ""})
    command(bare, "uname", "echo 6.17.0-1021-gcp")
    command(bare, "sudo", 'while case "$1" in *=*) true ;; *) false ;; esac; do shift; done; exec "$@"')
    command(bare, "apt-get", APT_GET.format(missing=missing))
    command(bare, "modprobe", 'echo "$1" >> loaded')
    command(bare, "python3.13", '[ "$1" != -m ] || { echo "python began"; exit 1; }')
    installation = prepared_python(bare, Software(torch="0.0.1"), node="n0", driver=driver_for(7.0), poll_s=0.05)
    with pytest.raises(LaunchError, match="python began"):
        asyncio.run(installation)
    (line,) = (node.folder / "installed").read_text().splitlines()
    assert line.endswith(expected)
    assert (node.folder / "loaded").read_text().split() == ["nvidia", "nvidia-uvm"]


@pytest.mark.parametrize("capability", [7.5, 8.0, 10.0, None])
def test_no_driver_is_installed_for_devices_whose_images_have_one(capability: float | None) -> None:
    assert driver_for(capability) is None


@pytest.mark.parametrize("driver", ["580.65.06", "580.173.02", "1000.1"])
def test_a_driver_that_is_new_enough_lets_the_installation_begin(node: Here, driver: str) -> None:
    gpu = replace(node, variables={"SAILOR_CLOUD_ACCELERATORS": ""})
    command(gpu, "nvidia-smi", f"echo {driver}")
    command(gpu, "python3.13", '[ "$1" != -m ] || { echo "python began"; exit 1; }')
    assert "python began" in failed_installation(gpu, Software(torch="0.0.1"))


def test_the_default_images_have_a_driver_for_the_wheels_of_the_package_index() -> None:
    branches = [int(image.rpartition("-")[2]) for image in (DEFAULT_GCP_IMAGE, BLACKWELL_IMAGE)]
    # 580 is the last branch of NVIDIA's driver that runs a V100.
    branches += [AWS_IMAGE_DRIVER, old := int(OLD_DRIVER.partition("-")[0])]
    assert min(branches) >= int(software_for([8.0]).oldest_driver.partition(".")[0])
    assert old == 580


@pytest.mark.parametrize(
    ("bought", "build", "kept"),
    [
        ("B200-180", None, {"A100-40", "B200-180"}),
        ("V100-16", "cu126", {"A100-40", "V100-16"}),
        ("A100-40", "cu126", {"A100-40", "V100-16"}),
    ],
)
def test_a_job_that_names_both_old_and_new_accelerators_keeps_to_the_build_of_its_plan(
    bought: str, build: str | None, kept: set[str]
) -> None:
    offer = cloud_offer("n", Provider("gcp"), "us-central1-b", "some-type", bought, 8)
    plan = cloud_document(("n0", offer))
    entry = plan.job.resources[0].model_copy(update={"accelerators": {"A100-40": 8, "B200-180": 8, "V100-16": 8}})
    plan = replace(plan, job=plan.job.model_copy(update={"resources": (entry,)}))
    prices = load()
    (left,) = job_of_one_build(plan, prices).resources
    assert set(left.accelerators) == kept
    assert software_for(prices.accelerator(name).compute_capability for name in left.accelerators).build == build
