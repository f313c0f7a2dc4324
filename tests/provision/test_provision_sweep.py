"""The independent look for what is left of a run."""

from __future__ import annotations

from pathlib import Path

from factories.local_runs import local_run, started
from sailor_cloud.provision.providers.local.sweep import sweep_local


def test_a_sweep_finds_processes_and_folders_of_its_run_only(tmp_path: Path) -> None:
    with local_run(tmp_path) as run, local_run(tmp_path) as other:
        started(run.folder, "n0")
        started(other.folder, "n0")
        found = sweep_local(run.run_id, nodes_dir=run.folder.nodes_dir)
    assert [(row.type, row.name) for row in found if row.type == "folder"] == [("folder", "n0")]
    assert len([row for row in found if row.type == "process"]) >= 2
    assert {(row.run_id, row.node, row.provider, row.region) for row in found} == {(run.run_id, "n0", "local", "local")}
    assert any("provision.providers.local.server" in row.detail for row in found)


def test_a_folder_that_a_dead_node_left_behind_counts(tmp_path: Path) -> None:
    with local_run(tmp_path) as run:
        run.folder.node_dir("n7").mkdir()
        (run.folder.nodes_dir / "note").write_text("a file is no node")
        (row,) = sweep_local(run.run_id, nodes_dir=run.folder.nodes_dir)
    assert (row.type, row.node, row.detail) == ("folder", "n7", str(run.folder.node_dir("n7")))


def test_nothing_is_left_of_a_run_that_never_was(tmp_path: Path) -> None:
    assert sweep_local("never-20261121-000000-0000", nodes_dir=tmp_path / "none") == ()
    assert sweep_local("never-20261121-000000-0000") == ()
