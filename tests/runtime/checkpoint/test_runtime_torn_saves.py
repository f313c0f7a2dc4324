"""A save that is cut short at any point of it leaves a whole checkpoint, and the next save leaves nothing of it."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter

from sailor_runtime.object_store import Store
from sailor_runtime.training.checkpoint.bucket import CheckpointStore
from sailor_runtime.training.checkpoint.folder import CheckpointFolder

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

Place = CheckpointFolder | CheckpointStore


class Cut(BaseException):
    """The process is gone."""


class Scissors:
    """Cuts a process short at the `at`-th thing that it does to the disk or the bucket."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.cut = False

    def around(self, action: Callable[..., Any], torn: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return `action` as it is done by a process that may end there, after `torn` if that is given."""

        def done(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                if torn is not None and not self.cut:
                    torn(*arguments)
                self.cut = True
            if self.cut:
                raise Cut
            self.left -= 1
            return action(*arguments, **options)

        return done


def _half_written(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text[: len(text) // 2])


def _half_removed(path: Path, **options: Any) -> None:
    next(child for child in sorted(Path(path).iterdir())).unlink()


@contextmanager
def scissors(at: int) -> Iterator[Scissors]:
    found = Scissors(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "write_text", found.around(Path.write_text, _half_written))
        patch.setattr(Path, "mkdir", found.around(Path.mkdir))
        patch.setattr(Path, "rename", found.around(Path.rename))
        patch.setattr(os, "replace", found.around(os.replace))
        patch.setattr(shutil, "rmtree", found.around(shutil.rmtree, _half_removed))
        patch.setattr(FileSystemWriter, "write_data", found.around(FileSystemWriter.write_data))
        patch.setattr(FileSystemWriter, "finish", found.around(FileSystemWriter.finish))
        for name in ("write", "upload", "remove"):
            patch.setattr(Store, name, found.around(getattr(Store, name)))
        yield found


def _save(place: Place, step: int, damaged: tuple[str, ...] = (), run: str = "mine") -> None:
    place.begin(step, run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weight = torch.full((100,), float(step))
        dcp.save({"weight": weight}, storage_writer=place.writer(step), no_dist=True)
    place.publish(step, {"step": step, "run": run}, place.written(step, 0), damaged)


def _cut_short(place: Place, step: int, at: int, damaged: tuple[str, ...] = ()) -> bool:
    with scissors(at) as cutting:
        try:
            _save(place, step, damaged)
        except (Cut, dcp.CheckpointException):
            assert cutting.cut
    return cutting.cut


def _newest(place: Place) -> int:
    """Return the step of the newest checkpoint that is whole, as a run that continues finds it."""
    name = next(name for name in place.newest_first() if place.damage(name, 0, 1) is None)
    state = {"weight": torch.zeros(100)}
    dcp.load(state, storage_reader=place.reader(name), no_dist=True)
    step = int(place.describe(name)["step"])
    assert torch.equal(state["weight"], torch.full((100,), float(step)))
    return step


@pytest.fixture(params=["folder", "bucket"])
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, int], Place]:
    """Give checkpoints under a name; asked again, those that another process has left there."""
    if request.param == "folder":
        return lambda name, keep: CheckpointFolder(tmp_path / name, keep)
    return lambda name, keep: CheckpointStore(f"memory://{tmp_path.name}/{name}", keep)


def _steps(place: Place) -> list[int]:
    """Return the steps of all that lies there, whole or not."""
    if isinstance(place, CheckpointFolder):
        names = [path.name for path in place.directory.iterdir()]
    else:
        store = Store(place.location(""))
        names = [name for name in store.names() if store.names(name)]
    assert not [name for name in names if name.startswith(".step")]
    return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_save_cut_short_anywhere_leaves_the_one_before_or_itself(place_of, keep):
    at, cut = 0, True
    while cut:
        name = f"after-{at}"
        _save(place_of(name, keep), 2)
        cut = _cut_short(place_of(name, keep), 4, at)
        assert _newest(place_of(name, keep)) in ((2, 4) if cut else (4,))
        # Whatever it has left does not last.
        for step in (6, 8):
            _save(place_of(name, keep), step)
            assert _newest(place_of(name, keep)) == step
        assert _steps(place_of(name, keep)) == [8, 6][:keep][::-1]
        at += 1
    assert at > 6, "a save does more than that"


def test_a_damaged_checkpoint_is_replaced_without_a_moment_in_which_there_is_none(place_of):
    at, cut = 0, True
    while cut:
        name = f"again-{at}"
        for step in (2, 4):
            _save(place_of(name, 2), step)
        _damage(place_of(name, 2), "step-4")
        assert _newest(place_of(name, 2)) == 2
        cut = _cut_short(place_of(name, 2), 4, at, damaged=("step-4",))
        assert _newest(place_of(name, 2)) in ((2, 4) if cut else (4,))
        at += 1


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(place_of):
    for step in (2, 4):
        _save(place_of("run", 2), step)
    _damage(place_of("run", 2), "step-4")
    # The run continues from step 2, and saves before it comes to step 4 again.
    _save(place_of("run", 2), 3, damaged=("step-4",))
    assert _steps(place_of("run", 2)) == [2, 3]
    _save(place_of("run", 2), 5)
    assert _steps(place_of("run", 2)) == [3, 5]


def test_a_run_removes_only_checkpoints_that_it_has_written(place_of):
    for step in (2, 40):
        _save(place_of("run", 1), step, run="another")
    assert _steps(place_of("run", 1)) == [40], "its own"
    for step in (4, 6, 8):
        _save(place_of("run", 1), step)
    assert _steps(place_of("run", 1)) == [8, 40]
    assert _newest(place_of("run", 1)) == 8


def _damage(place: Place, name: str) -> None:
    if isinstance(place, CheckpointFolder):
        victim = place.directory / name / "__0_0.distcp"
        victim.write_bytes(victim.read_bytes()[:-1] + b"?")
        return
    store = Store(place.location(""))
    store.write(f"{name}/__0_0.distcp", store.read(f"{name}/__0_0.distcp")[:-1] + b"?")
