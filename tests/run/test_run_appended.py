from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sailor_cloud.durable import write_atomically
from sailor_cloud.run.appended import AppendedFile, append_line


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_every_line_is_read_once_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    reader = AppendedFile(path)
    assert reader.new_lines() == ([], False)
    append(path, b"one\ntw")
    assert (reader.new_lines(), reader.torn) == (([b"one"], False), b"tw")
    assert reader.new_lines() == ([], False)
    append(path, b"o\nthree\n")
    assert (reader.new_lines(), reader.torn) == (([b"two", b"three"], False), b"")


def test_a_file_that_was_restarted_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    reader = AppendedFile(path)
    reader.new_lines()
    other = tmp_path / "other"
    other.write_bytes(b"four\nfive\nsix\n")
    other.replace(path)
    assert reader.new_lines() == ([b"four", b"five", b"six"], True)
    path.unlink()
    assert reader.new_lines() == ([], True)


def test_a_write_that_fails_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        append_line(tmp_path / "lines", "one")
    assert caught.value.filename == str(tmp_path / "lines")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(tmp_path / "text", "one")
    assert caught.value.filename == str(tmp_path / "text")
