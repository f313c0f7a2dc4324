"""Makes a Decoder from a preset's name, a Hugging Face config or sizes in the job file."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Decoder, Experts, Family, OwnDropout
from sailor_cloud.model.job import HUB, MOST, Job, ModelSource
from sailor_cloud.model.presets import PRESETS
from sailor_cloud.workload.models import hub
from sailor_cloud.workload.models.user_module import with_module

# Hugging Face has different names for a size in different families; the first one found counts.
_NAMES = {
    "hidden_size": ("hidden_size", "n_embd"),
    "blocks": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "positions": ("max_position_embeddings", "n_positions"),
    "ffn_size": ("intermediate_size", "ffn_dim", "n_inner"),
}
_LEARNED_POSITIONS = (Family.GPT2, Family.GPT_NEO, Family.OPT)
_DEFAULT_POSITIONS = 2048
# Defaults of missing values, as in transformers 5.23 for the family.
_DEFAULT_HEAD_SIZES = {Family.QWEN3: 128, Family.GEMMA2: 256, Family.GEMMA3: 256}
_DEFAULT_KV_HEADS = {Family.GEMMA2: 4, Family.GEMMA3: 4, Family.MIXTRAL: 8, Family.QWEN3_MOE: 4}
# Families whose attention output has no bias, regardless of the config.
_NO_OUTPUT_BIAS = (Family.MISTRAL, Family.QWEN2, Family.QWEN2_MOE, Family.MIXTRAL, Family.PHI3)
_TIED = (*_LEARNED_POSITIONS, Family.GEMMA2, Family.GEMMA3)
# Number of experts, experts per token, size of experts, and size of the shared one, by their names and defaults.
_EXPERTS: dict[Family, tuple[tuple[str, int], ...]] = {
    Family.MIXTRAL: (("num_local_experts", 8), ("num_experts_per_tok", 2), ("intermediate_size", 14336)),
    Family.QWEN2_MOE: (
        ("num_experts", 60),
        ("num_experts_per_tok", 4),
        ("moe_intermediate_size", 1408),
        ("shared_expert_intermediate_size", 5632),
    ),
    Family.QWEN3_MOE: (("num_experts", 128), ("num_experts_per_tok", 8), ("moe_intermediate_size", 768)),
}
_EXPERT_NAMES = tuple(sorted({name for sizes in _EXPERTS.values() for name, _ in sizes}))
# The similarity of a misspelt name; names of other things are less similar.
_NEARLY = 0.9
# Settings for a model that differs from the planned one, the only supported value, and what it concerns.
_NEUTRAL: dict[str, tuple[Any, str]] = {
    "add_cross_attention": (False, "attention to another sequence"),
    "reorder_and_upcast_attn": (False, "attention in another precision"),
    "output_router_logits": (False, "the routers' auxiliary loss"),
    "router_jitter_noise": (0.0, "noise in the routers"),
    "mlp_only_layers": ([], "layers without experts between others"),
    "decoder_sparse_step": (1, "layers without experts between others"),
    "use_bidirectional_attention": (False, "attention to later tokens"),
    "quantization_config": (None, "quantized weights"),
    "layer_norm_elementwise_affine": (True, "norms without weights"),
}
# transformers' names of activations and of rotary scaling methods, since its modules compute them.
_ACTIVATIONS = (
    *("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "quick_gelu"),
    *("laplace", "leaky_relu", "linear", "mish", "relu", "relu2", "relu6", "sigmoid", "silu", "swish", "tanh"),
)
# Probabilities of dropout in configurations; the last one leaves out whole layers.
_DROPOUTS = (
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout", "activation_dropout"),
    *("resid_dropout", "embed_dropout"),
)
_LAYER_DROP = "layerdrop"
_ROPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_LEFT_OUT = (
    *(name for names in _NAMES.values() for name in names),
    *("vocab_size", "model_type", "num_key_value_heads", "tie_word_embeddings", "word_embed_proj_dim"),
    *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("do_layer_norm_before", "preset", "weights", "whole_experts"),
)


def decoder(source: ModelSource | None, *, base: Path | None = None) -> Decoder:
    """Return the sizes of the model that a job names.

    `base` is the folder for a relative `config` path. Raises RequestError for an unreadable config,
    inconsistent sizes, and a job without a model.
    """
    if source is None:
        raise RequestError("the job runs a command and names no model, without which nothing can be predicted")
    found = _named(source, base)
    if not source.whole_experts:
        return found
    if found.experts is None:
        raise RequestError([Problem(path="model.whole_experts", message=f"{found.name} has no experts")])
    return dataclasses.replace(found, experts=dataclasses.replace(found.experts, whole=True))


def job_decoder(job: Job, *, base: Path | None = None) -> Decoder:
    """Return the sizes of a job's model, with the parameters of the job's own module if it names one; see `decoder`."""
    found = decoder(job.model, base=base)
    if job.model is None or job.model.module is None:
        return found
    return with_module(found, job.model.module, (base or Path()) / Path(job.shipped_folder or ".").expanduser())


def check_sequence_length(job: Job, sizes: Decoder) -> None:
    """Raise RequestError if our runtime would refuse the job's samples because the model has too few positions."""
    length = job.training.sequence_length
    if job.run is None and length > sizes.max_positions:
        message = f"is {length}, the model has {sizes.max_positions} positions"
        hint = f"give at most {sizes.max_positions}, or a model with a larger max_position_embeddings"
        raise RequestError([Problem(path="training.sequence_length", message=message, hint=hint)])


