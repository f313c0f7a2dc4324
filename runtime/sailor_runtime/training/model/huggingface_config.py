"""A model's sizes and form as the configuration that transformers reads."""

from __future__ import annotations

from typing import Any

import torch

from sailor_runtime.spec import ArchitectureSpec, ModelSpec
from sailor_runtime.training.model.architecture import architecture_of

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def config(model: ModelSpec, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return the model's Hugging Face configuration."""
    form = architecture_of(model)
    common = {
        "model_type": model.model_type,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_head,
        "torch_dtype": str(dtype).removeprefix("torch."),
        # A checkpoint knows no tokenizer; the defaults of transformers may lie beyond the vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
    }
    activation = _ACTIVATIONS[form.activation]
    match model.model_type:
        case "gpt2":
            own: dict[str, Any] = {
                "architectures": ["GPT2LMHeadModel"],
                "n_embd": model.hidden_size,
                "n_layer": model.blocks,
                "n_head": model.heads,
                "n_inner": model.ffn_size,
                "n_positions": model.max_positions,
                "activation_function": activation,
                "layer_norm_epsilon": form.norm_epsilon,
            }
        case "gpt_neo":
            local = [window for window in form.windows if window]
            own = {
                "architectures": ["GPTNeoForCausalLM"],
                "hidden_size": model.hidden_size,
                "num_layers": model.blocks,
                "num_heads": model.heads,
                "intermediate_size": model.ffn_size,
                "max_position_embeddings": model.max_positions,
                "activation_function": activation,
                "layer_norm_epsilon": form.norm_epsilon,
                "attention_types": [[["local" if window else "global"], 1] for window in form.windows],
                "window_size": local[0] if local else 256,
            }
        case "opt":
            own = {
                "architectures": ["OPTForCausalLM"],
                "hidden_size": model.hidden_size,
                "num_hidden_layers": model.blocks,
                "num_attention_heads": model.heads,
                "ffn_dim": model.ffn_size,
                "max_position_embeddings": model.max_positions,
                "word_embed_proj_dim": model.embedding_size,
                "activation_function": activation,
                "enable_bias": form.qkv_bias,
                "do_layer_norm_before": form.norm_first,
                "_remove_final_layer_norm": form.norm_first and not form.final_norm,
            }
        case _:
            own = _rotary_config(model)
    return {**common, **own}


def _rotary_config(model: ModelSpec) -> dict[str, Any]:
    form = architecture_of(model)
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[model.model_type]
    result: dict[str, Any] = {
        "architectures": [f"{name}ForCausalLM"],
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.blocks,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": form.head_size,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_positions,
        "hidden_act": _ACTIVATIONS[form.activation],
        "rms_norm_eps": form.norm_epsilon,
        # transformers reads `rope_parameters` from version 5 on, and the other two before.
        "rope_parameters": {"rope_theta": form.rope_theta, **_scaling(form)},
        "rope_theta": form.rope_theta,
        "rope_scaling": _scaling(form) if form.rope_scaling is not None else None,
    }
    if model.model_type == "llama":
        result |= {"attention_bias": form.qkv_bias, "mlp_bias": form.mlp_bias}
    if model.model_type == "mistral":
        result["sliding_window"] = form.windows[0] or None
    if model.model_type == "qwen2":
        windows = sorted({window for window in form.windows if window})
        kinds = ["sliding_attention" if window else "full_attention" for window in form.windows]
        result |= {"use_sliding_window": bool(windows), "layer_types": kinds, "max_window_layers": 0}
        result["sliding_window"] = windows[0] if windows else None
    return result


def _scaling(form: ArchitectureSpec) -> dict[str, Any]:
    scaling = form.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_turns,
        "high_freq_factor": scaling.high_turns,
        "original_max_position_embeddings": scaling.original_positions,
    }
