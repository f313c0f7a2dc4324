"""What Terraform is given: variables, HCL, configuration and environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from factories.documents import document
from factories.local_runs import LocalRun, local_run
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import (
    VARIABLES_FILE,
    Variables,
    environment,
    placed_nodes,
    roots,
    variables_text,
    write_cli_config,
    write_root,
)
from sailor_cloud.run.folder import RunFolder

GOLDEN = Path(__file__).parent / "golden"
EXPIRES_AT = datetime(2026, 11, 21, 6, 0, 30, 999999, tzinfo=UTC)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg=="


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def variables_of(planned: PlanDocument, folder: RunFolder, expires_at: datetime = EXPIRES_AT) -> Variables:
    (root,) = rendered_roots(planned, folder, public_key=KEY, expires_at=expires_at, ssh_from=None)
    return root.variables


def test_variables_of_a_local_plan_are_as_agreed() -> None:
    folder = RunFolder(run_id="tiny-20261121-051313-a1b2", path=Path("/runs/tiny-20261121-051313-a1b2"))
    text = variables_text(variables_of(document(), folder)).replace(sys.executable, "/usr/bin/python3")
    assert text == (GOLDEN / "local.tfvars.json").read_text()


def test_the_expiry_is_rendered_in_utc_whatever_its_zone() -> None:
    folder = RunFolder(run_id="tiny", path=Path("/runs/tiny"))
    east = EXPIRES_AT.astimezone(timezone(timedelta(hours=9)))
    assert variables_of(document(), folder, east) == variables_of(document(), folder)


def test_a_root_is_a_copy_of_the_hcl_and_stays_when_it_is_written_again(run: LocalRun) -> None:
    root = write_root(run.folder, Provider("local"), "local", {"run_id": "x"})
    files = {str(path.relative_to(run.folder.path / "terraform")) for path in run.folder.path.rglob("*.tf")}
    assert files == {
        f"local-local/{part}/{name}.tf"
        for part in ("modules/local-cluster", "stacks/local")
        for name in ("main", "variables", "outputs", "versions")
    }
    assert (root.path / VARIABLES_FILE).read_text() == '{\n  "run_id": "x"\n}\n'
    root.state_file.write_text("state")
    assert write_root(run.folder, Provider("local"), "local", {"run_id": "y"}) == root
    assert root.state_file.read_text() == "state"
    assert roots(run.folder) == (root,)


def test_a_half_written_root_is_none(run: LocalRun) -> None:
    root = write_root(run.folder, Provider("local"), "local", {})
    (root.path / VARIABLES_FILE).unlink()
    assert roots(run.folder) == ()


def test_terraform_gets_the_runs_tag_and_configuration_and_no_settings_of_the_user(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TF_CLI_ARGS_apply", "TF_VAR_run_id", "TF_LOG", "TF_WORKSPACE", "TF_DATA_DIR"):
        monkeypatch.setenv(name, "surprise")
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", "/missing")
    write_cli_config(run.folder)
    given = environment(run.folder)
    assert "surprise" not in given.values()
    assert given["SAILOR_CLOUD_RUN"] == run.run_id
    assert Path(given["TF_CLI_CONFIG_FILE"]).is_file()
    assert (given["CHECKPOINT_DISABLE"], given["TF_IN_AUTOMATION"], given["TF_INPUT"]) == ("1", "1", "0")


def test_a_plan_without_its_offers_is_refused() -> None:
    bare = document()
    with pytest.raises(RequestError, match="lacks the offers of its nodes: fast-a, slow-b"):
        placed_nodes(replace(bare, inputs=replace(bare.inputs, offers=())))
    with pytest.raises(RequestError, match="holds no plan"):
        placed_nodes(replace(bare, plan=None))


def test_more_nodes_than_there_are_addresses_are_refused() -> None:
    planned = document()
    assert planned.plan is not None
    many = tuple(replace(planned.plan.nodes[0], id=f"n{number}") for number in range(251))
    folder = RunFolder(run_id="tiny", path=Path("/runs/tiny"))
    with pytest.raises(RequestError, match="251 local nodes, at most 250"):
        variables_of(replace(planned, plan=replace(planned.plan, nodes=many)), folder)
