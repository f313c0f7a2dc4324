"""Checkpoints and data under gs:// and s3://: whole or not at all, patient for a while, then clear."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from factories.buckets import BUCKET, google_bucket, google_environment, s3_bucket, s3_environment
from factories.run_specs import TINY, free_port
from sailor_runtime.object_store import Store, StoreError, local_copy
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training import export
from sailor_runtime.training.checkpoint.bucket import CheckpointStore
from sailor_runtime.training.checkpoint.description import FORMAT
from sailor_runtime.training.data.samples import TokenSamples
from sailor_runtime.training.model.architecture import range_parameters
from sailor_runtime.training.model.weights import first_weights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_bucket() as s3, google_bucket(tmp_path_factory.mktemp("bucket")) as google:
        yield {**s3, **google.environ, "SAILOR_STORE_PATIENCE_S": "5"}


@pytest.fixture(params=["memory", "s3", "gs"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, endpoint: dict[str, str]) -> str:
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    return f"{request.param}://{BUCKET}/{request.node.name.replace('[', '-').strip(']')}"


def _tensor(step: int) -> torch.Tensor:
    return torch.arange(1000, dtype=torch.float64) + step


def _save(store: CheckpointStore, step: int, *, publish: bool = True) -> None:
    store.begin(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"weight": _tensor(step)}, storage_writer=store.writer(step), no_dist=True)
    sums = store.written(step, 0)
    assert sorted(each.name for each in sums) == [".metadata", "__0_0.distcp"]
    if publish:
        assert store.publish(step, {"step": step}, sums) == f"step-{step}"


def _load(store: CheckpointStore, name: str) -> torch.Tensor:
    state = {"weight": torch.zeros(1000, dtype=torch.float64)}
    dcp.load(state, storage_reader=store.reader(name), no_dist=True)
    return state["weight"]


def test_a_checkpoint_comes_back_from_a_store_and_only_the_newest_are_kept(url):
    store = CheckpointStore(url, keep=2)
    assert store.newest_first() == []
    for step in (2, 4, 10, 10):
        _save(store, step)
    assert store.newest_first() == ["step-10", "step-4"]
    assert store.describe("step-10")["step"] == 10
    assert [store.damage("step-10", share, 2) for share in range(2)] == [None, None]
    assert torch.equal(_load(store, "step-10"), _tensor(10))
    assert Store(url).names("step-2") == []


def test_a_tensor_is_read_from_a_store_in_one_request(url, monkeypatch):
    store = CheckpointStore(url, keep=1)
    _save(store, 2)
    asked: list[str] = []
    for name in ("read", "part"):
        original = getattr(Store, name)
        monkeypatch.setattr(
            Store, name, lambda self, file, *rest, original=original: asked.append(file) or original(self, file, *rest)
        )
    assert torch.equal(_load(store, "step-2"), _tensor(2))
    assert asked == ["step-2/.metadata", "step-2/__0_0.distcp"]


def test_a_torn_save_in_a_store_is_never_found_and_removed_by_the_next(url):
    store = CheckpointStore(url, keep=2)
    _save(store, 2)
    _save(store, 4, publish=False)
    assert store.newest_first() == ["step-2"]
    _save(store, 6)
    assert store.newest_first() == ["step-6", "step-2"]
    assert Store(url).names("step-4") == []


def test_damage_in_a_store_is_found_and_a_missing_description_too(url):
    store = CheckpointStore(url, keep=2)
    _save(store, 2)
    files = Store(url)
    content = files.read("step-2/__0_0.distcp")
    files.write("step-2/__0_0.distcp", content[:-1] + b"?")
    faults = [store.damage("step-2", share, 2) for share in range(2)]
    assert [fault for fault in faults if fault] == [f"{url}/step-2/__0_0.distcp is not what was written"]
    files.remove("step-2/sailor.json")
    assert "step-2" in str(store.damage("step-2", 0, 2))


def test_a_store_without_a_usable_latest_still_has_its_whole_checkpoints(url):
    store, files = CheckpointStore(url, keep=3), Store(url)
    for step in (2, 4, 6):
        _save(store, step)
    files.write("step-6/sailor.json", b"null")
    files.write("step-4/sailor.json", files.read("step-4/sailor.json").replace(b'"step": 4', b'"step": 3'))
    for harm in (lambda: files.write("latest", b""), lambda: files.remove("latest")):
        harm()
        assert str(store.latest_fault()).startswith(f"{url}/latest ")
        store.begin(8)
        faults = {name: store.damage(name, 0, 1) for name in store.newest_first()}
        assert faults == {
            "step-6": f"{url}/step-6: sailor.json is no JSON object",
            "step-4": f"{url}/step-4: sailor.json is not what was written",
            "step-2": None,
        }


def test_token_files_of_a_store_are_fetched_once_and_mapped(url, tmp_path, monkeypatch):
    array = np.arange(100, dtype=np.uint16)
    np.save(tmp_path / "tokens.npy", array)
    Store(url).upload(tmp_path / "tokens.npy", "tokens.npy")
    first = local_copy(f"{url}/tokens.npy", tmp_path / "cache")
    Store(url).remove("tokens.npy")
    assert local_copy(f"{url}/tokens.npy", tmp_path / "cache") == first
    assert np.array_equal(np.load(first, mmap_mode="r"), array)


def test_a_model_goes_from_a_checkpoint_in_a_store_to_weights_in_a_store_and_back(url, tmp_path, monkeypatch):
    model = ModelSpec(**{**TINY, "blocks": 1})
    specs = range_parameters(model, range(model.layers))
    generator = torch.Generator().manual_seed(1)
    weights = {name: torch.randn(spec.shape, generator=generator) for name, spec in specs.items()}
    store = CheckpointStore(url, keep=2)
    store.begin(2)
    state = {f"model.{name}": weight for name, weight in weights.items()}
    dcp.save(state, storage_writer=store.writer(2), no_dist=True)
    about = {"format": FORMAT, "step": 2, "seed": 0, "model": dataclasses.asdict(model)}
    store.publish(2, about, store.written(2, 0))
    export.export(f"{url}/step-2", tmp_path / "model")
    for path in (tmp_path / "model").iterdir():
        Store(url).upload(path, f"model/{path.name}")
    monkeypatch.setenv("SAILOR_RUNTIME_CACHE", str(tmp_path / "cache"))
    back = first_weights(dataclasses.replace(model, weights=f"{url}/model"), seed=0)
    assert all(torch.equal(back(spec, torch.float32), weights[name]) for name, spec in specs.items())
    data = Store(url).read("step-2/__0_0.distcp")
    Store(url).write("step-2/__0_0.distcp", data[:-1] + b"?")
    with pytest.raises(RefusedError, match=r"step-2/__0_0\.distcp is not what was written"):
        export.export(f"{url}/step-2", tmp_path / "model")


@pytest.mark.parametrize("protocol", ["s3", "gs"])
def test_a_store_out_of_reach_is_an_error_and_never_an_empty_one(protocol, tmp_path, monkeypatch):
    nobody = f"http://127.0.0.1:{free_port()}"
    for name, value in {**s3_environment(nobody), **google_environment(nobody, tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SAILOR_STORE_PATIENCE_S", "0.1")
    store = CheckpointStore(f"{protocol}://{BUCKET}/run", keep=2)
    with pytest.raises(StoreError, match=rf"can't read {protocol}://{BUCKET}/run/latest: "):
        store.newest_first()


def test_a_bucket_that_does_not_exist_is_found_before_training(endpoint, monkeypatch):
    for name, value in endpoint.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match=r"can't write s3://nowhere/run/\.writable: no such bucket"):
        CheckpointStore("s3://nowhere/run", keep=2).check()


def test_a_protocol_that_nothing_serves_names_the_extra():
    with pytest.raises(StoreError, match=r"serves ftpz://host/run; install 'sailor-cloud\[stores\]'"):
        Store("ftpz://host/run")


@pytest.mark.parametrize("place", ["nowhere/step-3", "ftpz://host/run/step-3"])
def test_a_checkpoint_that_is_missing_is_named_without_a_traceback(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["export", "--checkpoint", place, "--out", str(tmp_path / "model")])
    assert export.main() == 2
    assert capsys.readouterr().err.startswith(f"sailor_runtime: can't export {place}: ")


def _failing(times: int, action: Callable[..., object], error: Exception) -> Callable[..., object]:
    left = [times]

    def call(*arguments: object, **options: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return action(*arguments, **options)

    return call


def test_a_store_that_fails_for_a_moment_is_asked_again(monkeypatch):
    store = Store("memory://moment", patience_s=30.0)
    monkeypatch.setattr(store._files, "pipe_file", _failing(2, store._files.pipe_file, OSError("busy")))
    store.write("x", b"content")
    assert store.read("x") == b"content"


def test_a_refused_permission_is_not_asked_for_again(monkeypatch):
    store = Store("memory://refused", patience_s=3600.0)
    monkeypatch.setattr(store._files, "pipe_file", _failing(1, store._files.pipe_file, PermissionError("403")))
    with pytest.raises(StoreError, match=r"can't write memory://refused/x: 403"):
        store.write("x", b"content")


def _samples(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **data: object) -> TokenSamples:
    from test_runtime_data import _with_data

    from sailor_runtime.training.data.samples import open_samples

    monkeypatch.setenv("SAILOR_RUNTIME_CACHE", str(folder / "cache"))
    return open_samples(_with_data(folder, source=source, **data))


def test_bytes_and_tokens_of_a_store_give_the_same_samples_as_a_path(url, tmp_path, monkeypatch):
    (tmp_path / "text").write_bytes(bytes(i % 251 for i in range(1000)))
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name, first in (("a", 0), ("b", 100)):
        np.save(folder / f"{name}.npy", np.arange(first, first + 60, dtype=np.uint16))
        Store(url).upload(folder / f"{name}.npy", f"tokens/{name}.npy")
    Store(url).upload(tmp_path / "text", "text")
    for name, kind in (("text", "bytes"), ("tokens", "tokens")):
        local = _samples(str(tmp_path / name), tmp_path, monkeypatch, format=kind)
        remote = _samples(f"{url}/{name}", tmp_path, monkeypatch, format=kind)
        assert torch.equal(local.read(range(6)), remote.read(range(6)))