def _named(source: ModelSource, base: Path | None) -> Decoder:
    if source.preset is not None:
        return decoder_from_config(PRESETS[source.preset], name=source.preset)
    if source.config is not None:
        if source.config.startswith(HUB):
            path = hub.local_copy(source.config, default="config.json")
            name = hub.place_of(source.config).repo
        else:
            path = (base or Path()) / source.config
            name = path.parent.name if path.stem == "config" else path.stem
        return decoder_from_config(_read_config(path), name=name, where=f"{source.config}: ")
    sizes = decoder_from_config(source.model_dump(mode="json", exclude_none=True), name="inline", where="model.")
    return dataclasses.replace(sizes, name=inline_name(sizes))


def inline_name(sizes: Decoder) -> str:
    """Return a name that differs for models of other sizes, since it is the key of measured layers."""
    parts = [f"h{sizes.hidden_size}", f"l{sizes.blocks}", f"a{sizes.heads}"]
    parts += [f"k{sizes.kv_heads}"] if sizes.kv_heads != sizes.heads else []
    parts += [f"f{sizes.ffn_size}"] if sizes.ffn_size != 4 * sizes.hidden_size else []
    tied = "" if sizes.tied_head else "-untied"
    return f"{sizes.family}-{'-'.join(parts)}-p{sizes.max_positions}-v{sizes.vocab_size}{tied}"


def decoder_from_config(config: Mapping[str, Any], *, name: str, where: str | None = None) -> Decoder:
    """Return the sizes in a Hugging Face style config; raises RequestError with every fault.

    `where` begins the place of a fault, such as "config.json: ".
    """
    origin = f"model config {name}: " if where is None else where
    family = _family(config, origin)
    problems = _misspelt(config, origin)
    sizes = {key: _size(config, names, origin, problems) for key, names in _NAMES.items()}
    sizes["vocab_size"] = _size(config, ("vocab_size",), origin, problems)
    problems += [
        Problem(path=f"{origin}{names[0]}", message="is missing")
        for key in ("vocab_size", "hidden_size", "blocks", "heads")
        for names in (_NAMES.get(key, (key,)),)
        if sizes[key] is None
        and not any(
            problem.path == f"{origin}{name}" or repr(name) in problem.hint for problem in problems for name in names
        )
    ]
    if family not in _LEARNED_POSITIONS and sizes["ffn_size"] is None and not problems:
        message = f"is missing; {family} models have no customary size"
        problems.append(Problem(path=f"{origin}intermediate_size", message=message))
    if problems:
        raise RequestError(problems)
    _check(family, config, origin, problems)
    if problems:
        raise RequestError(problems)
    return _build(name, family, config, {key: value or 0 for key, value in sizes.items()}, origin)


def dropout_note(job: Job, sizes: Decoder) -> str | None:
    """Return a warning about dropout in a model that our runtime would not apply, None if there is none."""
    probability = job.training.dropout
    ignored = [own.text for own in sizes.dropouts if not (own.replaced and probability > 0.0)]
    if job.run is not None or not ignored:
        return None
    advice = (
        f"; training.dropout {probability:g} replaces only nn.Dropout and functional.dropout"
        if probability > 0.0
        else "; training.dropout sets the only dropout, and is 0"
    )
    return f"the dropout in {sizes.name} is not applied: {', '.join(ignored)}{advice}"


