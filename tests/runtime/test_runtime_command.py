"""What runs a user's command on a node: output, checkpoints and processes, without torch and without a controller."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sailor_runtime.agent.generation import Generation, Limits, Outcome
from sailor_runtime.agent.journal import EventJournal
from sailor_runtime.agent.ranks import Starter
from sailor_runtime.command import checkpoints, tree
from sailor_runtime.command.checkpoints import Checkpoints, Folder, StoreError, step_of
from sailor_runtime.command.output import Output
from sailor_runtime.command.steps import ReportedSteps
from sailor_runtime.spec import SPEC_VERSION, CheckpointSpec, CommandNode, CommandSpec, Variable

ATTEMPTS = itertools.count(1)


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "_QUIET_FILE_S", 0.0)
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 0.0)


def node(root: Path, rank: int = 0) -> Checkpoints:
    found = Checkpoints(root / f"node-{rank}", Folder(root / "store"), rank, f"run/{next(ATTEMPTS)}")
    found.restore()
    return found


def looked(saved: Checkpoints, written: tuple[str, ...] = ()) -> list[str]:
    saved.poll(written)
    return sorted(saved._kept)


def test_a_complete_checkpoint_comes_to_every_node(tmp_path: Path) -> None:
    first, second = node(tmp_path), node(tmp_path, 1)
    (first.folder / "step-10.pt").write_text("ten")
    (first.folder / "step-20").mkdir()
    (first.folder / "step-20" / "a").write_text("part of the first node")
    (second.folder / "step-20").mkdir()
    (second.folder / "step-20" / "b").write_text("part of the second")
    assert looked(first) == ["step-10.pt", "step-20"]
    assert looked(second) == ["step-20"]
    for rank in (0, 1, 2):
        again = node(tmp_path, rank)
        assert (again.folder / "step-10.pt").read_text() == "ten"
        assert sorted(os.listdir(again.folder / "step-20")) == ["a", "b"]


@pytest.mark.parametrize("path", ["../../mine", "/tmp/mine", "a/../../../mine", "..", "a//b"])
def test_a_mark_names_no_file_outside_of_its_checkpoint(tmp_path: Path, path: str) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10.pt").write_text("ten")
    assert looked(saved) == ["step-10.pt"]
    forged = {"at": time.time(), "files": {path: [3, 1]}}
    (tmp_path / "store" / ".sailor" / "step-20.0.json").write_text(json.dumps(forged))
    with pytest.raises(StoreError, match=r"\.sailor/step-20\.0\.json names .*, which is not in its folder"):
        node(tmp_path)
    assert not (tmp_path / "node-0" / "step-20").exists()


@pytest.mark.parametrize("mark", ["...0.json", "..0.json", "...0.begun"])
def test_a_mark_of_the_folder_above_removes_nothing(tmp_path: Path, mark: str) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10.pt").write_text("ten")
    looked(saved)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    forged = {"at": time.time(), "attempt": "another", "files": {"missing": [3, 1], "mine": [3, 1]}}
    (tmp_path / "store" / ".sailor" / mark).write_text(json.dumps(forged))
    with pytest.raises(StoreError, match="which is not in the folder of checkpoints"):
        node(tmp_path)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("link", [{"../latest.pt": "step-10.pt"}, {"latest.pt": "step-10.pt/../../mine"}])
def test_no_link_is_restored_outside_of_the_folder(tmp_path: Path, link: dict[str, str]) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10.pt").write_text("ten")
    looked(saved)
    (tmp_path / "store" / ".sailor" / "links").write_text(json.dumps(link))
    with pytest.raises(StoreError, match=r"\.sailor/links names .*, which is not in"):
        node(tmp_path)
    assert not (tmp_path / "latest.pt").is_symlink()
    assert not (saved.folder / "latest.pt").is_symlink()


def test_files_open_for_writing_or_with_a_temporary_name_are_not_copied(tmp_path: Path) -> None:
    saved = node(tmp_path)
    with (saved.folder / "last.pt").open("w") as file:
        file.write("half")
        file.flush()
        assert str(saved.folder / "last.pt") in tree.written_files([os.getpid()])
    (saved.folder / "next.tmp").write_text("half")
    (saved.folder / ".hidden").write_text("half")
    checkpoints._QUIET_FILE_S = 100.0
    assert looked(saved, (str(saved.folder / "last.pt"),)) == []
    checkpoints._QUIET_FILE_S = 0.0
    assert looked(saved) == ["last.pt"]


def test_a_link_to_a_checkpoint_comes_to_every_node_and_none_that_leads_out_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("not of this run")
    first, second = node(tmp_path), node(tmp_path, 1)
    (first.folder / "step-10.pt").write_text("ten")
    (first.folder / "latest.pt").symlink_to("step-10.pt")
    (first.folder / "best").symlink_to(first.folder / "step-10.pt")
    (first.folder / "outside").symlink_to(tmp_path / "secret")
    (first.folder / "parent").symlink_to("../../secret")
    assert looked(first) == ["step-10.pt"]
    again = node(tmp_path, 1)
    assert sorted(os.listdir(again.folder)) == ["best", "latest.pt", "step-10.pt"]
    assert (again.folder / "latest.pt").read_text() == (again.folder / "best").read_text() == "ten"

    # The new target is not complete yet, so the link stays at the old one.
    monkeypatch.setattr(checkpoints, "_QUIET_FILE_S", 60.0)
    (first.folder / "step-20.pt").write_text("half")
    (first.folder / "latest.pt").unlink()
    (first.folder / "latest.pt").symlink_to("step-20.pt")
    first.poll([f"{first.folder}/step-20.pt"])
    # The second node still has the older link.
    second.poll([])
    assert (node(tmp_path, 2).folder / "latest.pt").readlink() == Path("step-10.pt")


def test_a_link_to_a_link_and_one_by_the_folders_real_path_come_back(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "work").symlink_to("real")
    first = node(tmp_path / "work")
    (first.folder / "step-10.pt").write_text("ten")
    (first.folder / "best").symlink_to((first.folder / "step-10.pt").resolve())
    (first.folder / "latest.pt").symlink_to("best")
    (first.folder / "lost").symlink_to("nowhere")
    assert looked(first) == ["step-10.pt"]
    again = node(tmp_path / "work", 1)
    assert sorted(os.listdir(again.folder)) == ["best", "latest.pt", "step-10.pt"]
    assert (again.folder / "latest.pt").read_text() == "ten"


def test_a_node_that_was_lost_while_it_copied_leaves_no_checkpoint_that_is_brought_back(tmp_path: Path) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10").mkdir()
    (saved.folder / "step-10" / "weights").write_text("whole")
    assert looked(saved) == ["step-10"]
    store = tmp_path / "store"
    (store / ".sailor" / "step-10.1.begun").write_text("")
    assert node(tmp_path, 2).complete() == {}
    (store / ".sailor" / "step-10.1.begun").unlink()
    (store / "step-10" / "weights").write_text("torn")
    other = node(tmp_path, 3)
    assert other.restore() == []
    assert os.listdir(other.folder) == []


def test_a_checkpoint_of_which_another_node_still_writes_its_part_is_not_complete_and_is_forgotten_when_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = node(tmp_path), node(tmp_path, 1)
    for saved, name in ((first, "a"), (second, "b")):
        (saved.folder / "step-20").mkdir()
        (saved.folder / "step-20" / name).write_text(name)
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 100.0)
    assert looked(second) == []
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 0.0)
    assert looked(first) == ["step-20"]
    assert first.complete() == {}
    again = node(tmp_path)
    assert os.listdir(again.folder) == []
    assert os.listdir(tmp_path / "store" / ".sailor") == []
    # Saved again by one node alone it is complete with that node's files.
    (again.folder / "step-20").mkdir()
    (again.folder / "step-20" / "a").write_text("again")
    assert looked(again) == ["step-20"]
    assert [*again.complete()["step-20"]] == ["a"]


def test_only_partly_copied_checkpoints_are_removed_before_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, store = node(tmp_path), node(tmp_path, 1), tmp_path / "store"
    for saved, name in ((first, "a"), (second, "b")):
        for step in ("step-10", "step-20"):
            (saved.folder / step).mkdir()
            (saved.folder / step / name).write_text(name)
        (saved.folder / "step-20" / f"{name}-more").write_text(name)
    assert looked(second) == ["step-10", "step-20"]
    # What is not of the run, and what a node that is lost leaves behind in the middle of a file.
    (store / "step-20" / "notes").write_text("the owner's")

    def copy(path: Path, staged: Path) -> None:
        staged.write_bytes(path.read_bytes())
        if path.name == "a-more":
            raise OSError("lost")

    monkeypatch.setattr(checkpoints.shutil, "copyfile", copy)
    with pytest.raises(OSError, match="lost"):
        first.poll(())
    marks = store / ".sailor"
    assert any(name.startswith(".staged") for name in os.listdir(marks))
    assert [*node(tmp_path, 2).complete()] == ["step-10"]
    assert [*node(tmp_path).complete()] == ["step-10"]
    assert sorted(os.listdir(marks)) == ["step-10.0.json", "step-10.1.json"]
    assert os.listdir(store / "step-20") == ["notes"]


def test_removals_of_the_first_node_include_the_parts_and_marks_of_all(tmp_path: Path) -> None:
    first, second = node(tmp_path), node(tmp_path, 1)
    for saved, name in ((first, "a"), (second, "b")):
        for step in ("step-10", "step-20"):
            (saved.folder / step).mkdir()
            (saved.folder / step / name).write_text(name)
        looked(saved)
    shutil.rmtree(first.folder / "step-10")
    looked(first)
    assert sorted(os.listdir(tmp_path / "store")) == [".sailor", "step-20"]
    assert sorted(os.listdir(tmp_path / "store" / ".sailor")) == ["step-20.0.json", "step-20.1.json"]


def test_a_folder_that_is_removed_before_it_is_copied_leaves_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10").mkdir()
    (saved.folder / "step-10" / "a").write_text("a")
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 100.0)
    saved.poll(())
    assert os.listdir(tmp_path / "store" / ".sailor") == ["step-10.0.begun"]
    (saved.folder / "step-10" / "a").unlink()
    (saved.folder / "step-10").rmdir()
    saved.poll(())
    assert os.listdir(tmp_path / "store" / ".sailor") == []


@pytest.mark.parametrize(("nodes", "meanwhile"), [(1, ["last"]), (2, [])])
def test_a_changed_folder_stays_complete_only_with_a_single_writer_and_again_once_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, meanwhile: list[str]
) -> None:
    for rank in reversed(range(nodes)):
        saved = node(tmp_path, rank)
        (saved.folder / "last").mkdir(exist_ok=True)
        (saved.folder / "last" / f"part-{rank}").write_text("a")
        looked(saved)
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 100.0)
    (saved.folder / "last" / "b.tmp").write_text("half")
    saved.poll(())
    assert [*saved.complete()] == meanwhile
    (saved.folder / "last" / "b.tmp").unlink()
    saved.poll(())
    assert [*saved.complete()] == ["last"]


def test_a_node_saves_and_removes_only_its_own_part_of_restored_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        saved = node(tmp_path, rank)
        (saved.folder / "last").mkdir(exist_ok=True)
        (saved.folder / "last" / f"part-{rank}").write_text("old")
        (saved.folder / f"other-{rank}").write_text("another")
        looked(saved)
    second = node(tmp_path, 1)
    assert sorted(os.listdir(second.folder / "last")) == ["part-0", "part-1"]
    (second.folder / "last" / "part-0").unlink()
    (second.folder / "last" / "part-1").write_text("newer")
    looked(second)
    marks = tmp_path / "store" / ".sailor"
    assert [*json.loads((marks / "last.1.json").read_text())["files"]] == ["part-1"]
    assert (tmp_path / "store" / "last" / "part-0").read_text() == "old"
    assert (tmp_path / "store" / "last" / "part-1").read_text() == "newer"
    (second.folder / "last" / "part-1").unlink()
    (second.folder / "last").rmdir()
    looked(second)
    assert os.listdir(tmp_path / "store" / "last") == ["part-0"]


def test_remains_of_an_incomplete_save_are_removed_before_a_start(tmp_path: Path) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-10.pt").write_text("ten")
    looked(saved)
    (saved.folder / "step-20.pt").write_text("tw")
    assert sorted(os.listdir(node(tmp_path).folder)) == ["step-10.pt"]


def test_deletions_of_the_command_are_repeated_in_the_store(tmp_path: Path) -> None:
    saved = node(tmp_path)
    for step in (10, 20):
        (saved.folder / f"step-{step}.pt").write_text(str(step))
    looked(saved)
    (saved.folder / "step-10.pt").unlink()
    assert looked(saved) == ["step-20.pt"]
    assert [name for name in os.listdir(tmp_path / "store") if not name.startswith(".")] == ["step-20.pt"]
    # The last one stays, whatever became of the folder.
    (saved.folder / "step-20.pt").unlink()
    looked(saved)
    assert (tmp_path / "store" / "step-20.pt").exists()


def test_after_a_kill_only_what_was_left_alone_before_or_written_after_sigterm_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_QUIET_FILE_S", 100.0)
    saved = node(tmp_path)
    (saved.folder / "step-10.pt").write_text("ten")
    assert saved.poll((), over=True, clean=False) == []
    assert saved.poll((), over=True, clean=False, stop_requested_at=time.time()) == []
    assert [one["name"] for one in saved.poll((), over=True, clean=False, stop_requested_at=time.time() - 10)] == [
        "step-10.pt"
    ]


def test_after_a_kill_a_file_counts_that_ends_as_its_format_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_QUIET_FILE_S", 100.0)
    saved = node(tmp_path)
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    whole = len(header).to_bytes(8, "little") + header + bytes(8)
    (saved.folder / "step-1.safetensors").write_bytes(whole)
    (saved.folder / "step-2.safetensors").write_bytes(whole[:-1])
    (saved.folder / "step-3.safetensors").write_bytes(bytes(100))
    with zipfile.ZipFile(saved.folder / "step-4.pt", "w") as archive:
        archive.writestr("data.pkl", bytes(5000))
    (saved.folder / "step-5.pt").write_bytes((saved.folder / "step-4.pt").read_bytes()[:-30])
    assert saved.poll(()) == []
    assert [one["name"] for one in saved.poll((), over=True, clean=False)] == ["step-1.safetensors", "step-4.pt"]


def test_after_a_kill_a_folder_counts_that_has_the_last_file_of_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 100.0)
    first, second = node(tmp_path), node(tmp_path, 1)

    def save(saved: Checkpoints, *paths: str) -> None:
        for path in paths:
            (saved.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (saved.folder / path).write_text("tensors")

    # Of the second folder below it only one node has its part; the third has a part that no format tells whole.
    save(first, "step-1/__0_0.distcp", "step-1/.metadata", "step-2/model/__0_0.distcp", "step-2/model/.metadata")
    save(first, "step-2/optimizer/__0_0.distcp", "step-3/__0_0.distcp", "step-3/.metadata", "step-4/model.pt")
    save(first, *(f"step-5/{name}" for name in ("training_args.bin", "rng_state.pth", "trainer_state.json")))
    save(second, "step-1/__1_0.distcp", "step-2/model/__1_0.distcp", "step-2/optimizer/__1_0.distcp")
    save(second, "step-3/__1_0.distcp", "step-3/rng_state_1.pth")
    for saved in (first, second):
        assert saved.poll(()) == []
        saved.poll((), over=True, clean=False)
    assert sorted(first.complete()) == ["step-1", "step-5"]


def test_a_save_that_was_renamed_from_a_temporary_name_counts_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_QUIET_FOLDER_S", 100.0)
    monkeypatch.setattr(checkpoints, "_QUIET_FILE_S", 100.0)
    saved = node(tmp_path)
    for name in (".step-1", "step-2.tmp", "step-3"):
        (saved.folder / name).mkdir()
        (saved.folder / name / "weights").write_text("tensors")
    (saved.folder / "step-4.partial").write_text("tensors")
    assert saved.poll(()) == []
    for old, new in ((".step-1", "step-1"), ("step-2.tmp", "step-2"), ("step-4.partial", "step-4")):
        (saved.folder / old).rename(saved.folder / new)
    # What somebody still writes to is not whole yet.
    open_file = str(saved.folder / "step-2" / "weights")
    assert [one["name"] for one in saved.poll((open_file,))] == ["step-1", "step-4"]
    assert [one["name"] for one in saved.poll((), over=True, clean=False)] == ["step-2"]
    # Afterwards it is as any other.
    (saved.folder / "step-1" / "weights").write_text("other tensors")
    assert saved.poll((), over=True, clean=False) == []


def test_folders_of_known_formats_wait_for_their_last_file(tmp_path: Path) -> None:
    saved = node(tmp_path)
    folder = saved.folder / "checkpoint-10"
    folder.mkdir()
    for name in ("model.safetensors", "training_args.bin", "optimizer.pt"):
        (folder / name).write_text(name)
    assert looked(saved) == []
    (folder / "trainer_state.json").write_text("{}")
    assert looked(saved) == ["checkpoint-10"]


def test_steps_are_reported_by_lines_of_json_and_every_rank_has_a_log(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 2, 2, leads=True)
    told = output.take(b'[default0]:{"step": 1, "loss": 2.5, "tokens": 64}\n[default1]:hello\n{"step": 1}\nplain\n{"st')
    told += output.take(b'ep": 3, "loss": NaN}\n{"step": true}\n[1, 2]\n{"step" no JSON}\n')
    assert [(step["step"], step["loss"], step.get("tokens_since_last"), step["iterations"]) for step in told] == [
        (1, 2.5, 64.0, 1),
        (3, None, None, 2),
    ]
    assert (tmp_path / "rank3.log").read_text() == "hello\n"
    assert "plain" in (tmp_path / "rank2.log").read_text()
    assert "hello" in output.tail


def test_a_loss_that_is_not_a_number_is_counted_until_one_is(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 0, 1, leads=True)
    [nan, infinite] = output.take(b'{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1e400}\n')
    assert nan["loss_is_nan"]
    assert infinite["loss_is_nan"]
    assert (infinite["loss"], output.nan_lines) == (None, 2)
    output.take(b'{"step": 3}\n')
    assert output.nan_lines == 2, "a line without a loss says nothing"
    [finite] = output.take(b'{"step": 4, "loss": 1}\n')
    assert (finite["loss"], "loss_is_nan" in finite, output.nan_lines) == (1.0, False, 0)


def test_negative_tokens_are_ignored(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 0, 1, leads=True)
    negative, zero = output.take(b'{"step": 1, "tokens": -5}\n{"step": 2, "tokens": 0}\n')
    assert "tokens_since_last" not in negative
    assert zero["tokens_since_last"] == 0.0


def test_only_the_first_node_reports_steps(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 1, 1, leads=False)
    assert output.take(b'{"step": 1, "loss": 2.5}\n') == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step-10-stage-1.pt", 10),
        ("epoch=1-step=40.ckpt", 40),
        ("final", None),
        ("v2_7.pt", 7),
    ],
)
def test_the_step_of_a_checkpoint_is_read_from_its_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_a_checkpoint_has_the_step_that_was_reported_before_it_was_written() -> None:
    steps = ReportedSteps()
    assert (steps.newest, steps.at(1e9)) == (None, 0)
    for number in range(1, 30_000):
        steps.add(number, at=100.0 + number)
    assert steps.newest == 29_999
    assert steps.at(25_100.5) == 25_000
    assert steps.at(25_099.95) == 25_000, "its line may come a little later"
    assert steps.at(1e9) == 29_999


def test_everything_below_a_process_is_ended_whatever_session_it_has_made() -> None:
    code = "import time; from sailor_runtime.command import tree; import os, subprocess, sys\n"
    code += "tree.adopt_orphans()\n"
    code += "subprocess.Popen(['sh', '-c', 'setsid sleep 1000 & (setsid sleep 1001 &) ; sleep 0.2'])\n"
    code += "time.sleep(1.0); before = len(tree.descendants(os.getpid()))\n"
    code += "tree.end_descendants(os.getpid()); print(before, len(tree.descendants(os.getpid())))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=_environment()
    )
    assert result.stdout.split() == ["2", "0"], result.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "runtime")}


def test_a_port_that_somebody_listens_on_is_seen() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert tree.is_listening(port)
    assert not tree.is_listening(port)


def test_marks_name_files_with_size_and_time(tmp_path: Path) -> None:
    saved = node(tmp_path)
    (saved.folder / "step-1.pt").write_text("one")
    looked(saved)
    mark = json.loads((tmp_path / "store" / ".sailor" / "step-1.pt.0.json").read_text())
    assert mark["files"][""][0] == 3


def command_spec(home: Path, command: str, *, nodes: int, **fields: Any) -> CommandSpec:
    others = tuple(
        CommandNode(id=f"n{index}", address="127.0.0.1", processes=1, first_rank=index, plan_rank=index, plan="{}")
        for index in range(nodes)
    )
    return CommandSpec(
        spec_version=SPEC_VERSION,
        run="run",
        generation=1,
        plan_hash="0",
        command=command,
        setup=None,
        code=None,
        checkpoint=CheckpointSpec(directory=str(home / "store"), every_s=1.0, keep=1),
        nodes=others,
        plan_ranks=nodes,
        master_address="127.0.0.1",
        master_port=1,
        meets_at_port=False,
        budget_usd=None,
        **{"environment": (), "grace_s": 20.0, "stall_s": 60.0, "expires_at": 0.0, **fields},
    )


class Command:
    """One command that a supervisor runs on a node, told to stop and asked what it says like by an agent."""

    def __init__(self, home: Path, command: str, *, nodes: int = 1, rank: int = 0, before: str = "", **fields: Any):
        self._home = home
        spec = command_spec(home, command, nodes=nodes, **fields)
        (home / "logs").mkdir(parents=True)
        (home / "spec.json").write_text(spec.to_json())
        code = f"from sailor_runtime.command import __main__ as module, tree; import os, signal, sys\n{before}\n"
        arguments = ["--node", f"n{rank}", "--home", str(home), "--spec", str(home / "spec.json")]
        arguments += ["--events", str(home / "events"), "--control", str(home / "control")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{code}sys.exit(module.main())", *arguments], env=_environment()
        )

    def stop(self) -> None:
        (self._home / "new").write_text('{"stop": true}')
        (self._home / "new").rename(self._home / "control")

    def wait_for(self, name: str) -> None:
        until = time.monotonic() + 60
        while not (self._home / name).exists():
            assert time.monotonic() < until, name
            time.sleep(0.02)

    def events(self) -> list[dict[str, Any]]:
        self.process.wait(60)
        return [json.loads(line) for line in (self._home / "events").read_text().splitlines()]


def test_a_node_without_processes_of_the_command_reports_finished_on_request(tmp_path: Path) -> None:
    spec = command_spec(tmp_path, "true", nodes=2)
    idle = replace(spec, nodes=(spec.nodes[0], replace(spec.nodes[1], processes=0)))
    journal = EventJournal(tmp_path / "agent.jsonl")
    starter = Starter(tmp_path, "none")
    generation = Generation(
        idle, tmp_path / "spec", "n1", home=tmp_path, starter=starter, journal=journal, limits=Limits()
    )
    assert generation.poll() is None
    generation.request_stop()
    assert generation.poll() == Outcome(reason="finished", step=None)


def test_a_command_whose_loss_stays_nan_is_ended_and_not_restarted(tmp_path: Path) -> None:
    lines = "".join(f'{{"step": {step}, "loss": NaN}}\n' for step in range(1, 6))
    (tmp_path / "lines").write_text(lines)
    *_, event = Command(tmp_path / "home", f"cat {tmp_path / 'lines'}; sleep 600").events()
    assert (event["reason"], event["final"]) == ("failed", True)
    assert event["tail"].startswith("the last 5 losses that it has reported, up to step 5, are no numbers")


def test_variables_without_a_value_are_those_of_the_nodes_own_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = (Variable(name="TOKEN_OF_NODE", value=None),)
    *_, event = Command(tmp_path / "without", "true", environment=taken).events()
    assert (event["reason"], event["what"]) == ("failed", "environment")
    assert "TOKEN_OF_NODE from the node's environment, where it is not set" in event["tail"]
    monkeypatch.setenv("TOKEN_OF_NODE", "x")
    *_, event = Command(tmp_path / "with", 'test "$TOKEN_OF_NODE" = x', environment=taken).events()
    assert event["reason"] == "finished"


@pytest.mark.parametrize(
    ("sockets", "own", "told"), [(True, None, "Socket"), (False, None, ""), (True, "IB", "IB")], ids=str
)
def test_a_command_is_told_that_nccl_must_use_sockets_unless_its_job_says_otherwise(
    sockets: bool, own: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_NET", raising=False)
    given = () if own is None else (Variable(name="NCCL_NET", value=own),)
    command = Command(tmp_path / "home", f'test "$NCCL_NET" = "{told}"', environment=given, sockets=sockets)
    assert command.events()[-1]["reason"] == "finished"


@pytest.mark.parametrize(("rank", "signs"), [(0, range(3)), (1, range(3, 20))])
def test_on_other_nodes_than_the_first_a_silent_command_is_alive_as_long_as_its_processes(
    tmp_path: Path, rank: int, signs: range
) -> None:
    command = Command(tmp_path / "home", "sleep 2.2; true", nodes=2, rank=rank, stall_s=1.0)
    events = command.events()
    begun = next(index for index, event in enumerate(events) if event["event"] == "training")
    assert sum(event["event"] == "progress" for event in events[begun:]) in signs
    assert events[-1]["reason"] == "finished"


def test_a_progress_bar_without_lines_is_output(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 0, 1, leads=True)
    output.take(b"1 %\r2 %\r")
    assert output.lines == 2


def test_after_a_notice_children_may_save_although_the_shell_that_started_them_has_ended(tmp_path: Path) -> None:
    home = tmp_path / "home"
    child = "import os, pathlib, signal, sys, time\n"
    child += "saved = pathlib.Path(os.environ['SAILOR_CHECKPOINTS'], 'step-1')\n"
    child += "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), saved.write_text('all'), sys.exit()))\n"
    child += f"pathlib.Path({str(home)!r}, 'ready').touch(); time.sleep(1000)"
    (tmp_path / "child.py").write_text(child)
    command = Command(home, f"{sys.executable} {tmp_path}/child.py & wait; true")
    command.wait_for("ready")
    command.stop()
    [*_, ended] = command.events()
    assert ended["reason"] == "requested"
    assert (home / "store" / "step-1").read_text() == "all"


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_command_saves_when_a_scheduler_sends_sigterm_to_all_processes(tmp_path: Path, everywhere: bool) -> None:
    home = tmp_path / "home"
    code = "import os, pathlib, signal, sys, time\n"
    code += "saved = pathlib.Path(os.environ['SAILOR_CHECKPOINTS'], 'step-1')\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), saved.write_text('all'), sys.exit()))\n"
    code += f"pathlib.Path({str(home)!r}, 'ready').touch(); time.sleep(1000)"
    (tmp_path / "train.py").write_text(code)
    command = Command(home, f"exec {sys.executable} {tmp_path}/train.py")
    command.wait_for("ready")
    below = tree.descendants(command.process.pid) if everywhere else []
    tree.signal_all([command.process.pid, *below], signal.SIGTERM)
    [*_, ended] = command.events()
    assert ended["reason"] == "requested"
    assert (home / "store" / "step-1").read_text() == "all"


def test_a_command_that_sigterm_ends_at_once_has_not_finished(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = Command(home, f"trap 'exit 0' TERM; touch {home}/ready; while true; do sleep 0.01; done")
    command.wait_for("ready")
    tree.signal_all([command.process.pid, *tree.descendants(command.process.pid)], signal.SIGTERM)
    assert command.events()[-1]["reason"] == "requested"


def test_children_that_do_not_end_after_a_notice_are_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = Command(home, f"(trap '' TERM; touch {home}/ready; sleep 1000) & wait; true", grace_s=1.0)
    command.wait_for("ready")
    command.stop()
    assert command.events()[-1]["reason"] == "requested"


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Code that has this user refused every signal, and a sudo that does as it is told where ALLOWED is set."""
    sudo = tmp_path / "bin" / "sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\n[ "$1" = -n ] && [ -n "$ALLOWED" ] || exit 1\nshift\nexec "$@"\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    return (
        "def refuse(pid, number):\n    raise PermissionError(1, 'Operation not permitted')\n"
        "os.kill, tree._PATIENCE_S = refuse, 1.0"
    )


