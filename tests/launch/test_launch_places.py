"""Paths in a job lead to the same place whoever follows them, or are refused before anything is bought."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.job_paths import settled
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job

JOB = """
name: mine
model: {{preset: gpt2, weights: {weights}}}
data: {data}
training: {{global_batch_size: 4, sequence_length: 16, steps: 10}}
resources: [{{provider: {provider}, zones: [z], accelerators: {{A100-40: 1}}}}]
checkpoint: {{to: {to}}}
"""


def _job(data: str, *, provider: str = "local", to: str = "null", weights: str = "null") -> Job:
    return parse_job(JOB.format(data=data, provider=provider, to=to, weights=weights))


def test_paths_start_from_the_job_file_and_not_from_where_somebody_stands(tmp_path: Path) -> None:
    for name in ("text", "rules.json", "weights"):
        (tmp_path / name).write_text("words")
    found = settled(_job("{source: text, format: text, tokenizer: rules.json}", to="kept", weights="weights"), tmp_path)
    assert (found.data.source, found.data.tokenizer) == (str(tmp_path / "text"), str(tmp_path / "rules.json"))
    assert found.checkpoint.to == str(tmp_path / "kept")
    assert found.model is not None
    assert found.model.weights == str(tmp_path / "weights")
    assert settled(found, Path("/elsewhere")) == found


@pytest.mark.parametrize("provider", ["local", "gcp"])
@pytest.mark.parametrize("source", ["synthetic", "python-stdlib", "gs://bucket/text"])
def test_a_non_path_is_left_unchanged(provider: str, source: str, tmp_path: Path) -> None:
    job = _job(f"{{source: '{source}'}}", provider=provider, to="gs://bucket/run")
    assert settled(job, tmp_path) == job


def test_data_that_is_missing_is_refused_where_nodes_stand_on_this_machine(tmp_path: Path) -> None:
    with pytest.raises(RequestError) as refused:
        settled(_job("{source: text, format: text, tokenizer: rules.json}"), tmp_path)
    assert f"data.source: is 'text', but there is no {tmp_path}/text" in str(refused.value)
    assert "data.tokenizer: is 'rules.json'" in str(refused.value)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("{source: empty}", "data.source: is 'empty', but {}/empty holds no text file"),
        ("{source: texts, format: tokens}", "data.source: is 'texts', but {}/texts holds no .npy file"),
        (
            "{source: texts/a.txt, format: tokens}",
            "data.source: is 'texts/a.txt', but {}/texts/a.txt is no array of tokens: a.txt is no .npy file",
        ),
        ("{source: blank.txt}", "data.source: is 'blank.txt', but {}/blank.txt holds only empty files"),
        (
            "{source: texts, format: text, tokenizer: empty}",
            "data.tokenizer: is 'empty', but {}/empty is no tokenizer file",
        ),
    ],
)
def test_data_that_local_nodes_could_not_read_is_refused(data: str, fault: str, tmp_path: Path) -> None:
    for folder in ("empty", "texts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "texts" / "a.txt").write_text("words")
    (tmp_path / "blank.txt").touch()
    with pytest.raises(RequestError) as refused:
        settled(_job(data), tmp_path)
    assert str(refused.value) == fault.format(tmp_path)


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        (
            np.ones(17, dtype=np.float32),
            "is no array of tokens: a.npy holds float32 of shape (17,), not one row",
        ),
        (np.ones((17, 2), dtype=np.int64), "is no array of tokens: a.npy holds int64 of shape (17, 2), not one row"),
        (np.arange(16), "has at most 16 tokens in a file, and a sample needs 17"),
        (np.arange(17) - 1, "holds tokens -1 to 15, and the vocabulary is 0 to 50256"),
        (np.arange(50241, 50258), "holds tokens 50241 to 50257, and the vocabulary is 0 to 50256"),
    ],
)
def test_tokens_that_a_model_could_not_read_are_refused(tokens: np.ndarray, fault: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", tokens)
    with pytest.raises(RequestError) as refused:
        settled(_job("{source: a.npy, format: tokens}"), tmp_path)
    assert f"data.source: is 'a.npy', but {tmp_path}/a.npy {fault}" in str(refused.value)
    np.save(tmp_path / "a.npy", np.arange(17, dtype=">u2"))
    settled(_job("{source: a.npy, format: tokens}"), tmp_path)


def test_nodes_on_a_cloud_need_a_path_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    with pytest.raises(RequestError, match=r"data\.source: is 'text', a path that nodes on a cloud lack.*gs://"):
        settled(_job("{source: text}", provider="gcp"), tmp_path)
    with pytest.raises(RequestError, match=r"model\.weights: is 'hf', a path that nodes on a cloud lack"):
        settled(_job("{source: synthetic}", provider="gcp", weights="hf"), tmp_path)
    mounted = _job("{source: /mnt/text}", provider="gcp")
    assert settled(mounted, tmp_path) == mounted


def test_checkpoints_on_a_cloud_need_a_bucket_or_an_absolute_path(tmp_path: Path) -> None:
    for place in ("bucket/run", "~/run"):
        with pytest.raises(
            RequestError, match=r"checkpoint\.to: is '.*/run', which would be lost with the nodes.*gs://"
        ):
            settled(_job("{source: synthetic}", provider="gcp", to=place), tmp_path)
    shared = _job("{source: synthetic}", provider="gcp", to="/mnt/run")
    assert settled(shared, tmp_path) == shared
    assert settled(_job("{source: synthetic}", to="run"), tmp_path).checkpoint.to == str(tmp_path / "run")
