"""Makes a Decoder from a preset's name, a Hugging Face config or sizes in the job file."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Decoder, Family, Form
from sailor_cloud.model.job import ModelSource
from sailor_cloud.workload.forms import form
from sailor_cloud.workload.presets import PRESETS

# Hugging Face gives the same size different names in different families; the first name found counts.
_NAMES = {
    "hidden_size": ("hidden_size", "n_embd"),
    "blocks": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "positions": ("max_position_embeddings", "n_positions"),
    "ffn_size": ("intermediate_size", "ffn_dim", "n_inner"),
}
_GATED = (Family.LLAMA, Family.MISTRAL, Family.QWEN2)
_DEFAULT_POSITIONS = 2048


def decoder(source: ModelSource | None, *, base: Path | None = None) -> Decoder:
    """Return the sizes of the model that a job names.

    `base` is the folder that a relative `config` path starts from. Raises RequestError for an unknown preset (with the
    known ones), an unreadable config and sizes that don't fit together, and for a job without a model.
    """
    if source is None:
        raise RequestError("the job runs a command and names no model, without which nothing can be predicted")
    if source.preset is not None:
        if source.preset not in PRESETS:
            raise RequestError([_unknown_preset(source.preset)])
        return decoder_from_config(PRESETS[source.preset], name=source.preset)
    if source.config is not None:
        path = (base or Path()) / source.config
        return decoder_from_config(_read_config(path), name=path.parent.name if path.stem == "config" else path.stem)
    sizes = decoder_from_config(source.model_dump(mode="json", exclude_none=True), name="inline", where="model")
    return dataclasses.replace(sizes, name=inline_name(sizes))


def inline_name(sizes: Decoder) -> str:
    """Return a name that tells models of other sizes apart, since measured layers are found by it."""
    parts = [f"h{sizes.hidden_size}", f"l{sizes.blocks}", f"a{sizes.heads}"]
    parts += [f"k{sizes.kv_heads}"] if sizes.kv_heads != sizes.heads else []
    parts += [f"f{sizes.ffn_size}"] if sizes.ffn_size != 4 * sizes.hidden_size else []
    tied = "" if sizes.tied_head else "-untied"
    return f"{sizes.family}-{'-'.join(parts)}-p{sizes.max_positions}-v{sizes.vocab_size}{tied}"


def decoder_from_config(config: Mapping[str, Any], *, name: str, where: str | None = None) -> Decoder:
    """Return the sizes in a Hugging Face style config; raises RequestError with every fault."""
    origin = where or f"model config {name}"
    problems: list[Problem] = []
    family = _family(config, origin, problems)
    sizes = {key: _size(config, names, origin, problems) for key, names in _NAMES.items()}
    sizes["vocab_size"] = _size(config, ("vocab_size",), origin, problems)
    problems += [
        Problem(path=f"{origin}.{_NAMES[key][0] if key in _NAMES else key}", message="is missing")
        for key in ("vocab_size", "hidden_size", "blocks", "heads")
        if sizes[key] is None and not any(key in problem.path for problem in problems)
    ]
    if family in _GATED and sizes["ffn_size"] is None:
        message = f"is missing; {family} models have no customary size"
        problems.append(Problem(path=f"{origin}.intermediate_size", message=message))
    if problems or family is None:
        raise RequestError(problems)
    found = form(family, config, sizes["blocks"] or 0, origin, problems)
    if problems:
        raise RequestError(problems)
    return _build(name, family, config, {key: value or 0 for key, value in sizes.items()}, origin, found)


def tp_problem(sizes: Decoder, tp: int) -> str | None:
    """Say why a tensor-parallel degree can't cut a decoder, or None where it can."""
    for count, what in (
        (sizes.heads, "attention heads"),
        (sizes.kv_heads, "key-value heads"),
        (sizes.ffn_size, "MLP columns"),
    ):
        if count % tp:
            return f"tp {tp} does not divide the {count} {what} of {sizes.name}"
    return None


