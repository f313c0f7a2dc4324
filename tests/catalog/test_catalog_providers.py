"""A provider is a folder: everything else asks for it by name, and a package outside can bring one."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from factories.planning import AS_OF
from sailor_cloud import plan
from sailor_cloud.catalog import load, load_services, providers
from sailor_cloud.catalog.account.quotas import load_rules
from sailor_cloud.catalog.prices.services import Service
from sailor_cloud.cli.inputs.prices import prices
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.provider import CLUSTERS, ENTRY_POINTS, Provider, names, registered

PACKAGE = Path(__file__).parents[2] / "sailor_cloud"
# Words that are no provider.
WORDS = {
    "cli/inputs/interchange.py": {"slurm"},  # a format
    "model/offer.py": {"local"},  # the vendor of processors that stand in for GPUs
    "interchange/sailor_tree.py": {"gcp"},  # a folder of the artifact
    "workload/forms.py": {"local"},  # a kind of attention
}
# Types of Terraform's resources.
TYPES = re.compile(r"(aws|google)_")
JOB = """
name: toy
model: {preset: sailor-opt-350}
training: {global_batch_size: 256, sequence_length: 2048, steps: 200, precision: fp32}
constraints: {budget_usd: 500}
resources:
  - {provider: toy, zones: [toyland-1, toyland-2], markets: [on-demand], accelerators: {V100-16: 8}}
"""


@pytest.fixture
def toy() -> Iterator[Provider]:
    with registered("toy", "toy_provider") as provider:
        yield provider


def named_in(path: Path) -> set[str]:
    """Return the providers that a file names: as a string, by a type of theirs, or as a member of Provider."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and node.value in names():
            found.add(str(node.value))
        elif isinstance(node, ast.Constant) and (kind := TYPES.match(str(node.value))):
            found.add(kind[0])
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == Provider.__name__:
            found |= {node.attr.lower()} & set(names())
    return found


def test_only_their_folders_and_the_list_of_those_built_in_name_providers() -> None:
    naming = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        own_folder = place.parts[1:2] == ("providers",) and place.parts[2] in names()
        if not own_folder and place.parts[0] != "testing" and place != Path("model/provider.py"):
            naming |= {str(place)} if named_in(path) - WORDS.get(str(place), set()) else set()
    assert not naming


def test_every_provider_lists_what_it_sells() -> None:
    for name in names():
        sold = providers.of(Provider(name))
        assert sold.startup_s > 0
        assert sold.bills_services == (not sold.on_this_machine and name not in CLUSTERS)
    assert providers.with_account() == ("gcp", "aws")
    assert [providers.of_buckets(scheme) for scheme in ("gs", "s3", "file")] == ["gcp", "aws", None]


def test_a_provider_from_outside_is_planned_from_prices_of_its_own(toy: Provider) -> None:
    document = plan(parse_job(JOB), clock=FixedClock(AS_OF))
    assert document.plan is not None
    assert document.cost is not None
    assert {offer.provider for offer in document.inputs.offers} == {toy}
    assert {(line.kind, line.usd_per_unit) for line in document.cost.lines if line.kind is CostKind.COMPUTE} <= {
        (CostKind.COMPUTE, 4.0),
        (CostKind.COMPUTE, 4.5),
    }
    assert {line.price_source for line in document.cost.lines} == {"toy-prices"}
    assert type(document).from_json(document.to_json()) == document


def test_data_of_an_external_provider_extends_the_shipped_data(toy: Provider) -> None:
    catalog = load()
    assert catalog.zones(toy) == ("toyland-1", "toyland-2")
    assert len(catalog.zones()) > 100
    assert load_services().price(toy, "toyland", Service.PUBLIC_ADDRESS).usd_per_unit == 0.004
    assert {rule.quota for rule in load_rules() if rule.provider is toy} == {"TOY_V100"}
    listed = CliRunner().invoke(prices, ["list", "--provider", "toy", "--as-of", "2026-11-21", "--json"])
    assert listed.output.count('"instance_type": "toy-4"') == 3


def test_without_its_package_nothing_of_a_provider_is_there() -> None:
    assert not {"toyland-1", "toyland-2"} & set(load().zones())
    refused = CliRunner().invoke(prices, ["list", "--provider", "toy"])
    assert "'toy' is none of gcp, aws, local" in refused.output


def test_an_installed_package_brings_its_provider_by_an_entry_point(tmp_path: Path) -> None:
    told = tmp_path / "toy_outside-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-outside\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ntoy = toy_provider\n")
    paths = os.pathsep.join([str(tmp_path), str(PACKAGE.parent / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths, "SAILOR_CLOUD_HOME": str(tmp_path / "home")}

    def printed(*arguments: str) -> Any:
        command = [sys.executable, "-c", "from sailor_cloud.cli.main import main; main()", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert {row["provider"] for row in printed("prices", "list", "--provider", "toy", "--json")} == {"toy"}
    assert printed("schema", "job")["$defs"]["Provider"]["enum"][-1] == "toy"
