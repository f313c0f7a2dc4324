"""Token sources, and the order in which samples are read: a function of seed, epoch and index, never of the plan."""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.refusal import RefusedError
from sailor_runtime.training.store import Store, StoreError, cache, is_url, local_copy

Tokens = np.ndarray[Any, np.dtype[Any]]

# Test files are half of the text and much of that is tables of data.
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


class Samples(Protocol):
    """Samples by their number in the order of training."""

    def read(self, numbers: Sequence[int]) -> Tensor:
        """Return int64 tokens of shape [samples, sequence_length + 1]: inputs and, one later, targets."""
        ...

    def description(self) -> dict[str, object]:
        """Return size and unigram entropy (nats per token) for the log."""
        ...


def open_samples(spec: RunSpec) -> Samples:
    """Return the samples of the spec's data source. Raises RefusedError for what can't be read.

    Formats: `bytes` (a file, each byte one token), `text` (a file, cut by a `tokenizers` file), `tokens` (a .npy file
    of token numbers or a folder of them, which are mapped into memory). All of them may be URLs; what they hold is
    fetched once per node.
    """
    data, length, seed = spec.data, spec.training.sequence_length, spec.training.seed
    vocabulary = spec.model.vocab_size
    if data.source == "synthetic":
        return SyntheticSamples(vocabulary, length, seed)
    if data.source != "python-stdlib" and not is_url(data.source) and not Path(data.source).exists():
        raise RefusedError(f"data source {data.source!r} is neither 'synthetic', 'python-stdlib' nor there to be read")
    match data.format:
        case "bytes":
            if vocabulary < 256:
                raise RefusedError(f"format 'bytes' needs a vocabulary of 256, the model has {vocabulary}")
            read = partial(_bytes, data.source)
        case "text":
            read = partial(_tokenized, data.source, data.tokenizer)
        case "tokens":
            read = partial(_token_arrays, data.source)
        case _:
            raise RefusedError(f"data format {data.format!r} is not supported; supported: bytes, text, tokens")
    return TokenSamples(data.source, read, vocabulary=vocabulary, sequence_length=length, seed=seed)


