"""Sources of tokens: texts as bytes or tokenized, and files of token numbers. All are on disk.

Files are memory-mapped, not read, so that a source may be larger than memory.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sailor_runtime.object_store import Store, cache, exclusive, is_url, local_copy
from sailor_runtime.refusal import RefusedError

Tokens = np.ndarray[Any, np.dtype[Any]]

STANDARD_LIBRARY = "python-stdlib"
# Test files are half of the text, mostly tables of data.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Bytes of text per tokenizer call: the tokenizer needs some hundred bytes of memory for each token.
_CUT_BYTES = 2**24


def byte_arrays(source: str) -> list[Tokens]:
    """Return the bytes of a text, or of each file of a folder of texts."""
    if source == STANDARD_LIBRARY:
        return [np.frombuffer(standard_library_text(), dtype=np.uint8)]
    return [_mapped(file, np.uint8) for file in _files(source)]


def tokenized_arrays(source: str, tokenizer: str | None) -> list[Tokens]:
    """Return the tokens of a text, or of each file of a folder of texts, tokenized line by line.

    The first rank of a node that asks tokenizes a text, and keeps the tokens next to the downloaded files.
    """
    if tokenizer is None or not (is_url(tokenizer) or Path(tokenizer).is_file()):
        raise RefusedError(f"format 'text' needs a tokenizer file, got {tokenizer!r}")
    rules = _hub_copy(tokenizer) if tokenizer.startswith("hf://") else local_copy(tokenizer, cache())
    if source == STANDARD_LIBRARY:
        text = cache() / "texts" / STANDARD_LIBRARY
        with exclusive(text.parent):
            text.write_bytes(standard_library_text())
            return [_cut(text, rules)]
    return [_cut(file, rules) for file in _files(source)]


def token_arrays(source: str) -> list[Tokens]:
    """Return the token numbers in a .npy file, or in each of a folder."""
    arrays = []
    for file in _files(source, ".npy"):
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise RefusedError(f"{file} is not an array of tokens: {error}") from error
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise RefusedError(f"{file} must hold one row of integers, got {array.dtype} of shape {array.shape}")
        arrays.append(array)
    return arrays


def standard_library_text() -> bytes:
    """Return the text of this interpreter's standard library without its tests, files in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not _LEFT_OUT.intersection(path.relative_to(root).parts[:-1]) and path.is_file()
    )
    return b"\n".join(path.read_bytes() for path in files)


def _files(source: str, ending: str = "") -> list[Path]:
    """Return the files of a source in the order of their names; a URL that ends in a slash is a folder."""
    if source.startswith("hf://"):
        source = str(_hub_copy(source))
    if is_url(source):
        if not source.endswith("/") and source.endswith(ending):
            return [local_copy(source, cache())]
        folder = source.rstrip("/")
        found = [name for name in Store(folder).names() if name.endswith(ending)]
        files = [local_copy(f"{folder}/{name}", cache()) for name in found]
    elif Path(source).is_dir():
        files = sorted(path for path in Path(source).glob(f"*{ending}") if path.is_file())
    else:
        files = [Path(source)]
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise RefusedError(f"{source} holds no {ending or 'text'} file")
    return files


def _hub_copy(address: str) -> Path:
    """Return the local copy of hf://[datasets/]ORG/NAME@REVISION[/PATH], fetched once per node."""
    from huggingface_hub import snapshot_download

    kind = "dataset" if address.startswith("hf://datasets/") else "model"
    repo, _, rest = address.removeprefix("hf://").removeprefix("datasets/").partition("@")
    revision, _, path = rest.partition("/")
    patterns = [path, f"{path}/*"] if path else None
    with exclusive(cache() / "hub"):
        root = snapshot_download(
            repo, repo_type=kind, revision=revision, allow_patterns=patterns, cache_dir=cache() / "hub"
        )
    return Path(root) / path


def _cut(text: Path, rules: Path) -> Tokens:
    """Return the tokens of a file by a tokenizer file."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RefusedError("format 'text' needs the package 'tokenizers' on every node") from error
    try:
        tokenizer = Tokenizer.from_file(str(rules))
    # The package raises no more specific exception.
    except Exception as error:
        raise RefusedError(f"{rules} is not a tokenizer file: {error}") from error
    key = hashlib.sha256((_sum(rules) + _sum(text)).encode()).hexdigest()[:32]
    kept = cache() / "tokenized" / key
    with exclusive(kept.parent):
        if not kept.exists():
            partial = kept.with_suffix(".partial")
            with partial.open("wb") as file:
                for lines in _lines(text):
                    for cut in tokenizer.encode_batch_fast(lines, add_special_tokens=False):
                        file.write(np.asarray(cut.ids, dtype=np.uint32).tobytes())
            partial.rename(kept)
    return _mapped(kept, np.uint32)


def _lines(text: Path) -> Iterator[list[str]]:
    with text.open("rb") as file:
        while lines := file.readlines(_CUT_BYTES):
            yield [line.decode(errors="replace") for line in lines]


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _mapped(file: Path, kind: type[np.unsignedinteger[Any]]) -> Tokens:
    # An empty file can't be mapped.
    return np.memmap(file, dtype=kind, mode="r") if file.stat().st_size else np.empty(0, dtype=kind)
