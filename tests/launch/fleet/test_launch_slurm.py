"""A plan on a real Slurm: it trains over three node groups, loses a node, continues and ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.clusters import INVENTORY, JOB
from factories.quick_runs import Notes
from factories.slurm_cluster import skip_without_slurm, slurm_cluster
from sailor_cloud import api
from sailor_cloud.catalog.clusters import with_inventory
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import ProvisionError
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.fleet.job_artefact import exported_job
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.provision.providers.slurm.batch import batch_script
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.progress import RunProgress

GROUPS = {"a100": (2, "a100", 1), "v100": (1, "v100", 1), "titan": (1, "", 0)}
NODES = ["2 x lab-a100@a100", "1 x lab-v100@v100", "1 x lab-titan@titan"]


# Saves only when told to end, and takes its time.
SAVES_AT_THE_END = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["SAILOR_CHECKPOINTS"])
first = max([int(path.name.split("-")[1]) for path in folder.glob("count-*")], default=0)
leaving = []
signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
for step in range(first + 1, 61):
    time.sleep(0.2)
    print(json.dumps({"step": step, "loss": 1.0 / step, "tokens": 100}), flush=True)
    if leaving:
        time.sleep(2.0)
        (folder / f"count-{step}").write_text("all")
        sys.exit()
"""


def lab_job(tmp_path: Path, job: str = JOB) -> Job:
    inventory = tmp_path / "cluster.yaml"
    text = INVENTORY.replace("/shared/venv/bin/python, modules: [cuda/12.6]", sys.executable)
    text = text.replace("devices_per_node: 2", "devices_per_node: 1").replace("account: physics\n", "")
    inventory.write_text(text.replace("/shared/checkpoints", str(tmp_path / "checkpoints")))
    return with_inventory(parse_job(job), on="slurm", cluster=inventory)


def spread(tmp_path: Path) -> PlanDocument:
    """A plan with a pipeline on each of four nodes, of three groups; ranks are processor threads."""
    return api.simulate_layout(lab_job(tmp_path), layout="dp=4", nodes=NODES).document


class Watcher(Notes):
    """Does something once, at a step."""

    def __init__(self, at: int, then: threading.Event) -> None:
        super().__init__()
        self._at, self._then = at, then

    def step(self, progress: RunProgress) -> None:
        if progress.step >= self._at:
            self._then.set()


@pytest.mark.slow
def test_a_run_over_three_groups_loses_a_node_continues_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_slurm()
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SAILOR_CLOUD_ACCELERATORS", "cpu")
    document = spread(tmp_path)
    reached = threading.Event()
    watcher = Watcher(5, reached)
    with slurm_cluster(tmp_path / "slurm", GROUPS) as cluster:

        def lose() -> None:
            reached.wait(120)
            cluster.lose("a1002")

        losing = threading.Thread(target=lose)
        losing.start()
        outcome = api.up(document, watcher)
        losing.join()
        [folder] = RunFolder.list()
        # Slurm has ended the job, and does not know what the lost machine does.
        for receipt in (outcome.receipt, take_down(folder, clock=SystemClock())):
            assert [(row.name, row.found) for row in receipt.left] == [("n1", False)]
            (doubt,) = receipt.problems
            assert "of node n1: machine a1002 does not answer" in doubt
        assert outcome.exit_code == 1
        cluster.start("a1002")
        cluster.until("idle", 4)
        assert take_down(folder, clock=SystemClock()).clean
        assert cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING") == ""
        script = subprocess.run(
            ["squeue", "--noheader", "--format=%i"], capture_output=True, text=True, check=True
        ).stdout
    entries = read(folder.journal_file)
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert 0 < outcome.receipt.spent_usd < 1
    [lost] = [entry.data["nodes"] for entry in entries if entry.event is Event.NODES_LOST]
    assert lost == ["n1"]
    ended = [entry.data for entry in entries if entry.event is Event.GENERATION_ENDED]
    assert [one["end"] for one in ended] == ["nodes lost", "finished"]
    assert 5 <= ended[0]["step"] < 30 == ended[1]["step"]
    jobs = [line for line in watcher.lines if line.startswith("submitted job")]
    assert jobs[0] == "submitted job 1 of lab: 2 x a100, 1 x v100, 1 x titan"
    assert len(jobs) == 2
    exclude = (folder.path / "cluster" / "job-g2.sh").read_text()
    assert "--exclude=a1002" in exclude
    assert "--no-requeue" in exclude
    assert list((folder.logs_dir / "n0").glob("g1-rank0.log"))
    assert script.count("\n") <= 1


