"""A user's own command on two local nodes: what it finds, how it is ended and started again, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.command_runs import command_job, in_generation, saved, script, steps, up
from factories.commands import ROOT
from factories.runs import Up, assert_nothing_is_left, journal_has, processes_of, read_lines, sailor
from sailor_cloud.launch import generation
from sailor_cloud.model.job_file import read_job
from sailor_cloud.provision import processes

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("commands")]

# Counts to a number, a step each twentieth of a second until there is a file `hurry` among its checkpoints. Continues
# from its newest checkpoint.
COUNTER = """
    import json, os, signal, sys, time
    from pathlib import Path
    folder = Path(os.environ["SAILOR_CHECKPOINTS"])
    found = sorted(folder.glob("count-*"), key=lambda path: int(path.name.split("-")[1]))
    first = int(found[-1].read_text()) if found else 0
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(1))
    def save(step):
        if os.environ["NODE_RANK"] == "0":
            (folder / "next.tmp").write_text(str(step))
            (folder / "next.tmp").rename(folder / f"count-{step}")
    for step in range(first + 1, int(sys.argv[1]) + 1):
        time.sleep(0 if (folder / "hurry").exists() else 0.05)
        print(json.dumps({"step": step, "loss": 1.0 / step, "tokens": 100}))
        if step % 20 == 0 or leaving:
            save(step)
        if leaving:
            print("told to end, saved", step)
            sys.exit(0)
