"""Samples: each read once per epoch, in an order that no plan changes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from factories.run_specs import run_spec

torch = pytest.importorskip("torch")

from sailor_runtime.refusal import RefusedError  # noqa: E402
from sailor_runtime.spec import DataSpec, RunSpec  # noqa: E402
from sailor_runtime.training.data import same_data, samples, sources  # noqa: E402
from sailor_runtime.training.data.samples import TokenSamples, open_samples  # noqa: E402
from sailor_runtime.training.data.sources import standard_library_text  # noqa: E402


def _with_data(folder: Path, *, seed: int = 0, vocab_size: int = 256, **changes: object) -> RunSpec:
    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=folder, model={"vocab_size": vocab_size}, training={"seed": seed})
    data = DataSpec(source="synthetic", format="bytes", tokenizer=None)
    return dataclasses.replace(spec, data=dataclasses.replace(data, **changes))


def _samples(path: Path, seed: int = 0, **data: object) -> TokenSamples:
    return open_samples(_with_data(path.parent, seed=seed, source=str(path), **data))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(bytes(i % 251 for i in range(1000)))
    return path


def test_every_sample_is_read_once_per_epoch_and_epochs_differ(text):
    samples = _samples(text, seed=3)
    assert samples.count == 62
    first = [samples.place(number) for number in range(62)]
    second = [samples.place(number) for number in range(62, 124)]
    assert sorted(first) == sorted(second) == list(range(62))
    assert first != second


def test_a_sample_depends_on_its_number_and_the_seed_alone(text):
    one, other = _samples(text, seed=3), _samples(text, seed=3)
    together = one.read(range(100))
    apart = torch.cat([other.read([number]) for number in reversed(range(100))]).flip(0)
    assert torch.equal(together, apart)
    assert not torch.equal(together, _samples(text, seed=4).read(range(100)))


def test_targets_are_inputs_one_token_later(text):
    [sample] = _samples(text, seed=0).read([5])
    start = int(sample[0])
    assert sample.tolist() == [(start + i) % 251 for i in range(17)]


def test_the_unigram_entropy_is_that_of_the_byte_frequencies(tmp_path):
    path = tmp_path / "coin"
    path.write_bytes(b"ab" * 50)
    assert _samples(path, seed=0).description()["unigram_entropy"] == pytest.approx(math.log(2))


def test_a_part_of_a_large_source_represents_its_entropy(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "_PART", 100)
    monkeypatch.setattr(samples, "_COUNTED", 1000)
    np.save(tmp_path / "tokens.npy", np.resize(np.arange(4, dtype=np.uint16), 100_000))
    found = _samples(tmp_path / "tokens.npy", format="tokens").description()
    assert found["tokens"] == 100_000
    assert found["unigram_entropy"] == pytest.approx(math.log(4))


def test_the_standard_library_is_large_and_the_same_every_time():
    text = standard_library_text()
    assert len(text) > 4_000_000
    assert b"def " in text
    assert standard_library_text() == text


def test_synthetic_samples_depend_on_their_number_alone(tmp_path):
    samples = open_samples(_with_data(tmp_path))
    assert torch.equal(samples.read([7, 9])[1], samples.read([9])[0])
    assert not torch.equal(samples.read([7])[0], samples.read([9])[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "/nowhere/text"}, "is not 'synthetic' or 'python-stdlib', and does not exist"),
        ({"source": "python-stdlib", "format": "parquet"}, "data format 'parquet' is not supported"),
    ],
)
def test_data_that_cannot_be_read_is_refused(tmp_path, changes, message):
    with pytest.raises(RefusedError, match=message):
        open_samples(_with_data(tmp_path, **changes))


def test_a_text_shorter_than_one_sample_is_refused(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"x" * 16)
    with pytest.raises(RefusedError, match="has 16 tokens, one sample needs 17"):
        _samples(path).read([0])


def test_token_files_are_one_stream_of_samples_none_of_which_spans_two_files(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    np.save(folder / "a.npy", np.arange(0, 40, dtype=np.uint16))
    np.save(folder / "b.npy", np.arange(100, 110, dtype=np.uint16))
    np.save(folder / "c.npy", np.arange(200, 249, dtype=np.uint16))
    samples = _samples(folder, format="tokens")
    assert samples.count == 2 + 0 + 3
    starts = sorted(int(sample[0]) for sample in samples.read(range(5)))
    assert starts == [0, 16, 200, 216, 232]
    assert all(sample.tolist() == list(range(int(sample[0]), int(sample[0]) + 17)) for sample in samples.read(range(5)))


@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_tokens_outside_the_vocabulary_are_refused_at_the_start_and_when_they_are_read(tmp_path, kind):
    np.save(tmp_path / "tokens.npy", np.arange(0, 400, dtype=kind))
    samples = _samples(tmp_path / "tokens.npy", format="tokens")
    for look in (samples.description, lambda: samples.read(range(samples.count))):
        with pytest.raises(RefusedError, match=r"the vocabulary is 0\.\.255"):
            look()


def test_a_folder_of_texts_is_read_file_by_file_and_mapped(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, size in (("b", 20), ("a", 40), (".hidden", 100), ("empty", 0)):
        (folder / name).write_bytes(name[-1].encode() * size)
    samples = _samples(folder)
    assert samples.count == 2 + 1
    assert {bytes(sample.tolist()) for sample in samples.read(range(3))} == {b"a" * 17, b"b" * 17}
    assert all(isinstance(array, np.memmap) for array in sources.byte_arrays(str(folder)) if len(array))


def test_data_is_distinguished_by_size_and_content(tmp_path):
    path = tmp_path / "text"
    found = []
    for content in (b"ab" * 50, b"ab" * 58, b"ba" * 50, b"ab" * 50):
        path.write_bytes(content)
        found.append(_samples(path).identity())
    assert found[0] == found[3]
    assert len(set(found)) == 3
    assert open_samples(_with_data(tmp_path)).identity() not in found


def test_nodes_that_hold_different_data_are_named(tmp_path, text):
    spec = run_spec([(12, 1, [(0, 3, 1), (3, 6, 1)])], directory=tmp_path, node_of_rank=["one", "two"])
    here = _samples(text).identity()
    assert same_data.common_identity(spec, [here, None]) == same_data.common_identity(spec, [here, here]) == here
    text.write_bytes(text.read_bytes()[:-300])
    with pytest.raises(RefusedError, match=r"not the same on all nodes: 62 samples .* on one, 43 samples .* on two"):
        same_data.common_identity(spec, [here, _samples(text).identity()])


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.zeros(40), "must hold one row of integers, got float64"), (None, "is not an array of tokens")],
)
def test_files_that_hold_no_tokens_are_refused(tmp_path, array, message):
    path = tmp_path / "tokens.npy"
    path.write_bytes(b"text") if array is None else np.save(path, array)
    with pytest.raises(RefusedError, match=message):
        _samples(path, format="tokens").read([0])


def test_text_is_cut_by_the_tokenizer_once_per_node(tmp_path, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers

    monkeypatch.setenv("SAILOR_RUNTIME_CACHE", str(tmp_path / "cache"))

    words = {f"w{i}": i for i in range(50)}
    tokenizer = Tokenizer(models.WordLevel({**words, "?": 50}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text").write_text("\n".join(" ".join(f"w{i}" for i in range(n, n + 10)) for n in range(0, 40, 10)))
    samples = _samples(tmp_path / "text", format="text", tokenizer=str(tmp_path / "tokenizer.json"))
    assert samples.count == 2
    assert sorted(sample.tolist() for sample in samples.read([0, 1])) == [list(range(17)), list(range(16, 33))]
    [kept] = [path for path in (tmp_path / "cache").rglob("tokenized/*") if path.name != ".lock"]
    # Another rank of the node takes what is there, also if it is more than the text that was cut.
    kept.write_bytes(kept.read_bytes() * 2)
    monkeypatch.setattr(sources, "_CUT_BYTES", 1)
    assert _samples(tmp_path / "text", format="text", tokenizer=str(tmp_path / "tokenizer.json")).count == 4
    with (tmp_path / "text").open("a") as file:
        file.write("\nw1 w2 w3 w4 w5 w6 w7 w8 w9")
    again = _samples(tmp_path / "text", format="text", tokenizer=str(tmp_path / "tokenizer.json"))
    assert again.description()["tokens"] == 49
    (tmp_path / "rules.json").write_text("{}")
    with pytest.raises(RefusedError, match=r"rules\.json is not a tokenizer file: "):
        _samples(tmp_path / "text", format="text", tokenizer=str(tmp_path / "rules.json")).read([0])
    with pytest.raises(RefusedError, match="needs a tokenizer file, got None"):
        _samples(tmp_path / "text", format="text").read([0])
