from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("sailor_cloud", "runtime", "pricing", "bandwidth_profiles", "compute_profiles", "terraform")
FILES = ("pyproject.toml", "README.md", "LICENSE", ".gitignore")
PLANTED = (
    "terraform/stacks/local/.terraform/modules/modules.json",
    "terraform/stacks/local/terraform.tfstate",
    "terraform/stacks/local/terraform.tfstate.backup",
    "terraform/stacks/local/.terraform.lock.hcl",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree in which Terraform has left its files."""
    tree = tmp_path_factory.mktemp("tree")
    for name in PACKED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    for name in PLANTED:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("{}")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "dist"), str(tree)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (built,) = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel; only its dependencies come from outside."""
    environment = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=120)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)
    # A path file adds a folder but not what that folder's own path files add: the checkout stays invisible.
    (fresh_site,) = environment.glob("lib/python*/site-packages")
    (fresh_site / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return environment / "bin"


def run(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SAILOR_CLOUD_HOME"] = str(cwd / "home")
    command = [str(installed / arguments[0]), *arguments[1:]]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_the_wheel_holds_code_data_and_hcl(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"sailor_cloud/py.typed", "sailor_runtime/spec.py", "sailor_runtime/agent/__main__.py"} <= names
    page = {"report.css", "charts.js", "land.json", "vendor/echarts.min.js", "vendor/LICENSE", "vendor/NOTICE"}
    assert {f"sailor_cloud/report/html/{name}" for name in page} <= names
    assert "sailor_cloud/_data/pricing/accelerators.csv" in names
    assert any(name.startswith("sailor_cloud/_data/compute_profiles/") for name in names)
    assert any(name.startswith("sailor_cloud/_data/bandwidth_profiles/") for name in names)
    assert any(name.startswith("sailor_cloud/_data/terraform/") and name.endswith(".tf") for name in names)


def test_nothing_that_terraform_left_is_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if ".terraform" in name or "tfstate" in name]
    assert not [name for name in names if name.startswith(("tests/", "examples/", "runtime/"))]


def test_an_installed_wheel_plans_from_its_own_data(installed: Path, tmp_path: Path) -> None:
    example = (ROOT / "examples" / "quickstart.yaml").read_text()
    (tmp_path / "quickstart.yaml").write_text(example.replace("local-a, local-b", "local-a"))
    where = run(installed, "python", "-c", "import sailor_cloud.resources as r; print(r.data_root())", cwd=tmp_path)
    assert where.stdout.strip().endswith("site-packages/sailor_cloud/_data")
    planned = run(installed, "sailor-cloud", "plan", "quickstart.yaml", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["status"] == "optimal"


def test_an_installed_wheel_finds_the_runtime_that_it_ships(installed: Path, tmp_path: Path) -> None:
    code = "from sailor_cloud.launch.fleet.bundle import pack_runtime; print(len(pack_runtime().content))"
    packed = run(installed, "python", "-c", code, cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    assert int(packed.stdout) > 10_000
