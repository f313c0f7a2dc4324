"""What is saved is found without `latest`, and a description with other content than was written is never loaded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from sailor_runtime.object_store import Store, StoreError
from sailor_runtime.training.checkpoint import fetch
from sailor_runtime.training.checkpoint.bucket import CheckpointStore
from sailor_runtime.training.checkpoint.folder import CheckpointFolder
from sailor_runtime.training.checkpoint.place import CheckpointPlace

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

Harm = Callable[[dict[str, Any]], Any]


class Files:
    """The files of a place, in a folder or in a bucket."""

    def __init__(self, url: str | None, folder: Path) -> None:
        self._folder = folder
        self._store = None if url is None else Store(url)
        self.place: CheckpointFolder | CheckpointStore = (
            CheckpointFolder(folder, keep=10) if url is None else CheckpointStore(url, keep=10)
        )

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes() if self._store is None else self._store.read(name)

    def write(self, name: str, content: bytes) -> None:
        if self._store is None:
            (self._folder / name).parent.mkdir(exist_ok=True)
            (self._folder / name).write_bytes(content)
        else:
            self._store.write(name, content)

    def remove(self, name: str) -> None:
        if self._store is None:
            (self._folder / name).unlink()
        else:
            self._store.remove(name)

    def save(self, step: int, run: str = "mine", damaged: Collection[str] = ()) -> None:
        self.place.begin(step, run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weight = torch.full((100,), float(step))
            dcp.save({"weight": weight}, storage_writer=self.place.writer(step), no_dist=True)
        about = {"run": run, "step": step, "updates": step, "loss_scale": 1.0, "good_steps": 0}
        self.place.publish(step, about, self.place.written(step, 0), damaged)

    def rewrite(self, step: int, harm: Harm) -> None:
        """Write what `harm` returns as the description; None: what it has made of its argument."""
        name = f"step-{step}/sailor.json"
        fields = json.loads(self.read(name))
        changed = harm(fields)
        self.write(name, json.dumps(fields if changed is None else changed).encode())

    def whole(self) -> list[str]:
        return [name for name in self.place.newest_first() if self.place.damage(name, 0, 1) is None]


@pytest.fixture(params=["folder", "bucket"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    url = None if request.param == "folder" else f"memory://{tmp_path.name}/{request.node.name}"
    found = Files(url, tmp_path)
    for step in (6, 11, 20):
        found.save(step)
    return found


def test_a_place_where_nothing_was_saved_has_no_fault(tmp_path: Path) -> None:
    places: list[CheckpointPlace] = [
        CheckpointFolder(tmp_path / "none", keep=1),
        CheckpointStore(f"memory://{tmp_path.name}/none", keep=1),
    ]
    for place in places:
        assert (place.newest_first(), place.latest_fault()) == ([], None)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "latest is missing"),
        (b"", "latest does not name a checkpoint"),
        (b"foo", "latest does not name a checkpoint"),
        (b"\xff\x00", "latest does not name a checkpoint"),
        (b"step-3", "latest names step-3, which is missing"),
        (b"step-999999", "latest names step-999999, which is missing"),
    ],
)
def test_without_a_usable_latest_all_whole_checkpoints_count_and_none_is_removed(files, content, fault):
    assert files.place.latest_fault() is None
    if content is None:
        files.remove("latest")
    else:
        files.write("latest", content)
    assert str(files.place.latest_fault()).endswith(fault)
    assert files.whole() == ["step-20", "step-11", "step-6"]
    # A description that can't be read says nothing about whose it is.
    files.write("step-11/sailor.json", b"{")
    files.place.begin(25, "new")
    assert files.whole() == ["step-20", "step-6"]
    files.write("step-6/__0_0.distcp", b"")
    assert files.whole() == ["step-20"], "its files are there, but not as written"
    files.save(25, "new")
    assert files.place.latest_fault() is None
    assert files.whole() == ["step-25", "step-20"]


def test_what_nobody_can_read_beyond_the_newest_is_not_removed(files):
    for step, text in ((30, b"{"), (31, files.read("step-20/sailor.json"))):
        files.save(step)
        files.write(f"step-{step}/sailor.json", text)
    files.remove("step-30/.sailor-run")
    files.write("latest", b"step-20")
    files.save(25)
    assert files.read("step-30/sailor.json") == b"{"
    with pytest.raises(FileNotFoundError):
        files.read("step-31/sailor.json")
    assert files.whole() == ["step-25", "step-20", "step-11", "step-6"]


def test_a_folder_of_another_tool_is_no_checkpoint(tmp_path: Path) -> None:
    for url in (None, f"memory://{tmp_path.name}/foreign"):
        found = Files(url, tmp_path)
        found.write("step-1000/model.pt", b"theirs")
        assert (found.place.newest_first(), found.place.latest_fault()) == ([], None)
        found.save(2)
        assert found.whole() == ["step-2"]
        assert found.read("step-1000/model.pt") == b"theirs"


def test_only_what_this_run_has_certainly_written_is_removed(files):
    """Whatever was found damaged."""
    files.write("step-1000/model.pt", b"theirs")
    for step, run in ((30, "another"), (31, "mine"), (32, "mine")):
        files.save(step, run)
        files.write(f"step-{step}/sailor.json", b"{")
    files.remove("step-32/.sailor-run")
    files.remove("latest")
    assert files.place.newest_first()[:4] == ["step-32", "step-31", "step-30", "step-20"]
    files.save(25, damaged=("step-1000", "step-32", "step-31", "step-30"))
    assert files.read("step-1000/model.pt") == b"theirs"
    assert [files.read(f"step-{step}/sailor.json") for step in (30, 32)] == [b"{", b"{"]
    with pytest.raises(FileNotFoundError):
        files.read("step-31/sailor.json")
    # Nor does it count towards `keep`.
    files.write("latest", b"step-32")
    files.place._keep = 1
    files.save(40)
    assert files.read("step-32/sailor.json") == b"{"
    assert files.whole() == ["step-40"]


def test_a_save_does_not_replace_what_another_has_written_under_its_name(files):
    files.write("step-25/model.pt", b"theirs")
    if isinstance(files.place, CheckpointStore):
        # Objects can't be renamed.
        with pytest.raises(FileExistsError, match="step-25 is not of this run and is not replaced; move or remove it"):
            files.save(25)
        assert files.read("step-25/model.pt") == b"theirs"
        return
    files.save(25)
    assert files.read("step-25.1.replaced/model.pt") == b"theirs"
    assert files.whole() == ["step-25", "step-20", "step-11", "step-6"]


def test_a_save_in_a_bucket_lists_it_twice(tmp_path, monkeypatch):
    found = Files(f"memory://{tmp_path.name}/listings", tmp_path)
    for step in (6, 11, 20):
        found.save(step)
    asked: list[str] = []
    for name in ("names", "read"):
        original = getattr(Store, name)
        monkeypatch.setattr(
            Store, name, lambda self, what="", original=original: asked.append(what) or original(self, what)
        )
    found.place.begin(25, "mine")
    assert sorted(asked) == ["", "latest", "step-11", "step-20", "step-6"]
    asked.clear()
    found.place.publish(25, {"run": "mine", "step": 25}, [])
    steps = [f"step-{step}" for step in (6, 11, 20, 25)]
    assert sorted(asked) == sorted(["", "latest", *steps, *(f"{name}/sailor.json" for name in steps)])


def test_a_latest_alone_is_a_fault(tmp_path: Path) -> None:
    for url in (None, f"memory://{tmp_path.name}/alone"):
        found = Files(url, tmp_path)
        found.write("latest", b"step-20")
        assert found.place.newest_first() == []
        assert str(found.place.latest_fault()).endswith("latest names step-20, which is missing")


def test_the_checkpoint_that_latest_names_is_damaged_without_its_description(files):
    files.remove("step-20/sailor.json")
    assert files.place.newest_first() == ["step-20", "step-11", "step-6"]
    assert "step-20" in str(files.place.damage("step-20", 0, 1))
    assert files.whole() == ["step-11", "step-6"]


def _without_checksum(fields: dict[str, Any]) -> None:
    """Make a description as older versions wrote it."""
    del fields["description_sha256"]


def _old(**changes: Any) -> Harm:
    def harm(fields: dict[str, Any]) -> None:
        _without_checksum(fields)
        for key, value in changes.items():
            fields[key] = value
            if value is None:
                del fields[key]

    return harm


WRONG: dict[str, tuple[Harm, str]] = {
    "a step": (lambda fields: fields.update(step=3), "sailor.json is not what was written"),
    "files": (lambda fields: fields.update(files={}), "sailor.json is not what was written"),
    "no updates": (lambda fields: fields.pop("updates") and None, "sailor.json is not what was written"),
    "a checksum": (lambda fields: fields.update(description_sha256=None), "sailor.json is not what was written"),
    "a list": (lambda _: [], "sailor.json is no JSON object"),
    "an old step": (_old(step=3), "sailor.json is of step 3"),
    "old, no step": (_old(step=None), "sailor.json has no number 'step'"),
    "old, no updates": (_old(updates=None), "sailor.json has no number 'updates'"),
    "old, a text": (_old(loss_scale="big"), "sailor.json has no number 'loss_scale'"),
    "old, no run": (_old(run=None), "sailor.json has no 'run'"),
    "old, no files": (_old(files=None), "sailor.json has no checksum of .metadata"),
    "old, a list of files": (_old(files=[".metadata"]), "sailor.json has no checksum of .metadata"),
    "old, a file without a checksum": (_old(files={".metadata": 1}), "sailor.json has no checksum of .metadata"),
    "old, a file elsewhere": (
        _old(files={".metadata": {"size": 1, "sha256": ""}, "../latest": {"size": 1, "sha256": ""}}),
        "sailor.json names '../latest', which is not in its folder",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_description_with_other_content_is_damaged_and_the_checkpoint_before_it_is_found(files, case):
    harm, fault = WRONG[case]
    files.rewrite(20, harm)
    assert files.place.damage("step-20", 0, 1) == f"{files.place.location('step-20')}: {fault}"
    assert files.whole() == ["step-11", "step-6"]
    with pytest.raises(ValueError, match=r"sailor\.json"):
        files.place.describe("step-20")
    files.save(25)
    assert files.whole() == ["step-25", "step-11", "step-6"]


@pytest.mark.parametrize("text", [b"null", b"", b"{", b"\xff", b"20", b'"step-20"'])
def test_a_description_that_is_no_object_is_damaged(files, text):
    files.write("step-20/sailor.json", text)
    assert "sailor.json is no JSON" in str(files.place.damage("step-20", 0, 1))
    assert files.whole() == ["step-11", "step-6"]


def test_the_description_of_another_step_is_damaged(files):
    files.write("step-20/sailor.json", files.read("step-11/sailor.json"))
    assert str(files.place.damage("step-20", 0, 1)).endswith("step-20: sailor.json is of step 11")


def test_a_checkpoint_of_an_older_version_has_no_checksum_of_its_description_and_is_whole(files):
    files.rewrite(20, _without_checksum)
    assert files.whole() == ["step-20", "step-11", "step-6"]
    assert files.place.describe("step-20")["updates"] == 20


def test_each_file_with_tensors_needs_a_checksum(files):
    def forget(fields: dict[str, Any]) -> None:
        _without_checksum(fields)
        del fields["files"]["__0_0.distcp"]

    files.rewrite(20, forget)
    assert str(files.place.damage("step-20", 0, 2)).endswith("step-20/__0_0.distcp has no checksum")
    files.remove("step-20/__0_0.distcp")
    assert str(files.place.damage("step-20", 0, 2)).endswith("step-20/__0_0.distcp has no checksum")


def test_other_files_in_the_place_do_no_harm(files):
    files.write("notes.txt", b"by hand")
    files.write("step-20/__9_0.distcp", b"of nobody")
    files.write("step-20/notes.txt", b"by hand")
    assert files.place.latest_fault() is None
    assert files.whole() == ["step-20", "step-11", "step-6"]


@pytest.mark.parametrize("latest", [None, b"", b"foo", b"\xff", b"step-3", b"step-999"])
def test_results_are_found_without_a_usable_latest(tmp_path, latest):
    url = f"memory://{tmp_path.name}/found-{latest!r}"
    found = Files(url, tmp_path)
    for step in (6, 11, 20, 30):
        found.save(step)
    found.write("step-30/sailor.json", b"{")
    found.write("step-2/model.pt", b"theirs")
    found.write("step-1000/model.pt", b"theirs")
    if latest is None:
        found.remove("latest")
    else:
        found.write("latest", latest)
    name, sums = fetch.newest(Store(url))
    assert (name, [each.name for each in sums]) == ("step-20", [".metadata", "__0_0.distcp"])
    # What `latest` names is never replaced by something older: the bucket is deleted after the copy.
    found.write("latest", b"step-30")
    with pytest.raises(StoreError, match=r"there is no complete checkpoint in .*: sailor\.json is no JSON"):
        fetch.newest(Store(url))


@pytest.mark.parametrize("harm", [lambda fields: fields.update(files={}), lambda _: [], _old(files=None)])
def test_results_with_a_description_other_than_written_are_not_copied(tmp_path, harm):
    url = f"memory://{tmp_path.name}/results"
    found = Files(url, tmp_path)
    found.save(20)
    name, sums = fetch.newest(Store(url))
    assert (name, [each.name for each in sums]) == ("step-20", [".metadata", "__0_0.distcp"])
    found.rewrite(20, harm)
    with pytest.raises(StoreError, match=r"there is no complete checkpoint in .*: sailor\.json "):
        fetch.newest(Store(url))