def test_only_a_limit_before_the_run_s_own_end_is_announced_to_a_controlled_job(tmp_path: Path) -> None:
    exported = replace(exported_job(spread(tmp_path)), seconds=1200.0)
    assert "#SBATCH --signal=TERM@120\n" in batch_script(exported)
    controlled = replace(exported, expires_at=datetime(2026, 11, 24, tzinfo=UTC))
    script = batch_script(controlled, plan="/plan.json")
    assert "--signal" not in script
    assert "--shutdown-s" not in script
    groups = {name: group.model_copy(update={"max_time": 600.0}) for name, group in exported.inventory.groups.items()}
    limited = replace(controlled, inventory=exported.inventory.model_copy(update={"groups": groups}))
    script = batch_script(limited, plan="/plan.json")
    assert script.count("#SBATCH --signal=TERM@120\n") == script.count("--shutdown-s 110") == 3


@pytest.mark.slow
@pytest.mark.parametrize("command", [False, True])
def test_a_run_continues_in_a_new_job_when_the_time_limit_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: bool
) -> None:
    skip_without_slurm()
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SAILOR_CLOUD_ACCELERATORS", "cpu")
    (tmp_path / "train.py").write_text(SAVES_AT_THE_END)
    monkeypatch.setattr(sys.modules[__name__], "INVENTORY", INVENTORY.replace("nodes: 2,", "nodes: 2, max_time: 10m,"))
    job = lab_job(tmp_path, f"{JOB}run: {sys.executable} {tmp_path}/train.py\n" if command else JOB)
    nodes, layout = (["1 x lab-a100@a100"], "dp=1") if command else (NODES[:1], "dp=2")
    document = api.simulate_layout(job, layout=layout, nodes=nodes).document
    reached = threading.Event()
    watcher = Watcher(5, reached)
    with slurm_cluster(tmp_path / "slurm", {"a100": (2, "a100", 1)}) as cluster:

        def end() -> None:
            reached.wait(120)
            # As --signal does before the limit, whose shortest is a minute.
            cluster.run("scancel", "--signal=TERM", "1")

        ending = threading.Thread(target=end)
        ending.start()
        outcome = api.up(document, watcher)
        ending.join()
    [folder] = RunFolder.list()
    entries = read(folder.journal_file)
    assert outcome.ending is Ending.COMPLETED, outcome.message
    ended = [entry.data for entry in entries if entry.event is Event.GENERATION_ENDED]
    assert [one["end"] for one in ended] == ["nodes lost", "finished"]
    saved = [entry.data["step"] for entry in entries if entry.event is Event.CHECKPOINT_SAVED]
    assert ended[0]["step"] in saved, "the agents saved when the signal came"
    doing = "asking the command to end" if command else "saving a checkpoint"
    assert f"the scheduler ends the job; {doing}" in watcher.lines
    jobs = [line for line in watcher.lines if line.startswith("submitted job")]
    assert len(jobs) == 2
    scripts = [(folder.path / "cluster" / f"job-g{number}.sh").read_text() for number in (1, 2)]
    assert all("--signal=TERM@" in script and "--exclude" not in script for script in scripts)


def test_slurm_takes_a_script_for_many_nodes_and_gives_it_whole_nodes_within_its_limits(tmp_path: Path) -> None:
    skip_without_slurm()
    job = exported_job(spread(tmp_path))
    (group, *_) = job.groups
    many = replace(group, nodes=tuple(f"a100-a100-40-{number}" for number in range(200)))
    limited = job.inventory.groups[group.name].model_copy(update={"max_time": 1800.0})
    inventory = job.inventory.model_copy(update={"groups": {group.name: limited}})
    script = batch_script(replace(job, groups=(many,), seconds=86400.0, inventory=inventory))
    options = script[: script.index("umask")].replace("--nodes=200", "--nodes=2")
    path = tmp_path / "job.sh"
    path.write_text(f"{options}scontrol show job $SLURM_JOB_ID\n")
    memory = "SelectTypeParameters=CR_Core_Memory\nDefMemPerNode=16\n"
    with slurm_cluster(tmp_path / "slurm", {"a100": (2, "a100", 1)}, conf=memory) as cluster:
        shown = tmp_path / "shown"
        cluster.run("sbatch", "--wait", f"--output={shown}", str(path))
    assert "mem=128M," in shown.read_text()
    assert "TimeLimit=00:30:00" in shown.read_text()


def test_without_a_scheduler_on_path_there_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))
    document = spread(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    begun = time.monotonic()
    with pytest.raises(ProvisionError, match="no sbatch on PATH, so nothing can be submitted to Slurm; run this on a"):
        api.up(document, Notes())
    assert time.monotonic() - begun < 30
    assert RunFolder.list() == ()
