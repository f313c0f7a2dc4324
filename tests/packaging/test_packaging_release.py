from __future__ import annotations

import re
import tomllib

import trove_classifiers
import yaml

import sailor_cloud
from factories.commands import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REGISTRY = re.compile(r"pip install (?!.*[./$\"])[^\n]*\bsailor-cloud\b")


def test_the_package_says_its_version_and_only_known_classifiers() -> None:
    assert sailor_cloud.__version__ == PROJECT["version"]
    assert "__version__" in dir(sailor_cloud)
    assert set(PROJECT["classifiers"]) <= trove_classifiers.classifiers


def test_no_example_fetches_the_package_from_a_registry() -> None:
    assert REGISTRY.search("python -m pip install sailor-cloud")
    examples = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".yml", ".yaml", ".sh", ".md")]
    assert examples
    assert [path.name for path in examples if REGISTRY.search(path.read_text())] == []


def test_a_release_is_tested_and_its_wheel_installed_alone_before_it_is_published() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    commands = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    order = [commands.index(part) for part in (".ci/run", "-m build", "twine check", "--no-index --no-deps")]
    assert order == sorted(order)
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