def _build(
    name: str, family: Family, config: Mapping[str, Any], sizes: Mapping[str, int], origin: str, found: Form
) -> Decoder:
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    gated = family in _GATED
    kv_heads = int(config.get("num_key_value_heads") or heads)
    if hidden % heads and not config.get("head_dim"):
        message = f"{heads} does not divide hidden_size {hidden}"
        raise RequestError([Problem(path=f"{origin}.num_attention_heads", message=message)])
    if heads % kv_heads:
        message = f"{kv_heads} does not divide num_attention_heads {heads}"
        raise RequestError([Problem(path=f"{origin}.num_key_value_heads", message=message)])
    positions = sizes["positions"] or _DEFAULT_POSITIONS
    norm_first = bool(config.get("do_layer_norm_before", True))
    tied = config.get("tie_word_embeddings")
    opt_bias = family is Family.OPT and bool(config.get("enable_bias", True))
    return Decoder(
        name=name,
        family=family,
        vocab_size=sizes["vocab_size"],
        hidden_size=hidden,
        blocks=sizes["blocks"],
        heads=heads,
        kv_heads=kv_heads,
        head_size=int(config.get("head_dim") or hidden // heads),
        ffn_size=sizes["ffn_size"] or 4 * hidden,
        max_positions=positions,
        # OPT keeps two rows in front of its learned positions.
        position_rows=0 if gated else positions + 2 if family is Family.OPT else positions,
        embedding_size=int(config.get("word_embed_proj_dim") or hidden) if family is Family.OPT else hidden,
        gated_mlp=gated,
        rms_norm=gated,
        norm_first=norm_first,
        final_norm=norm_first and not config.get("_remove_final_layer_norm", False),
        qkv_bias=_qkv_bias(family, config),
        attention_output_bias=family in (Family.GPT2, Family.GPT_NEO)
        or opt_bias
        or (family is Family.LLAMA and bool(config.get("attention_bias"))),
        mlp_bias=family in (Family.GPT2, Family.GPT_NEO)
        or opt_bias
        or (family is Family.LLAMA and bool(config.get("mlp_bias"))),
        tied_head=bool(tied) if tied is not None else not gated,
        form=found,
    )


def _qkv_bias(family: Family, config: Mapping[str, Any]) -> bool:
    match family:
        case Family.GPT2 | Family.QWEN2:
            return True
        case Family.OPT:
            return bool(config.get("enable_bias", True))
        case Family.LLAMA:
            return bool(config.get("attention_bias", False))
    return False


def _family(config: Mapping[str, Any], origin: str, problems: list[Problem]) -> Family | None:
    given = config.get("model_type")
    known = ", ".join(Family)
    if given is None:
        problems.append(Problem(path=f"{origin}.model_type", message="is missing", hint=f"one of {known}"))
        return None
    try:
        return Family(given)
    except ValueError:
        problems.append(Problem(path=f"{origin}.model_type", message=f"is {given!r}", hint=f"one of {known}"))
        return None


def _size(config: Mapping[str, Any], names: tuple[str, ...], origin: str, problems: list[Problem]) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            problems.append(Problem(path=f"{origin}.{name}", message=f"must be a positive integer, got {value!r}"))
            return None
        return value
    return None


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError([Problem(path="model.config", message=f"can't read {path}: {error.strerror}")]) from error
    except ValueError as error:
        raise RequestError([Problem(path="model.config", message=f"{path} is not JSON: {error}")]) from error
    if not isinstance(config, dict):
        raise RequestError([Problem(path="model.config", message=f"{path} must hold one JSON object")])
    return config


def _unknown_preset(name: str) -> Problem:
    close = difflib.get_close_matches(name, PRESETS, n=1)
    known = ", ".join(sorted(PRESETS))
    hint = f"did you mean '{close[0]}'? known: {known}" if close else f"known: {known}"
    return Problem(path="model.preset", message=f"{name!r} is not a preset", hint=hint)
