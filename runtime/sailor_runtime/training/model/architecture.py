"""What is customary in each model family, for specs that don't say."""

from __future__ import annotations

from sailor_runtime.spec import ArchitectureSpec, ModelSpec
from sailor_runtime.training.model import rotary
from sailor_runtime.training.refusal import RefusedError

FAMILIES = ("gpt2", "gpt_neo", "opt", "llama", "mistral", "qwen2")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
_NEO_WINDOW = 256
_ROPE_FAMILIES = {"llama": (10_000.0, 1e-6), "mistral": (10_000.0, 1e-6), "qwen2": (10_000.0, 1e-6)}


def architecture_of(model: ModelSpec) -> ArchitectureSpec:
    """Return the spec's architecture, or the defaults of its family's configuration in transformers 5.23.

    OPT with embeddings narrower than its hidden states is OPT-350m, which alone norms after each sublayer. Raises
    RefusedError for an unknown family and for sizes that no architecture has.
    """
    if model.model_type not in FAMILIES:
        raise RefusedError(f"model type {model.model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    result = model.architecture if model.architecture is not None else _customary(model)
    if result.activation not in ACTIVATIONS:
        raise RefusedError(f"activation {result.activation!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    if len(result.windows) != model.blocks:
        raise RefusedError(f"{len(result.windows)} attention windows are given for {model.blocks} blocks")
    if model.heads % model.kv_heads:
        raise RefusedError(f"{model.heads} heads are no multiple of {model.kv_heads} key-value heads")
    if result.rope_theta is not None and result.head_size % 2:
        raise RefusedError(f"rotary positions need an even head size, got {result.head_size}")
    if result.rope_scaling is not None:
        rotary.check(result.rope_scaling)
    return result


def _customary(model: ModelSpec) -> ArchitectureSpec:
    if model.hidden_size % model.heads:
        raise RefusedError(f"hidden size {model.hidden_size} is no multiple of {model.heads} heads")
    head_size = model.hidden_size // model.heads
    if model.model_type in _ROPE_FAMILIES:
        theta, epsilon = _ROPE_FAMILIES[model.model_type]
        return ArchitectureSpec(
            activation="silu",
            gated_mlp=True,
            rms_norm=True,
            norm_epsilon=epsilon,
            norm_first=True,
            final_norm=True,
            qkv_bias=model.model_type == "qwen2",
            attention_output_bias=False,
            mlp_bias=False,
            scaled_attention=True,
            head_size=head_size,
            rope_theta=theta,
            position_offset=0,
            windows=(0,) * model.blocks,
        )
    neo, opt = model.model_type == "gpt_neo", model.model_type == "opt"
    norm_first = not (opt and model.embedding_size != model.hidden_size)
    return ArchitectureSpec(
        activation="relu" if opt else "gelu_tanh",
        gated_mlp=False,
        rms_norm=False,
        norm_epsilon=1e-5,
        norm_first=norm_first,
        final_norm=norm_first,
        qkv_bias=not neo,
        attention_output_bias=True,
        mlp_bias=True,
        scaled_attention=not neo,
        head_size=head_size,
        rope_theta=None,
        # OPT counts positions from 2, a remnant of its padding token.
        position_offset=2 if opt else 0,
        # GPT-Neo's blocks alternate between global and local attention.
        windows=tuple(_NEO_WINDOW if neo and block % 2 else 0 for block in range(model.blocks)),
    )