"""


def test_every_node_finds_what_launchers_read_and_the_code_and_the_packages_of_setup(tmp_path: Path) -> None:
    script(
        tmp_path,
        """
        import json, os, socket
        names = ["MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "WORLD_SIZE", "SAILOR_GRACE_S",
                 "SAILOR_BUDGET_USD", "COLOUR", "SECRET"]
        names += [f"PET_{name}" for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")]
        told = {name: os.environ.get(name) for name in names}
        told["plan"] = json.loads(os.environ["SAILOR_PLAN"])
        told["files"] = sorted(os.listdir("."))
        print("TOLD " + json.dumps(told))
        if os.environ["NODE_RANK"] == "0":
            listener = socket.create_server(("", int(os.environ["MASTER_PORT"])))
        """,
    )
    script(tmp_path, "data/\n", ".sailorignore")
    (tmp_path / "work" / "data").mkdir()
    script(tmp_path, "too much", "data/large.bin")
    job = command_job(tmp_path, "python train.py", setup="touch made-by-setup", env={"COLOUR": "blue", "SECRET": None})
    run = up(tmp_path, job, SECRET="from outside")
    code, _, err = run.end()
    assert code == 0, err
    assert_nothing_is_left(run.folder)
    told = []
    for rank in (0, 1):
        [log] = (run.folder / "logs").glob(f"*/g1-rank{rank}.log")
        [line] = [line for line in log.read_text().splitlines() if line.startswith("TOLD ")]
        told.append(json.loads(line.removeprefix("TOLD ")))
    for rank, found in enumerate(told):
        assert (found["NNODES"], found["NODE_RANK"], found["NPROC_PER_NODE"]) == ("2", str(rank), "1")
        assert found["WORLD_SIZE"] == "2"
        assert found["SAILOR_BUDGET_USD"] == "5"
        assert float(found["SAILOR_GRACE_S"]) > 0
        assert (found["COLOUR"], found["SECRET"]) == ("blue", "from outside")
        assert all(
            found[f"PET_{name}"] == found[name] for name in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
        )
        assert found["plan"]["accelerator"] == "CPU-fast"
        assert found["plan"]["batch_share"] == 0.5
        assert found["files"] == [".sailorignore", "made-by-setup", "train.py"]
    assert told[0]["MASTER_ADDR"] == told[1]["MASTER_ADDR"]
    assert "from outside" not in (run.folder / "plan.json").read_text()


def test_a_lost_node_ends_the_command_everywhere_and_it_continues_from_its_checkpoint_on_new_nodes(
    tmp_path: Path,
) -> None:
    script(tmp_path, COUNTER)
    run = up(tmp_path, command_job(tmp_path, "python train.py 200", training={"steps": 200}, processes_per_node=1))
    run.wait_for(lambda folder: bool(saved(folder)) and len(steps(folder)) > 45, "a checkpoint")
    for victim in [found for found in processes.of_run(run.folder.name) if found.node.endswith("-1")]:
        os.kill(victim.pid, signal.SIGKILL)
    run.wait_for(in_generation(2), "another generation")
    (run.folder / "checkpoints" / "hurry").touch()
    code, _, err = run.end()
    assert code == 0, err
    assert_nothing_is_left(run.folder)
    events = read_lines(run.folder / "logs" / "events.jsonl")
    first, *_, last = [event["step"] for event in events if event["event"] == "step" and event["generation"] == 2]
    assert first - 1 in saved(run.folder)
    assert last == 200
    # The node that was left told its command to end, which saved once more, so no step was done twice.
    assert steps(run.folder) == list(range(1, 201))
    receipt = json.loads((run.folder / "receipt.json").read_text())
    assert len(receipt["resources"]) == 3
    assert (run.folder / "checkpoints" / "count-200").read_text() == "200"


@pytest.mark.parametrize("devices", [1])
def test_ctrl_c_makes_the_command_end_and_keeps_what_it_saves(tmp_path: Path, devices: int) -> None:
    script(tmp_path, COUNTER)
    run = up(tmp_path, command_job(tmp_path, "python train.py 100000", nodes=1, devices=devices))
    run.wait_for(lambda folder: len(steps(folder)) > 5, "some steps")
    run.signal(signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert_nothing_is_left(run.folder)
    [kept] = (run.folder / "checkpoints").glob("count-*")
    assert int(kept.read_text()) >= steps(run.folder)[-1]


def test_another_controller_takes_over_a_command_replanned_by_its_pace_at_its_owner_s_prices(
    tmp_path: Path,
) -> None:
    script(tmp_path, COUNTER)
    fields = {"training": {"steps": 400}, "throughput": "measured"}
    own = tmp_path / "prices" / "offers" / "local.csv"
    own.parent.mkdir(parents=True)
    own.write_text((ROOT / "pricing" / "offers" / "local.csv").read_text().replace(",0.04,", ",0.08,"))
    job = command_job(tmp_path, "python train.py 400", nodes=1, **fields)
    run = up(tmp_path, job, "--pricing", str(own.parents[1]))
    run.wait_for(journal_has("replanned"), "a measured pace")
    run.process.kill()
    _, err = run.process.communicate()
    [note] = [line for line in err.splitlines() if line.startswith("measured over ")]
    assert "USD per million tokens" in note
    assert "the other " in note
    told = json.loads(sailor(tmp_path, "status", run.folder.name, "--json").stdout)
    assert told["usd_per_step"] == pytest.approx(0.08 * told["iteration_s"] / 3600)
    assert told["usd_per_million_tokens"] == pytest.approx(told["usd_per_step"] * 1e4)
    assert '"step": 1,' in sailor(tmp_path, "logs", run.folder.name, "--rank", "0").stdout
    moved = own.parents[1].rename(tmp_path / "moved")
    refused = sailor(tmp_path, "resume", run.folder.name)
    assert refused.returncode == 2
    assert f"--pricing {own.parents[1]}, which is no folder now" in refused.stderr
    resumed = sailor(tmp_path, "resume", run.folder.name, "--pricing", str(moved))
    assert resumed.returncode == 0, resumed.stderr
    assert "took over generation 1" in resumed.stderr
    assert steps(run.folder) == list(range(1, 401))
    charged = [row["usd_per_hour"] for row in read_lines(run.folder / "ledger.jsonl") if "usd_per_hour" in row]
    assert set(charged) == {0.08}
    assert_nothing_is_left(run.folder)


HUNG = "failed 4 times without a new checkpoint"
FAULTS = {
    "fails at once": (
        "echo out of luck; exit 3",
        {},
        "twice in a row within 60 s of its start",
        "exit code 3",
        "out of luck",
    ),
    "needs a package": (
        "python -c 'import no_such_package'",
        {},
        "nodes lack the package no_such_package",
        "setup: pip install no_such_package",
    ),
    "needs a program": ("no-such-launcher train.py", {}, "nodes lack the program no-such-launcher"),
    "hangs": ("echo begun; sleep 100000", {"stall": "3s"}, HUNG, "has shown no sign of life for", "begun"),
    "writes nothing": ("sleep 100000", {"stall": "3s"}, HUNG, "has shown no sign of life for", "without a word"),
    "fails in setup": ("echo never", {"setup": "echo no such index; exit 5"}, "setup on node", "no such index"),
}


def begun(home: Path, fault: str) -> Up:
    command, fields, *_ = FAULTS[fault]
    (home / "work").mkdir()
    return up(home, command_job(home, command, nodes=1, **fields))


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Up]]:
    """Runs whose command hangs, beside each other and beside the others, because nearly all they do is wait."""
    runs = {fault: begun(tmp_path_factory.mktemp("hung"), fault) for fault in FAULTS if HUNG in FAULTS[fault]}
    yield runs
    for run in runs.values():
        if run.process.poll() is None:
            run.signal(signal.SIGINT)
            run.end()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_command_that_can_not_continue_is_named_and_nothing_is_left_or_paid_for(
    tmp_path: Path, fault: str, hung: dict[str, Up]
) -> None:
    words = FAULTS[fault][2:]
    run = hung[fault] if fault in hung else begun(tmp_path, fault)
    code, _, err = run.end()
    assert code == 1, err
    text = " ".join(err.split())
    for word in words:
        assert word in text
    assert 'Traceback (most recent call last): File "/' not in text
    assert_nothing_is_left(run.folder)
    started = [event for event in read_lines(run.folder / "journal.jsonl") if event["event"] == "generation_started"]
    assert len(started) == (4 if HUNG in words else 2)


@pytest.mark.parametrize(
    ("workdir", "tail", "hint"),
    [
        (
            "work",
            "bash: ./run.sh: Permission denied",
            "./run.sh is not executable: chmod +x ./run.sh, or name",
        ),
        (None, "python: can't open file 'train.py': [Errno 2] No such file or directory", "add workdir: ."),
        ("work", "open('data.txt'): [Errno 2] No such file or directory", ""),
    ],
)
def test_a_command_s_missing_requirements_on_a_node_are_reported(
    tmp_path: Path, workdir: str | None, tail: str, hint: str
) -> None:
    job = read_job(command_job(tmp_path, "./run.sh", workdir=workdir))
    assert hint in generation._hint(tail, job)
    assert bool(hint) == bool(generation._hint(tail, job))


def test_a_package_that_our_own_training_lacks_is_not_advised_for_setup() -> None:
    hint = generation._hint(
        "ModuleNotFoundError: No module named 'safetensors'", read_job(ROOT / "examples" / "quickstart.yaml")
    )
    assert hint == "\nnodes lack the package safetensors, which sailor-cloud[runtime] installs"


def test_processes_forked_into_other_sessions_end_with_their_command(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    fork = (
        "setsid sleep 1000 & (setsid nohup sleep 1001 &) ; python -c 'import os; os.fork() or os.setsid()'; echo done"
    )
    run = up(tmp_path, command_job(tmp_path, fork, nodes=1))
    code, _, err = run.end()
    assert code == 0, err
    assert "processes running when it ended" in err
    assert 'It has reported no step, so its pace and cost per step are unknown: print lines such as {"step": 20}' in (
        " ".join(err.split())
    )
    assert_nothing_is_left(run.folder)


def test_a_command_that_starts_fewer_processes_than_planned_is_an_error(tmp_path: Path) -> None:
    script(tmp_path, "import time; print('{\"step\": 1}'); time.sleep(1000)")
    run = up(tmp_path, command_job(tmp_path, "python train.py", nodes=2))
    code, _, err = run.end()
    assert code == 1, err
    assert "nothing listens on MASTER_PORT" in " ".join(err.split())
    assert_nothing_is_left(run.folder)


def test_a_launcher_without_the_other_nodes_is_an_error(tmp_path: Path) -> None:
    script(tmp_path, "import time; time.sleep(1000)")
    launch = "env RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 python train.py"
    run = up(tmp_path, command_job(tmp_path, launch, nodes=2))
    code, _, err = run.end()
    assert code == 1, err
    assert "it has started 1 processes in total, and 2 are planned" in " ".join(err.split())
    assert "twice" not in err


def test_an_agent_that_is_killed_takes_its_command_along(tmp_path: Path) -> None:
    script(tmp_path, COUNTER)
    run = up(tmp_path, command_job(tmp_path, "python train.py 120", nodes=1))
    run.wait_for(lambda folder: bool(saved(folder)), "a checkpoint")
    [agent] = [found for found in processes.of_run(run.folder.name) if "sailor_runtime.agent" in found.command]
    [counter] = [found for found in processes.of_run(run.folder.name) if "train.py 120" in found.command][-1:]
    os.kill(agent.pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while counter.pid in processes_of(run.folder.name) and time.monotonic() < until:
        time.sleep(0.05)
    assert counter.pid not in processes_of(run.folder.name)
    code, _, err = run.end()
    assert code == 0, err
    assert steps(run.folder)[-1] == 120
    assert_nothing_is_left(run.folder)