def tp_problem(sizes: Decoder, tp: int) -> str | None:
    """Return why a tensor-parallel degree can't cut a decoder, or None if it can."""
    if sizes.counted and sizes.counted_at(tp) is None:
        return f"tp {tp} does not divide what the tp_plan of {sizes.name} cuts"
    for count, what in (
        (sizes.heads, "attention heads"),
        (sizes.kv_heads, "key-value heads"),
        _cut_experts(sizes),
        (sizes.experts.shared_size if sizes.experts is not None else 0, "columns of the shared expert"),
    ):
        if count % tp:
            return f"tp {tp} does not divide the {count} {what} of {sizes.name}"
    return None


def _cut_experts(sizes: Decoder) -> tuple[int, str]:
    if sizes.experts is None:
        return sizes.ffn_size, "MLP columns"
    return (sizes.experts.count, "experts") if sizes.experts.whole else (sizes.experts.size, "columns of an expert")


def _build(name: str, family: Family, config: Mapping[str, Any], sizes: Mapping[str, int], origin: str) -> Decoder:
    hidden, heads = sizes["hidden_size"], sizes["heads"]
    gated = family not in _LEARNED_POSITIONS
    kv_heads = int(config.get("num_key_value_heads") or _DEFAULT_KV_HEADS.get(family, heads))
    head_size = config.get("head_dim") or _DEFAULT_HEAD_SIZES.get(family)
    if hidden % heads and not head_size:
        message = f"{heads} does not divide hidden_size {hidden}"
        raise RequestError([Problem(path=f"{origin}num_attention_heads", message=message)])
    if heads % kv_heads:
        message = f"{kv_heads} does not divide num_attention_heads {heads}"
        raise RequestError([Problem(path=f"{origin}num_key_value_heads", message=message)])
    head_size = int(head_size or hidden // heads)
    positions = sizes["positions"] or _DEFAULT_POSITIONS
    norm_first = bool(config.get("do_layer_norm_before", True))
    tied = config.get("tie_word_embeddings")
    bias = bool(config.get("attention_bias", False))
    mlp_bias = family in (Family.LLAMA, Family.GRANITE) and bool(config.get("mlp_bias", False))
    if not gated:
        bias = mlp_bias = family is not Family.OPT or bool(config.get("enable_bias", True))
    rest = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    if gated:
        rest["head_dim"] = head_size
    if family is Family.OPT:
        rest["do_layer_norm_before"] = norm_first
    return Decoder(
        name=name,
        family=family,
        vocab_size=sizes["vocab_size"],
        hidden_size=hidden,
        blocks=sizes["blocks"],
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn_size=sizes["ffn_size"] or 4 * hidden,
        max_positions=positions,
        # OPT keeps two extra rows before its learned positions.
        position_rows=0 if gated else positions + 2 if family is Family.OPT else positions,
        embedding_size=int(config.get("word_embed_proj_dim") or hidden) if family is Family.OPT else hidden,
        gated_mlp=gated,
        rms_norm=gated,
        final_norm=norm_first and not config.get("_remove_final_layer_norm", False),
        qkv_bias=_qkv_bias(family, config, bias),
        attention_output_bias=bias and family not in _NO_OUTPUT_BIAS,
        mlp_bias=mlp_bias,
        tied_head=bool(tied) if tied is not None else family in _TIED,
        config=json.dumps(rest, sort_keys=True),
        block_norms=4 if family in (Family.GEMMA2, Family.GEMMA3) else 2,
        qk_norm_size=_qk_norm_size(family, heads, kv_heads, head_size),
        whole_attention=family is Family.OLMO2,
        keeps_scores=family is Family.GPT_NEO,
        experts=_experts(family, config, origin),
        dropouts=tuple(
            OwnDropout(text=f"{name} {config[name]:g}", replaced=name != _LAYER_DROP)
            for name in (*_DROPOUTS, _LAYER_DROP)
            if isinstance(config.get(name), int | float) and config[name] > 0
        ),
    )


def _qk_norm_size(family: Family, heads: int, kv_heads: int, head_size: int) -> int:
    match family:
        case Family.QWEN3 | Family.QWEN3_MOE | Family.GEMMA3:
            return 2 * head_size
        case Family.OLMO2:
            return (heads + kv_heads) * head_size
    return 0


def _experts(family: Family, config: Mapping[str, Any], origin: str) -> Experts | None:
    if family not in _EXPERTS:
        return None
    problems: list[Problem] = []
    found = [_size(config, (name,), origin, problems) or usual for name, usual in _EXPERTS[family]]
    if problems:
        raise RequestError(problems)
    count, per_token, size, *shared = found
    if per_token > count:
        message = f"is {per_token}, more than the {count} experts"
        raise RequestError([Problem(path=f"{origin}num_experts_per_tok", message=message)])
    return Experts(count=count, per_token=per_token, size=size, shared_size=shared[0] if shared else 0)


def _check(family: Family, config: Mapping[str, Any], origin: str, problems: list[Problem]) -> None:
    """Add what transformers' modules reject or what can't be cut, so that it is known before any purchase."""
    for name, (neutral, what) in _NEUTRAL.items():
        given = config.get(name)
        if given is not None and given != neutral:
            problems.append(Problem(path=f"{origin}{name}", message=f"is {given!r}: {what} can't be trained here"))
    for name in ("hidden_act", "hidden_activation", "activation_function"):
        given = config.get(name)
        if given is not None and given not in _ACTIVATIONS:
            message = f"is {given!r}, which transformers does not know"
            problems.append(Problem(path=f"{origin}{name}", message=message, hint=f"one of {', '.join(_ACTIVATIONS)}"))
    for name in ("rms_norm_eps", "layer_norm_epsilon", "rope_theta"):
        given = config.get(name)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float) or given <= 0):
            problems.append(Problem(path=f"{origin}{name}", message=f"must be a positive number, got {given!r}"))
    for name in ("rope_parameters", "rope_scaling"):
        given = config.get(name)
        if given is None:
            continue
        if not isinstance(given, Mapping):
            problems.append(Problem(path=f"{origin}{name}", message=f"must be a mapping, got {given!r}"))
            continue
        kind = given.get("rope_type", given.get("type", "default"))
        if not isinstance(kind, str) or kind not in _ROPES:
            problems.append(
                Problem(path=f"{origin}{name}.rope_type", message=f"is {kind!r}", hint=f"one of {', '.join(_ROPES)}")
            )
        needed = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
        problems += [
            Problem(path=f"{origin}{name}.{key}", message="is missing")
            for key in needed.get(str(kind), ())
            if key not in given
        ]


