"""What the commands that look at runs print, on a run that was carried out in simulated time."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from factories.called import called
from factories.cloud_plans import GCP_OFFERS, cloud_document
from factories.simulated_runs import simulated_run
from sailor_cloud.cli.main import cli
from sailor_cloud.cli.runs import up
from sailor_cloud.cli.runs.following import abandonment_note
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import ProvisionError
from sailor_cloud.launch.watch import log_reader
from sailor_cloud.provision.checks import account_check
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal

# What benchmarks/simulator_accuracy reads.
BENCHMARK_COLUMNS = {"file", "model", "nodes_per_stage_by_gpu", "layers_per_stage", "tp", "mbs", "gbs"} | {
    "iteration_time_s",
    "max_mem_bytes",
}
LINE = "rank 0 of generation 1 begins"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    folder = simulated_run(home)
    for node, rank in (("n0", 0), ("n1", 1)):
        (folder.logs_dir / node).mkdir(exist_ok=True)
        (folder.logs_dir / node / f"g1-rank{rank}.log").write_text(f"rank {rank} of generation 1 begins\n")
    return home


def folder_of(home: Path) -> RunFolder:
    (folder,) = RunFolder.list(root=home / "runs")
    return folder


def test_cost_shows_the_ledger_and_its_total(home: Path) -> None:
    shown = called("cost", "chaos", home=home)
    assert shown.returncode == 0, shown.stderr
    assert "vm-a100-40 in us-central1-a, spot" in shown.stdout
    costs = json.loads(called("cost", "chaos", "--json", home=home).stdout)
    assert costs["spent_usd"] == pytest.approx(sum(line["usd"] for line in costs["lines"]))
    assert costs["projected_usd"] == costs["spent_usd"] < costs["budget_usd"]


def test_the_ledger_is_shown_although_the_cloud_has_no_bill(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise ProvisionError("Cost Explorer can't be asked")

    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(home))
    monkeypatch.setattr(account_check, "fetch_bills", refuse)
    done = CliRunner().invoke(cli, ["cost", "chaos", "--actual"], standalone_mode=False)
    assert isinstance(done.exception, ProvisionError)
    assert "n0: vm-a100-40 in" in done.output
    assert "at the end of the training" in done.output


def test_history_shows_planned_next_to_actual_figures(home: Path) -> None:
    (past,) = json.loads(called("history", "--json", home=home).stdout)
    assert (past["run_id"], past["outcome"], past["steps"]) == (folder_of(home).run_id, "completed", 3000)
    assert past["generations"] >= 2
    assert past["clean"] is True
    assert json.loads(called("history", "--job", "another", "--json", home=home).stdout) == []
    assert called("history", "--job", "another", home=home).stdout == "no run of job 'another' has ended yet\n"
    table = called("history", home=home).stdout
    assert folder_of(home).run_id in table
    assert "planned USD" in table, "nothing is cut off in a pipe"


def test_measurements_of_finished_runs_are_a_table_that_plans_learn_from_until_it_is_forgotten(home: Path) -> None:
    kept = home / "measured_iterations.csv"
    shown = called("history", "--measurements", home=home)
    assert shown.returncode == 0, shown.stderr
    assert kept.read_text() == shown.stdout
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert len(rows) >= 1
    assert all(float(row["iteration_time_s"]) > 0.0 < float(row["predicted_s"]) for row in rows)
    assert rows[0]["file"] == f"runs/{folder_of(home).run_id}-g1.json"
    assert set(rows[0]) >= BENCHMARK_COLUMNS
    assert "plans learn from these runs" in shown.stderr
    asked = json.loads(called("history", "--measurements", "--json", home=home).stdout)
    assert [row["file"] for row in asked] == [row["file"] for row in rows]
    wrong = called("history", "--forget", "--json", home=home)
    assert wrong.returncode == 2
    assert kept.is_file()
    assert called("history", "--forget", home=home).returncode == 0
    assert not kept.is_file()


def test_logs_are_chosen_by_node_and_rank(home: Path) -> None:
    assert called("logs", "chaos", "--rank", "0", home=home).stdout == f"n0 g1-rank0: {LINE}\n"
    rows = json.loads(called("logs", "chaos", "--node", "n0", "--json", home=home).stdout)
    assert rows == [{"node": "n0", "log": "g1-rank0.log", "line": LINE}]
    none = called("logs", "chaos", "--rank", "7", home=home)
    assert none.returncode == 2
    assert "has no matching logs" in none.stderr


def test_logs_without_a_match_name_the_ranks_and_nodes_that_have_some(home: Path, tmp_path: Path) -> None:
    told = called("logs", "chaos", "--rank", "9", home=home).stderr
    assert "has no matching logs; it has those of nodes n0, n1" in told
    assert told.rstrip().endswith("ranks 0, 1")
    other = copied(home, tmp_path)
    shutil.rmtree(other.logs_dir)
    none = called("logs", "chaos", "--rank", "0", home=tmp_path / "home")
    assert (none.returncode, "Traceback" in none.stderr) == (2, False)
    assert f"has no logs in {other.logs_dir}; 'sailor-cloud status {other.run_id}' shows its state" in none.stderr


def copied(home: Path, tmp_path: Path) -> RunFolder:
    """The same run in another home."""
    shutil.copytree(home, tmp_path / "home")
    return folder_of(tmp_path / "home")


@pytest.mark.parametrize("harm", ["cut", "version", "missing", "folder", "FIFO"])
def test_a_damaged_plan_hides_no_other_run(home: Path, tmp_path: Path, harm: str) -> None:
    sound = copied(home, tmp_path)
    harmed = RunFolder(run_id="harmed-20261121-000000-a1b2", path=sound.path.parent / "harmed-20261121-000000-a1b2")
    shutil.copytree(sound.path, harmed.path)
    plan, place = harmed.plan_file.read_text(), harmed.plan_file
    if harm == "cut":
        place.write_text(plan[:500])
    elif harm == "version":
        place.write_text(json.dumps({**json.loads(plan), "schema_version": 99}))
    else:
        place.unlink()
        {"missing": lambda: None, "folder": place.mkdir, "FIFO": lambda: os.mkfifo(place)}[harm]()
    root = tmp_path / "home"
    shown = called("status", home=root)
    assert shown.returncode == 0, shown.stderr
    assert "3000/3000" in shown.stdout
    file = "folder" if harm == "FIFO" else "plan"
    assert f"{file} damaged" in shown.stdout
    assert f"'sailor-cloud down {harmed.run_id}'" in " ".join(shown.stdout.split())
    assert "sailor-cloud plan" not in shown.stdout
    for command in ("status", "dashboard"):
        rows = {row["run_id"]: row for row in json.loads(called(command, "--json", home=root).stdout)}
        assert [harm["file"] for harm in rows[harmed.run_id]["damage"]] == [file]
        assert (rows[sound.run_id]["damage"], rows[sound.run_id]["step"]) == ([], 3000)
    refused = called("ssh", harmed.run_id, home=root)
    assert refused.returncode == 2
    assert "sailor-cloud plan" not in refused.stderr
    if harm != "FIFO":
        assert called("logs", harmed.run_id, "--rank", "0", home=root).stdout == f"n0 g1-rank0: {LINE}\n"
        costs, whole = (json.loads(called("cost", run, "--json", home=root).stdout) for run in ("harmed", "chaos"))
        assert costs["spent_usd"] == whole["spent_usd"]
        assert "plan damaged" in called("cost", harmed.run_id, home=root).stdout


def test_a_run_that_has_bought_nothing_costs_nothing_without_its_controller(tmp_path: Path) -> None:
    folder = RunFolder.create("tiny-20261121-000000-a1b2", root=tmp_path)
    journal = Journal.of(folder, FixedClock(datetime(2026, 11, 21, tzinfo=UTC)))
    journal.append(Event.RUN_CREATED)
    assert "it has bought nothing; 'sailor-cloud down tiny-20261121-000000-a1b2' ends it;" in abandonment_note(folder)
    journal.append(Event.CREATE_INTENDED, resource="node", key="n0")
    assert "it costs money until 'sailor-cloud down tiny-20261121-000000-a1b2'" in abandonment_note(folder)


def test_logs_can_not_be_followed_as_one_document(home: Path) -> None:
    both = called("logs", "chaos", "-f", "--json", home=home)
    assert both.returncode == 2
    assert "give one of them" in both.stderr


def test_the_dashboard_s_content_is_one_document(home: Path) -> None:
    page = json.loads(called("dashboard", "chaos", "--json", home=home).stdout)
    assert (page["phase"], page["outcome"], page["step"]) == ("gone", "completed", 3000)
    assert any(line["text"].startswith("decided: ") for line in page["timeline"])
    assert all(node["gone_at"] for node in page["nodes"])
    assert [row["run_id"] for row in json.loads(called("dashboard", "--json", home=home).stdout)] == [page["run"]]


def test_status_names_every_resource(home: Path) -> None:
    state = json.loads(called("status", "chaos", "--json", home=home).stdout)
    assert state["abandoned"] is False
    assert state["step"] == state["steps"] == 3000
    assert "3000/3000" in called("status", home=home).stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("ssh", "chaos"), "no node of run chaos-20261121-000000-a1b2 runs now"),
        (("resume", "chaos"), "is gone; there is nothing to continue with"),
        (("cost", "other"), "there is no run 'other'"),
    ],
)
def test_impossible_requests_are_reported_without_a_traceback(
    command: tuple[str, ...], message: str, home: Path
) -> None:
    done = called(*command, home=home)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("worst_usd", "ttl_s", "budget", "told"),
    [
        (0.0017, 7200.0, 9.0, ", at worst 0.00170 USD"),
        (None, 7200.0, 9.0, ", at most 3.00 USD until they shut themselves down"),
        (None, 7200.0, 2.0, ", and up to 3.00 USD without a controller to stop at the budget"),
        (None, None, None, ", with neither a budget nor a deadline that ends them"),
    ],
)
def test_the_question_before_a_purchase_names_the_most_that_the_nodes_cost(
    worst_usd: float | None, ttl_s: float | None, budget: float | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = cloud_document(("n0", GCP_OFFERS[0]))
    assert base.cost is not None
    cost = replace(base.cost, usd_per_hour=1.0, worst_case_usd_per_hour=1.5, worst_case_usd=worst_usd)
    limits = base.constraints.model_copy(update={"budget_usd": budget})
    asked: list[str] = []
    monkeypatch.setattr(up, "_check_terminal", lambda: None)
    monkeypatch.setattr(click, "confirm", lambda question, **_: asked.append(question))
    up._confirmed(replace(base, cost=cost, ttl_s=ttl_s, constraints=limits))
    assert asked == [f"Buy these nodes at 1.00 USD/h{told}?"]


def test_ssh_finds_key_and_host_key_in_any_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "my home 100%d"
    shutil.copytree(home, place)
    node = SimpleNamespace(
        id="n0", address="127.1.2.3", port=2222, user="sailor", host_public_key="ssh-ed25519 AAAA", tunnel=None
    )
    monkeypatch.setattr(log_reader, "node_of", lambda folder, name: node)
    shown = json.loads(called("ssh", "chaos", "--json", home=place).stdout)["command"]
    assert shown[shown.index("-i") + 1] == str(folder_of(place).ssh_key_file).replace("%", "%%")
    (known,) = (option for option in shown if option.startswith("UserKnownHostsFile="))
    assert known == f'UserKnownHostsFile="{folder_of(place).path / "known_hosts"}"'.replace("%", "%%")
    if shutil.which("ssh"):
        asked = ["ssh", "-G", *shown[1:]]
        read = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        assert f"userknownhostsfile {folder_of(place).path / 'known_hosts'}" in read
