"""Reads from a Hugging Face config what a decoder computes beyond its sizes.

What a config leaves out is as transformers 5.23 has it for the family. What this project can't compute is an error
rather than a model that trains wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sailor_cloud.errors import Problem
from sailor_cloud.model.decoder import Activation, Family, Form, RopeKind, RopeScaling

_ROTARY = (Family.LLAMA, Family.MISTRAL, Family.QWEN2)
_ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
_DEFAULT_THETA = 10_000.0
_NEO_WINDOW = 256
_SLIDING_WINDOW = 4096
_FIRST_WINDOWED_LAYER = 28
# Settings of published configs that change the computation, and the value with which they don't.
_NEUTRAL: dict[Family, dict[str, Any]] = {
    Family.GPT2: {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    Family.OPT: {"layer_norm_elementwise_affine": True},
}


def form(family: Family, config: Mapping[str, Any], blocks: int, origin: str, problems: list[Problem]) -> Form:
    """Return the form of a decoder; faults are added to `problems`, and the form is of no use then."""
    for name, neutral in _NEUTRAL.get(family, {}).items():
        if config.get(name, neutral) != neutral:
            problems.append(Problem(path=f"{origin}.{name}", message=f"is {config[name]!r}; only {neutral!r} is known"))
    theta, scaling = _rope(family, config, origin, problems)
    return Form(
        activation=_activation(family, config, origin, problems),
        norm_epsilon=_epsilon(family, config, origin, problems),
        rope_theta=theta,
        rope_scaling=scaling,
        windows=_windows(family, config, blocks, origin, problems),
        # GPT-Neo does not divide its attention scores by the root of the head size.
        scaled_attention=family is not Family.GPT_NEO,
    )


def _activation(family: Family, config: Mapping[str, Any], origin: str, problems: list[Problem]) -> Activation:
    name = "hidden_act" if family in _ROTARY else "activation_function"
    usual = {Family.GPT2: "gelu_new", Family.GPT_NEO: "gelu_new", Family.OPT: "relu"}.get(family, "silu")
    given = config.get(name, usual)
    if given not in _ACTIVATIONS:
        problems.append(
            Problem(path=f"{origin}.{name}", message=f"is {given!r}", hint=f"one of {_names(_ACTIVATIONS)}")
        )
    return _ACTIVATIONS.get(given, Activation.GELU)


def _epsilon(family: Family, config: Mapping[str, Any], origin: str, problems: list[Problem]) -> float:
    if family is Family.OPT:
        return 1e-5
    name, usual = ("rms_norm_eps", 1e-6) if family in _ROTARY else ("layer_norm_epsilon", 1e-5)
    return _positive(config, name, usual, origin, problems)


def _rope(
    family: Family, config: Mapping[str, Any], origin: str, problems: list[Problem]
) -> tuple[float | None, RopeScaling | None]:
    if family not in _ROTARY:
        return None, None
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    where = f"{origin}.{'rope_parameters' if config.get('rope_parameters') else 'rope_scaling'}"
    if not isinstance(given, Mapping):
        problems.append(Problem(path=where, message=f"must be a mapping, got {given!r}"))
        return _DEFAULT_THETA, None
    theta = given.get("rope_theta", config.get("rope_theta", _DEFAULT_THETA))
    theta = _positive({"rope_theta": theta}, "rope_theta", _DEFAULT_THETA, origin, problems)
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in set(RopeKind):
        hint = f"one of default, {_names(RopeKind)}"
        problems.append(Problem(path=f"{where}.rope_type", message=f"is {kind!r}", hint=hint))
        return theta, None
    if kind == RopeKind.LINEAR:
        return theta, RopeScaling(kind=RopeKind.LINEAR, factor=_needed(given, "factor", where, problems))
    positions = _needed(given, "original_max_position_embeddings", where, problems)
    return theta, RopeScaling(
        kind=RopeKind.LLAMA3,
        factor=_needed(given, "factor", where, problems),
        low_turns=_needed(given, "low_freq_factor", where, problems),
        high_turns=_needed(given, "high_freq_factor", where, problems),
        original_positions=int(positions),
    )


def _windows(
    family: Family, config: Mapping[str, Any], blocks: int, origin: str, problems: list[Problem]
) -> tuple[int, ...]:
    """Return for each block how many tokens back it attends, itself included, or 0 for all."""
    match family:
        case Family.MISTRAL:
            return (int(config.get("sliding_window", _SLIDING_WINDOW) or 0),) * blocks
        case Family.QWEN2 if config.get("use_sliding_window"):
            window = int(config.get("sliding_window") or _SLIDING_WINDOW)
            first = int(config.get("max_window_layers", _FIRST_WINDOWED_LAYER))
            usual = ["sliding_attention" if block >= first else "full_attention" for block in range(blocks)]
            kinds = config.get("layer_types") or usual
            where, sliding = "layer_types", "sliding_attention"
        case Family.GPT_NEO:
            window = int(config.get("window_size", _NEO_WINDOW))
            kinds = [kind for pattern, times in config.get("attention_types") or () for kind in list(pattern) * times]
            kinds = kinds or [("global", "local")[block % 2] for block in range(blocks)]
            where, sliding = "attention_types", "local"
        case _:
            return (0,) * blocks
    if len(kinds) != blocks:
        problems.append(Problem(path=f"{origin}.{where}", message=f"names {len(kinds)} layers, the model has {blocks}"))
    return tuple(window if kind == sliding else 0 for kind in kinds)


def _needed(given: Mapping[str, Any], name: str, where: str, problems: list[Problem]) -> float:
    if name not in given:
        problems.append(Problem(path=f"{where}.{name}", message="is missing"))
    return _positive(given, name, 1.0, where, problems)


def _positive(config: Mapping[str, Any], name: str, usual: float, origin: str, problems: list[Problem]) -> float:
    value = config.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        problems.append(Problem(path=f"{origin}.{name}", message=f"must be a positive number, got {value!r}"))
        return usual
    return float(value)


def _names(known: Any) -> str:
    return ", ".join(str(name) for name in known)
