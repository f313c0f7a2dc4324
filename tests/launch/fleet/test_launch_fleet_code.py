"""Which files of a working folder reach the nodes."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet import code
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job


def job(workdir: str = "work") -> Job:
    return parse_job(
        f"name: any\nrun: torchrun train.py\nworkdir: {workdir}\n"
        "resources: [{provider: local, zones: [local-a], accelerators: {CPU-fast: 1}}]\n"
    )


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def names(base: Path) -> list[str]:
    packed = code.pack(job(), base)
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
        return sorted(archive.getnames())


def test_an_ignore_file_counts_for_its_folder_and_below_as_git_has_it(tmp_path: Path) -> None:
    fill(
        tmp_path / "work",
        {
            ".gitignore": "ignored-by-git.txt\n",
            ".sailorignore": "data/\n*.log\n!kept.log\n",
            "train.py": "",
            "ignored-by-git.txt": "",
            "a.log": "",
            "kept.log": "",
            "data/large.bin": "",
            "sub/.gitignore": "only-here\n",
            "sub/only-here": "",
            "sub/other": "",
            "only-here": "",
            ".git/config": "",
            "__pycache__/train.pyc": "",
        },
    )
    expected = [".gitignore", ".sailorignore", "ignored-by-git.txt", "kept.log", "only-here"]
    assert names(tmp_path) == [*expected, "sub/.gitignore", "sub/other", "train.py"]


def test_ignored_files_are_listed_before_anything_is_bought(tmp_path: Path) -> None:
    fill(tmp_path / "work", {"train.py": "", ".gitignore": "data/\n*.log\n", "__pycache__/train.pyc": ""})
    assert code.described(job(), tmp_path) == f"every node gets 2 files of {tmp_path}/work"
    fill(tmp_path / "work", {"data/a.txt": "", **{f"{index}.log": "" for index in range(6)}})
    left_out = "0.log, 1.log, 2.log, 3.log, 4.log, 2 more"
    assert code.described(job(), tmp_path) == (
        f"every node gets 2 files of {tmp_path}/work; its ignore files leave out {left_out}"
    )


def test_the_same_files_give_the_same_bytes_and_a_program_stays_one(tmp_path: Path) -> None:
    fill(tmp_path / "work", {"train.py": "print()", "start.sh": "true"})
    (tmp_path / "work" / "start.sh").chmod(0o755)
    (tmp_path / "work" / "link").symlink_to("train.py")
    first = code.pack(job(), tmp_path)
    (tmp_path / "work" / "train.py").touch()
    assert code.pack(job(), tmp_path) == first
    assert first is not None
    with tarfile.open(fileobj=io.BytesIO(first.content)) as archive:
        assert archive.getmember("start.sh").mode & 0o100
        assert archive.getmember("link").linkname == "train.py"
    (tmp_path / "work" / "start.sh").chmod(0o644)
    assert code.pack(job(), tmp_path) != first


def test_a_folder_that_is_missing_or_too_large_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequestError, match=r"workdir: is 'work', and .* is not there"):
        code.pack(job(), tmp_path)
    monkeypatch.setattr(code, "MOST_BYTES", 2**20)
    fill(tmp_path / "work", {"train.py": "", "weights.bin": "x" * (2 * 2**20)})
    with pytest.raises(RequestError) as caught:
        code.pack(job(), tmp_path)
    assert "has 2 MiB in 2 files; nodes get at most 1 MiB in 20000 files" in str(caught.value)
    assert "weights.bin (2 MiB)" in str(caught.value)
    assert ".sailorignore" in str(caught.value)