def test_processes_of_another_user_are_ended_with_sudo(
    tmp_path: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOWED", "1")
    begun = time.monotonic()
    events = Command(tmp_path / "home", "setsid sleep 30 & true", before=refused).events()
    assert events[-1]["reason"] == "finished"
    assert time.monotonic() - begun < 25


def test_processes_that_can_not_be_ended_are_a_final_failure_of_the_node(tmp_path: Path, refused: str) -> None:
    [*_, ended] = Command(tmp_path / "home", "sleep 6 & true", before=refused).events()
    assert (ended["reason"], ended["what"], ended["final"]) == ("failed", "command", True)
    assert "can't be ended" in ended["tail"]


def test_a_number_in_front_of_a_line_that_no_process_of_the_node_has_makes_no_log(tmp_path: Path) -> None:
    output = Output(lambda rank: tmp_path / f"rank{rank}.log", 4, 2, leads=True)
    output.take(b"[rank5]: Traceback\n[default1]:mine\n")
    assert (tmp_path / "rank4.log").read_text() == "[rank5]: Traceback\n"
    assert sorted(os.listdir(tmp_path)) == ["rank4.log", "rank5.log"]


def test_a_command_that_ends_well_before_anybody_has_looked_has_not_failed(tmp_path: Path) -> None:
    slow = "module.Supervisor._count = lambda self, below: None"
    assert Command(tmp_path / "home", "true", before=slow).events()[-1]["reason"] == "finished"


def test_a_checkpoint_that_is_removed_while_it_is_examined_ends_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stat = "stat = module.Path.stat\ndef gone(path, **how):\n"
    stat += "    if path.name == 'step-1' and sys._getframe(1).f_code.co_filename == module.__file__:\n"
    stat += "        raise FileNotFoundError(path)\n"
    stat += "    return stat(path, **how)\nmodule.Path.stat = gone"
    events = Command(home, "touch $SAILOR_CHECKPOINTS/step-1; sleep 1; true", before=stat).events()
    assert events[-1]["reason"] == "finished"


def test_a_command_that_never_stops_writing_still_gets_the_stop_request(tmp_path: Path) -> None:
    home = tmp_path / "home"
    endless = "read = os.read; os.read = lambda pipe, size: b'y' if size == 1 << 16 else read(pipe, size)"
    command = Command(home, f"touch {home}/ready; sleep 1000", before=endless)
    command.wait_for("ready")
    command.stop()
    try:
        assert command.events()[-1]["reason"] == "requested"
    finally:
        command.process.send_signal(tree.END_NOW)
