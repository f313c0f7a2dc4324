from __future__ import annotations

import io
import tarfile
from pathlib import Path

from sailor_cloud.launch.fleet.bundle import pack_runtime


def make_runtime(root: Path, text: str) -> Path:
    package = root / "sailor_runtime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    (package / "notes.txt").write_text("not shipped")
    return root


def test_equal_files_give_equal_bytes_wherever_they_lie(tmp_path: Path) -> None:
    first = pack_runtime(make_runtime(tmp_path / "a", "x = 1\n"))
    second = pack_runtime(make_runtime(tmp_path / "b", "x = 1\n"))
    assert first == second


def test_a_changed_file_changes_the_name(tmp_path: Path) -> None:
    first = pack_runtime(make_runtime(tmp_path / "a", "x = 1\n"))
    assert first.sha256 != pack_runtime(make_runtime(tmp_path / "b", "x = 2\n")).sha256


def test_only_python_files_are_shipped() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack_runtime().content)) as archive:
        names = archive.getnames()
    assert "sailor_runtime/spec.py" in names
    assert all(name.endswith(".py") for name in names)
