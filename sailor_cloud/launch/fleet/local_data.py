"""Checks the data of local nodes before a run begins, by what the runtime would refuse later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sailor_cloud.model.job import DataFormat

Tokens = np.ndarray[Any, np.dtype[Any]]

# The runtime checks the rest of a larger source during training.
_CHECKED_TOKENS = 2**26
_PART = 2**20
_BYTES = 256


def data_fault(path: Path, form: DataFormat, sequence_length: int, vocabulary: int | None) -> str:
    """Return why no samples can be read from an existing file or folder; empty if nothing is known.

    vocabulary: None for a command, which reads its data itself.
    """
    tokens = form is DataFormat.TOKENS
    found = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    files = sorted(file for file in found if not file.name.startswith("."))
    if tokens and path.is_dir():
        files = [file for file in files if file.suffix == ".npy"]
    if not files:
        return f"holds no {'.npy' if tokens else 'text'} file"
    if not tokens and not any(file.stat().st_size for file in files):
        return "holds only empty files"
    if vocabulary is None or form is DataFormat.TEXT:
        return ""
    if not tokens and vocabulary < _BYTES:
        return f"has a token for each of {_BYTES} bytes, the vocabulary only {vocabulary}"
    arrays = []
    for file in files if tokens else ():
        array = _array(file)
        if isinstance(array, str):
            return f"is no array of tokens: {file.name} {array}"
        arrays.append(array)
    lengths = [len(array) for array in arrays] if tokens else [file.stat().st_size for file in files]
    if max(lengths) <= sequence_length:
        return f"has at most {max(lengths)} tokens in a file, and a sample needs {sequence_length + 1}"
    return _out_of_range(arrays, vocabulary)


def _array(file: Path) -> Tokens | str:
    """Return a file's tokens, or why it has none."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return "is no .npy file"
    if not isinstance(array, np.ndarray):
        return "is no .npy file"
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        return f"holds {array.dtype} of shape {array.shape}, not one row of integers"
    return array


def _out_of_range(arrays: Sequence[Tokens], vocabulary: int) -> str:
    for part in _parts(arrays):
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= vocabulary:
            return f"holds tokens {low} to {high}, and the vocabulary is 0 to {vocabulary - 1}"
    return ""


def _parts(arrays: Sequence[Tokens]) -> Iterator[Tokens]:
    """Yield all of a small source, and evenly spread parts of a larger one."""
    step = _PART * max(1, sum(map(len, arrays)) // _CHECKED_TOKENS)
    for array in arrays:
        for start in range(0, len(array), step):
            yield array[start : start + _PART]