class SyntheticSamples:
    """Uniformly random tokens: an endless stream for measuring, with nothing to learn."""

    def __init__(self, vocabulary: int, sequence_length: int, seed: int) -> None:
        self._vocabulary = vocabulary
        self._length = sequence_length
        self._seed = seed

    def read(self, numbers: Sequence[int]) -> Tensor:
        return torch.stack([self._sample(number) for number in numbers])

    def _sample(self, number: int) -> Tensor:
        digest = hashlib.sha256(f"{self._seed}/synthetic/{number}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.randint(0, self._vocabulary, (self._length + 1,), generator=generator)

    def description(self) -> dict[str, object]:
        return {"source": "synthetic", "tokens": None, "samples": None, "unigram_entropy": math.log(self._vocabulary)}


class TokenSamples:
    """Arrays of tokens, each cut into samples that overlap by one token: the target of one and input of the next."""

    def __init__(
        self,
        source: str,
        read: Callable[[], list[Tokens]],
        *,
        vocabulary: int,
        sequence_length: int,
        seed: int,
    ) -> None:
        self._source = source
        self._read = read
        self._vocabulary = vocabulary
        self._length = sequence_length
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @cached_property
    def _arrays(self) -> list[Tokens]:
        """The tokens; read late, since ranks in the middle of a pipeline need none."""
        try:
            arrays = self._read()
        except (StoreError, FileNotFoundError) as error:
            raise RefusedError(f"data source {self._source!r}: {error}") from error
        if sum(self._samples(array) for array in arrays) == 0:
            held = sum(len(array) for array in arrays)
            raise RefusedError(f"{self._source} has {held} tokens, one sample needs {self._length + 1}")
        return arrays

    @cached_property
    def _ends(self) -> Tokens:
        """The number of samples in each array and all before it."""
        return np.cumsum([self._samples(array) for array in self._arrays])

    def _samples(self, array: Tokens) -> int:
        return max(0, (len(array) - 1) // self._length)

    @property
    def count(self) -> int:
        """Samples per epoch."""
        return int(self._ends[-1])

    def place(self, number: int) -> int:
        """Return which sample of the source the training reads as its `number`-th."""
        epoch, index = divmod(number, self.count)
        if epoch != self._epoch:
            digest = hashlib.sha256(f"{self._seed}/order/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            self._order, self._epoch = torch.randperm(self.count, generator=generator), epoch
        return int(self._order[index])

    def read(self, numbers: Sequence[int]) -> Tensor:
        tokens = np.stack([self._sample(self.place(number)) for number in numbers]).astype(np.int64)
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            found = f"{tokens.min()}..{tokens.max()}"
            raise RefusedError(f"{self._source} holds tokens {found}, the vocabulary is 0..{self._vocabulary - 1}")
        return torch.from_numpy(tokens)

    def _sample(self, place: int) -> Tokens:
        index = int(np.searchsorted(self._ends, place, side="right"))
        start = (place - (int(self._ends[index - 1]) if index else 0)) * self._length
        return self._arrays[index][start : start + self._length + 1]

    def description(self) -> dict[str, object]:
        counts: Counter[int] = Counter()
        for array in self._arrays:
            if array.dtype == np.uint8:
                # Counting is faster than sorting by far.
                kinds, numbers = np.arange(256), np.bincount(array, minlength=256)
            else:
                kinds, numbers = np.unique(array, return_counts=True)
            counts.update(dict(zip(kinds.tolist(), numbers.tolist(), strict=True)))
        total = counts.total()
        entropy = -sum(number / total * math.log(number / total) for number in counts.values() if number)
        return {"source": self._source, "tokens": total, "samples": self.count, "unigram_entropy": entropy}


def _bytes(source: str) -> list[Tokens]:
    return [np.frombuffer(_text(source), dtype=np.uint8)]


def _text(source: str) -> bytes:
    return standard_library_text() if source == "python-stdlib" else local_copy(source, cache()).read_bytes()


def _tokenized(source: str, tokenizer: str | None) -> list[Tokens]:
    if tokenizer is None or not (is_url(tokenizer) or Path(tokenizer).is_file()):
        raise RefusedError(f"format 'text' needs a tokenizer file, got {tokenizer!r}")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise RefusedError("format 'text' needs the package 'tokenizers' on every node") from error
    lines = _text(source).decode(errors="replace").splitlines(keepends=True)
    encoded = Tokenizer.from_file(str(local_copy(tokenizer, cache()))).encode_batch_fast(
        lines, add_special_tokens=False
    )
    return [np.fromiter((token for line in encoded for token in line.ids), dtype=np.uint32)]


def _token_arrays(source: str) -> list[Tokens]:
    if is_url(source):
        files = [local_copy(url, cache()) for url in _token_urls(source)]
    else:
        files = sorted(Path(source).glob("*.npy")) if Path(source).is_dir() else [Path(source)]
    if not files:
        raise RefusedError(f"{source} holds no .npy file")
    arrays = []
    for file in files:
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise RefusedError(f"{file} is no array of tokens: {error}") from error
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise RefusedError(f"{file} must hold one row of integers, got {array.dtype} of shape {array.shape}")
        arrays.append(array)
    return arrays


def _token_urls(source: str) -> list[str]:
    if source.endswith(".npy"):
        return [source]
    return [f"{source.rstrip('/')}/{name}" for name in Store(source).names() if name.endswith(".npy")]


def standard_library_text() -> bytes:
    """Return the text of this interpreter's standard library without its tests, files in sorted order."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path
        for path in root.rglob("*.py")
        if not _LEFT_OUT.intersection(path.relative_to(root).parts[:-1]) and path.is_file()
    )
    return b"\n".join(path.read_bytes() for path in files)