def _qkv_bias(family: Family, config: Mapping[str, Any], bias: bool) -> bool:
    match family:
        case Family.GPT_NEO | Family.MISTRAL | Family.PHI3 | Family.MIXTRAL:
            return False
        case Family.QWEN2:
            return True
        case Family.QWEN2_MOE:
            return bool(config.get("qkv_bias", True))
    return bias


def _family(config: Mapping[str, Any], origin: str) -> Family:
    """Return the family. Raises RequestError; the sizes of other families have other names, so nothing else counts."""
    path, given = f"{origin}model_type", config.get("model_type")
    known = ", ".join(Family)
    if given is None:
        raise RequestError([Problem(path=path, message="is missing", hint=f"one of {known}")])
    if given in tuple(Family):
        return Family(given)
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and inner.get("model_type") in tuple(Family):
        message = f"is {given!r}, of which only the text model is supported"
        hint = f"write text_config, whose model_type is {inner['model_type']!r}, to a file of its own"
        raise RequestError([Problem(path=path, message=message, hint=hint)])
    own = "train it by your own script in 'run', or as layers in model: {module: my_package.model:build}"
    raise RequestError(
        [Problem(path=path, message=f"is {given!r}, which is not supported", hint=f"{own}; known: {known}")]
    )


def _misspelt(config: Mapping[str, Any], origin: str) -> list[Problem]:
    """Return unknown names that nearly are those of a size, which would silently have its default."""
    single = ("vocab_size", "num_key_value_heads", "head_dim", "tie_word_embeddings", *_EXPERT_NAMES)
    absent = [
        name
        for names in (*_NAMES.values(), *((name,) for name in single))
        if not any(name in config for name in names)
        for name in names
    ]
    known = {*_LEFT_OUT, *single}
    return [
        Problem(path=f"{origin}{key}", message="is not a known name", hint=f"did you mean {close[0]!r}?")
        for key in config
        if key not in known and (close := difflib.get_close_matches(key, absent, n=1, cutoff=_NEARLY))
    ]


def _size(config: Mapping[str, Any], names: tuple[str, ...], origin: str, problems: list[Problem]) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            message = f"must be an integer from 1 to {MOST}, got {value!r}"
            problems.append(Problem(path=f"{origin}{name}", message=message))
            return None
        return value
    return None


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"can't read {path}: {error.strerror}"
        hint = "give the path of a config.json, or hf://ORG/NAME for a model on the Hugging Face Hub"
        raise RequestError([Problem(path="model.config", message=message, hint=hint)]) from error
    except ValueError as error:
        raise RequestError([Problem(path="model.config", message=f"{path} is not JSON: {error}")]) from error
    if not isinstance(config, dict):
        raise RequestError([Problem(path="model.config", message=f"{path} must hold one JSON object")])
    return config
