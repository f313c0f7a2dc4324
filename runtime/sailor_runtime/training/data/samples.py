"""Samples of tokens, and the order in which they are read: a function of seed, epoch and index, never of the plan."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sailor_runtime.object_store import StoreError, is_url
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.data import sources
from sailor_runtime.training.data.sources import Tokens

# For a larger source, the displayed entropy is that of this many evenly spread tokens.
_COUNTED = 2**26
_PART = 2**20
# The number of evenly spread samples that identify a source.
_COMPARED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of data: samples per epoch (None: endless) and a hash over some of them."""

    samples: int | None
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Samples(Protocol):
    """Samples by their number in the order of training."""

    def read(self, numbers: Sequence[int]) -> Tensor:
        """Return int64 tokens of shape [samples, sequence_length + 1]: inputs and, one later, targets."""
        ...

    def description(self) -> dict[str, object]:
        """Return size and unigram entropy (nats per token) for the log."""
        ...

    def identity(self) -> Identity: ...


def open_samples(spec: RunSpec) -> Samples:
    """Return the samples of the spec's data source. Raises RefusedError for unreadable data.

    Formats: `bytes` (each byte one token), `text` (tokenized by a `tokenizers` file), `tokens` (.npy files of token
    numbers). Each is a file or a folder of files, which are mapped into memory. All of them may be URLs, whose content
    is fetched once per node.
    """
    data, length, seed = spec.data, spec.training.sequence_length, spec.training.seed
    vocabulary = spec.model.vocab_size
    if data.source == "synthetic":
        return SyntheticSamples(vocabulary, length, seed)
    if data.source != sources.STANDARD_LIBRARY and not is_url(data.source) and not Path(data.source).exists():
        raise RefusedError(f"data source {data.source!r} is not 'synthetic' or 'python-stdlib', and does not exist")
    match data.format:
        case "bytes":
            if vocabulary < 256:
                raise RefusedError(f"format 'bytes' needs a vocabulary of 256, the model has {vocabulary}")
            read = partial(sources.byte_arrays, data.source)
        case "text":
            read = partial(sources.tokenized_arrays, data.source, data.tokenizer)
        case "tokens":
            read = partial(sources.token_arrays, data.source)
        case _:
            raise RefusedError(f"data format {data.format!r} is not supported; supported: bytes, text, tokens")
    return TokenSamples(data.source, read, vocabulary=vocabulary, sequence_length=length, seed=seed)


class Prefetcher:
    """Reads one request ahead in a thread, into memory from which a CUDA device copies while it computes.

    Not for processors, where the thread would only slow down the one that computes.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._samples, self._device = samples, device
        self._thread: ThreadPoolExecutor | None = None
        if device.type == "cuda":
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="samples")
        self._prefetched: tuple[range, Future[Tensor]] | None = None

    def read(self, numbers: range, following: range | None) -> Tensor:
        """Return samples on the device, as `Samples.read`, and start to read those expected next."""
        if self._thread is None:
            return self._samples.read(numbers).to(self._device)
        asked, self._prefetched = self._prefetched, None
        read = asked[1] if asked is not None and asked[0] == numbers else self._thread.submit(self._read, numbers)
        if following is not None:
            self._prefetched = (following, self._thread.submit(self._read, following))
        return read.result().to(self._device, non_blocking=True)

    def _read(self, numbers: range) -> Tensor:
        return self._samples.read(numbers).pin_memory()


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

    def identity(self) -> Identity:
        return Identity(samples=None, sha256=hashlib.sha256(b"synthetic").hexdigest())


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
        # One value for both, since a thread reads ahead.
        self._order: tuple[int, Tensor] = (-1, torch.empty(0, dtype=torch.int64))

    @cached_property
    def _arrays(self) -> list[Tokens]:
        """The tokens; read late, since ranks in the middle of a pipeline need none."""
        try:
            arrays = self._read()
        except (StoreError, OSError) as error:
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
        """Return which sample of the source is the `number`-th in training."""
        epoch, index = divmod(number, self.count)
        ordered, order = self._order
        if epoch != ordered:
            digest = hashlib.sha256(f"{self._seed}/order/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            order = torch.randperm(self.count, generator=generator)
            self._order = (epoch, order)
        return int(order[index])

    def read(self, numbers: Sequence[int]) -> Tensor:
        tokens = np.stack([self._sample(self.place(number)) for number in numbers]).astype(np.int64)
        self._check(tokens)
        return torch.from_numpy(tokens)

    def _sample(self, place: int) -> Tokens:
        index = int(np.searchsorted(self._ends, place, side="right"))
        start = (place - (int(self._ends[index - 1]) if index else 0)) * self._length
        return self._arrays[index][start : start + self._length + 1]

    def _check(self, tokens: Tokens) -> None:
        """Raise RefusedError for tokens outside the model's vocabulary."""
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            found = f"{tokens.min()}..{tokens.max()}"
            raise RefusedError(f"{self._source} holds tokens {found}, the vocabulary is 0..{self._vocabulary - 1}")

    def description(self) -> dict[str, object]:
        """Return size and entropy; of a large source the entropy is that of a part. Raises RefusedError as `read`."""
        counts = np.zeros(self._vocabulary, dtype=np.int64)
        held = sum(len(array) for array in self._arrays)
        step = _PART * max(1, held // _COUNTED)
        for array in self._arrays:
            for start in range(0, len(array), step):
                part = array[start : start + _PART]
                self._check(part)
                counts += np.bincount(part.astype(np.int64, copy=False), minlength=self._vocabulary)
        shares = counts[counts > 0] / counts.sum()
        entropy = float(-(shares * np.log(shares)).sum())
        return {"source": self._source, "tokens": held, "samples": self.count, "unigram_entropy": entropy}

    def identity(self) -> Identity:
        digest = hashlib.sha256()
        for index in range(min(_COMPARED, self.count)):
            place = index * self.count // min(_COMPARED, self.count)
            digest.update(self._sample(place).astype(np.int64).tobytes())
        return Identity(samples=self.count, sha256=digest.hexdigest())
