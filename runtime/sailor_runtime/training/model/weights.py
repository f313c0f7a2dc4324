"""Weights before the first step, and weights of Hugging Face checkpoints, under the names of the modules."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sailor_runtime.object_store import StoreError, cache, local_copy
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.architecture import RandomWeights, architecture_of, range_parameters
from sailor_runtime.training.model.parameters import ParameterSpec

FirstWeights = Callable[[ParameterSpec, torch.dtype], Tensor]
# The names of one expert's matrices in published checkpoints, in the order in which modules pack them.
_OF_EXPERT = {
    "gate_up_proj": (("w1", "w3"), ("gate_proj", "up_proj")),
    "down_proj": (("w2",), ("down_proj",)),
}


def first_weights(model: ModelSpec, seed: int) -> FirstWeights:
    """Return a function that returns one whole parameter, independent of the plan."""
    if model.weights is not None:
        return SavedWeights(model.weights).full_parameter
    return RandomWeights(model, seed)


class SavedWeights:
    """The tensors of a Hugging Face checkpoint, a folder or a URL, read one at a time; files are fetched as needed."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder).rstrip("/")
        self._files = _files_by_key(self._folder)

    def full_parameter(self, spec: ParameterSpec, dtype: torch.dtype) -> Tensor:
        """Return one parameter. Raises RefusedError if it is missing or has another shape."""
        value = self._of_experts(spec) if ".experts." in spec.name and self._key(spec.name) is None else None
        if value is None:
            value = self._read(spec.name)
        if value.dim() == 0:
            value = value.view(1)
        if tuple(value.shape) != spec.shape:
            raise RefusedError(
                f"{spec.name} in {self._folder} has shape {tuple(value.shape)}, the model needs {spec.shape}"
            )
        return value.to(dtype)

    def _key(self, name: str) -> str | None:
        # Checkpoints of the first GPT-2 models lack the prefix; Mixtral's have another name for a block of experts.
        found = (name, name.removeprefix("transformer."), name.replace(".mlp.", ".block_sparse_moe."))
        return next((key for key in found if key in self._files), None)

    def _read(self, name: str) -> Tensor:
        from safetensors import safe_open

        key = self._key(name)
        if key is None:
            raise RefusedError(f"{self._folder} has no tensor {name!r}")
        with safe_open(_local(self._folder, self._files[key]), framework="pt") as file:
            return file.get_tensor(key)

    def _of_experts(self, spec: ParameterSpec) -> Tensor:
        """Return all experts' matrices as one tensor, from a checkpoint with one tensor per expert."""
        module, leaf = spec.name.rsplit(".", 1)
        for names in _OF_EXPERT[leaf]:
            if self._key(f"{module}.0.{names[0]}.weight") is not None:
                experts = [[self._read(f"{module}.{i}.{name}.weight") for name in names] for i in range(spec.shape[0])]
                return torch.stack([torch.cat(matrices) for matrices in experts])
        raise RefusedError(f"{self._folder} has no tensor {spec.name!r}, nor those of its experts")


def _files_by_key(folder: str) -> dict[str, str]:
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads(_local(folder, "model.safetensors.index.json").read_text())["weight_map"])
    single = "model.safetensors"
    from safetensors import safe_open

    try:
        with safe_open(_local(folder, single), framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except FileNotFoundError as error:
        raise RefusedError(f"{folder} holds neither {single} nor {single}.index.json") from error


def _local(folder: str, name: str) -> Path:
    try:
        return local_copy(f"{folder}/{name}", cache())
    except StoreError as error:
        raise RefusedError(f"weights: {error}") from error


def save(
    model: ModelSpec,
    read: Callable[[ParameterSpec], Tensor],
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    file_bytes: int = 4 * 2**30,
    buffers: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a folder that transformers loads, in files of about `file_bytes`.

    read: returns one whole parameter at a time, so that only one file's tensors are in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specs = range_parameters(model, range(model.layers))
    weight_map: dict[str, str] = {}
    pending: dict[str, Tensor] = {}
    groups: list[list[str]] = []
    for name, spec in specs.items():
        pending[name] = read(spec).to(dtype).contiguous()
        if sum(value.nbytes for value in pending.values()) >= file_bytes:
            groups.append(_write(folder, len(groups), pending))
    # Buffers keep their format: counters and masks have no other.
    pending |= {name: value.clone().contiguous() for name, value in (buffers or {}).items()}
    if pending:
        groups.append(_write(folder, len(groups), pending))
    if len(groups) == 1:
        (folder / "part-0.safetensors").rename(folder / "model.safetensors")
    else:
        for number, keys in enumerate(groups):
            name = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
            (folder / f"part-{number}.safetensors").rename(folder / name)
            weight_map |= dict.fromkeys(keys, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    architecture_of(model).describe(folder, dtype)


def _write(folder: Path, number: int, pending: dict[str, Tensor]) -> list[str]:
    from safetensors.torch import save_file

    save_file(pending, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
    keys = list(pending)
    pending.clear()
    return keys
