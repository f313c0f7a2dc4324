from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.packages import prepared_python
from sailor_cloud.launch.fleet.software import PACKAGES, TORCH, Software, software_for

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


@pytest.mark.slow
def test_an_installation_that_fails_is_told_with_its_last_lines(node: Here) -> None:
    offline = replace(node, variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(node.folder)})
    wanted = Software(torch="0.0.1", packages=())
    with pytest.raises(LaunchError) as error:
        asyncio.run(prepared_python(offline, wanted, node="n0", poll_s=0.2, patience_s=120.0))
    assert "installing torch 0.0.1 on node n0 failed" in str(error.value)
    assert "torch==0.0.1" in str(error.value)
