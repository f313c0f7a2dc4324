"""A checkpoint is found whole or not at all."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from sailor_runtime.training.checkpoint.folder import CheckpointFolder, sum_file


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=2)


def _save(folder: CheckpointFolder, step: int, *, publish: bool = True) -> None:
    folder.begin(step)
    names = [f"__{rank}_0.distcp" for rank in range(3)]
    for name in names:
        (folder.partial(step) / name).write_text(f"{name} of step {step}")
    places = {MetadataIndex(name): _StorageInfo(relative_path=name, offset=0, length=9) for name in names}
    metadata = Metadata(state_dict_metadata={}, storage_data=places)
    (folder.partial(step) / ".metadata").write_bytes(pickle.dumps(metadata))
    if publish:
        files = [".metadata", *names]
        folder.publish(step, {"step": step}, [sum_file(folder.partial(step) / name) for name in files])


def _names(folder: CheckpointFolder) -> list[str]:
    return folder.newest_first()


def test_a_folder_without_a_save_has_no_checkpoint(folder):
    assert _names(folder) == []


def test_an_interrupted_save_is_never_found_and_removed_by_the_next(folder):
    _save(folder, 2)
    _save(folder, 4, publish=False)
    assert _names(folder) == ["step-2"]
    _save(folder, 6)
    assert _names(folder) == ["step-6", "step-2"]
    assert not folder.partial(4).exists()


def test_a_checkpoint_that_latest_does_not_name_yet_does_not_count(folder):
    _save(folder, 2)
    _save(folder, 4)
    (folder.directory / "latest").write_text("step-2")
    assert _names(folder) == ["step-2"]


def test_only_the_newest_are_kept(folder):
    for step in (2, 4, 10, 12):
        _save(folder, step)
    assert _names(folder) == ["step-12", "step-10"]


def test_saving_a_step_again_replaces_it(folder):
    _save(folder, 2)
    _save(folder, 2)
    assert _names(folder) == ["step-2"]
    assert folder.damage("step-2", 0, 1) is None


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_damage_is_found_by_whoever_looks_at_the_file(folder, harm):
    _save(folder, 2)
    [checkpoint] = folder.newest_first()
    assert folder.describe(checkpoint)["step"] == 2
    assert [folder.damage(checkpoint, share, 3) for share in range(3)] == [None, None, None]
    victim = folder.directory / checkpoint / "__1_0.distcp"
    match harm:
        case "flip":
            victim.write_bytes(victim.read_bytes()[:-1] + b"?")
        case "cut":
            victim.write_bytes(victim.read_bytes()[:-1])
        case "remove":
            victim.unlink()
    found = [folder.damage(checkpoint, share, 3) for share in range(3)]
    # The first file is the metadata.
    assert [fault is not None for fault in found] == [False, False, True]
    assert "__1_0.distcp" in str(found[2])


def test_a_checkpoint_without_its_description_is_damaged(folder):
    _save(folder, 2)
    [checkpoint] = folder.newest_first()
    (folder.directory / checkpoint / "sailor.json").write_text("{")
    assert folder.damage(checkpoint, 0, 1) is not None
