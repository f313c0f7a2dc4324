"""Weights in the form of Hugging Face checkpoints: which tensor of theirs is which of our parameters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.huggingface_config import config
from sailor_runtime.training.model.parameters import ParameterSpec, range_parameters
from sailor_runtime.training.object_store import StoreError, cache, local_copy
from sailor_runtime.training.refusal import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One tensor of a Hugging Face checkpoint: our parameters one after the other, perhaps transposed."""

    key: str
    names: tuple[str, ...]
    transposed: bool = False

    def to_theirs(self, ours: Mapping[str, Tensor]) -> Tensor:
        whole = torch.cat([ours[name] for name in self.names])
        return (whole.t() if self.transposed else whole).contiguous()

    def to_ours(self, theirs: Tensor, name: str) -> Tensor:
        whole = theirs.t() if self.transposed and theirs.dim() == 2 else theirs
        return whole.chunk(len(self.names))[self.names.index(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Their names: `{}` in `blocks` stands for the block's number."""

    outside: Mapping[str, str]
    blocks: str
    inside: Mapping[str, str]
    transposed: bool = False


_ROTARY = _Family(
    outside={"wte": "model.embed_tokens", "ln_f": "model.norm"},
    blocks="model.layers.{}.",
    inside={
        "ln_1": "input_layernorm",
        "attn.q": "self_attn.q_proj",
        "attn.k": "self_attn.k_proj",
        "attn.v": "self_attn.v_proj",
        "attn.o": "self_attn.o_proj",
        "ln_2": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    },
)
_FAMILIES: dict[str, _Family] = {
    "gpt2": _Family(
        outside={"wte": "transformer.wte", "wpe": "transformer.wpe", "ln_f": "transformer.ln_f"},
        blocks="transformer.h.{}.",
        inside={
            "ln_1": "ln_1",
            "attn.q": "attn.c_attn",
            "attn.k": "attn.c_attn",
            "attn.v": "attn.c_attn",
            "attn.o": "attn.c_proj",
            "ln_2": "ln_2",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        },
        # Its linear layers keep their weights as [in, out].
        transposed=True,
    ),
    "gpt_neo": _Family(
        outside={"wte": "transformer.wte", "wpe": "transformer.wpe", "ln_f": "transformer.ln_f"},
        blocks="transformer.h.{}.",
        inside={
            "ln_1": "ln_1",
            "attn.q": "attn.attention.q_proj",
            "attn.k": "attn.attention.k_proj",
            "attn.v": "attn.attention.v_proj",
            "attn.o": "attn.attention.out_proj",
            "ln_2": "ln_2",
            "mlp.up": "mlp.c_fc",
            "mlp.down": "mlp.c_proj",
        },
    ),
    "opt": _Family(
        outside={
            "wte": "model.decoder.embed_tokens",
            "wpe": "model.decoder.embed_positions",
            "ln_f": "model.decoder.final_layer_norm",
            "project_in": "model.decoder.project_in",
            "project_out": "model.decoder.project_out",
        },
        blocks="model.decoder.layers.{}.",
        inside={
            "ln_1": "self_attn_layer_norm",
            "attn.q": "self_attn.q_proj",
            "attn.k": "self_attn.k_proj",
            "attn.v": "self_attn.v_proj",
            "attn.o": "self_attn.out_proj",
            "ln_2": "final_layer_norm",
            "mlp.up": "fc1",
            "mlp.down": "fc2",
        },
    ),
    "llama": _ROTARY,
    "mistral": _ROTARY,
    "qwen2": _ROTARY,
}


def exchanges(model: ModelSpec) -> tuple[Exchange, ...]:
    """Return how every parameter of a model stands in a Hugging Face checkpoint, each of theirs once."""
    family = _FAMILIES[model.model_type]
    found: dict[str, list[str]] = {}
    for name in range_parameters(model, range(model.layers)):
        found.setdefault(_their_key(family, name), []).append(name)
    return tuple(
        Exchange(
            key=key,
            names=tuple(names),
            transposed=family.transposed
            and names[0].startswith("h.")
            and not key.endswith(".bias")
            and "ln_" not in key,
        )
        for key, names in found.items()
    )


def _their_key(family: _Family, name: str) -> str:
    module, kind = name.rsplit(".", 1)
    if module == "lm_head":
        return name
    if not module.startswith("h."):
        return f"{family.outside[module]}.{kind}"
    _, block, part = module.split(".", 2)
    return f"{family.blocks.format(block)}{family.inside[part]}.{kind}"


class SavedWeights:
    """The tensors of a Hugging Face checkpoint, a folder or a URL, read one at a time; files are fetched as needed."""

    def __init__(self, folder: str | Path, model: ModelSpec) -> None:
        folder = str(folder).rstrip("/")
        self._files = _files_by_key(folder)
        self._folder = folder
        self._exchange = {name: exchange for exchange in exchanges(model) for name in exchange.names}

    def whole(self, spec: ParameterSpec, dtype: torch.dtype) -> Tensor:
        """Return one parameter. Raises RefusedError where it is missing or of another shape."""
        from safetensors import safe_open

        exchange = self._exchange[spec.name]
        # The checkpoints of the first GPT-2 models lack the prefix.
        key = next((k for k in (exchange.key, exchange.key.removeprefix("transformer.")) if k in self._files), None)
        if key is None:
            raise RefusedError(f"{self._folder} has no tensor {exchange.key!r}")
        with safe_open(_local(self._folder, self._files[key]), framework="pt") as file:
            value = exchange.to_ours(file.get_tensor(key), spec.name)
        if tuple(value.shape) != spec.shape:
            raise RefusedError(f"{key} in {self._folder} gives {tuple(value.shape)}, the model needs {spec.shape}")
        return value.to(dtype)


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
) -> None:
    """Write a folder that transformers loads, in files of about `file_bytes`.

    read: gives one whole parameter at a time, so that no more than one file's tensors are in memory.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specs = range_parameters(model, range(model.layers))
    weight_map: dict[str, str] = {}
    pending: dict[str, Tensor] = {}
    groups: list[list[str]] = []
    for exchange in exchanges(model):
        pending[exchange.key] = exchange.to_theirs({name: read(specs[name]) for name in exchange.names}).to(dtype)
        if sum(value.nbytes for value in pending.values()) >= file_bytes:
            groups.append(_write(folder, len(groups), pending))
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
    (folder / "config.json").write_text(json.dumps(config(model, dtype), indent=1))


def _write(folder: Path, number: int, pending: dict[str, Tensor]) -> list[str]:
    from safetensors.torch import save_file

    save_file(pending, folder / f"part-{number}.safetensors", metadata={"format": "pt"})
    keys = list(pending)
    pending.clear()
    return keys
