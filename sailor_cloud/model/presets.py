"""Decoders by name, as Hugging Face style configs.

Published sizes are those of the models' own config files on the Hugging Face hub, looked up 2026-11-21. The `sailor-`
presets follow the layer table of the artifact of Sailor (SOSP'25, commit cf2c8e3, `llm_info.json`), which trains its
own variants: GPT-2 blocks with a padded vocabulary of 50,304, and 1024-wide embeddings for OPT-350m.
"""

from __future__ import annotations

from typing import Any

_GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024}
_OPT: dict[str, Any] = {"model_type": "opt", "vocab_size": 50272, "max_position_embeddings": 2048}
_SAILOR_GPT: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 50304, "n_positions": 2048}
_LLAMA3: dict[str, Any] = {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0}

PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {**_GPT2, "n_embd": 768, "n_layer": 12, "n_head": 12},
    "gpt2-medium": {**_GPT2, "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "gpt2-large": {**_GPT2, "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt2-xl": {**_GPT2, "n_embd": 1600, "n_layer": 48, "n_head": 25},
    "gpt-neo-2.7b": {
        "model_type": "gpt_neo",
        "vocab_size": 50257,
        "hidden_size": 2560,
        "num_layers": 32,
        "num_heads": 20,
        "max_position_embeddings": 2048,
    },
    "llama-3-70b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
        "max_position_embeddings": 8192,
        **_LLAMA3,
    },
    "llama-3-8b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        **_LLAMA3,
    },
    "opt-1.3b": {**_OPT, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192},
    "opt-30b": {**_OPT, "hidden_size": 7168, "num_hidden_layers": 48, "num_attention_heads": 56, "ffn_dim": 28672},
    "opt-350m": {
        **_OPT,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "ffn_dim": 4096,
        "word_embed_proj_dim": 512,
        "do_layer_norm_before": False,
    },
    "opt-6.7b": {**_OPT, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "ffn_dim": 16384},
    # The artifact's table has no head for its GPT-Neo and LLAMA. A tied head matches their parameter counts (LLAMA:
    # except for one norm of 4,096, which the table lists twice) and keeps the work of the head.
    "sailor-gpt-neo-2.7": {**_SAILOR_GPT, "n_embd": 2560, "n_layer": 32, "n_head": 20},
    "sailor-llama-3-8": {
        "model_type": "llama",
        "vocab_size": 50304,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 16384,
        "max_position_embeddings": 8192,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "sailor-opt-30": {**_SAILOR_GPT, "n_embd": 7168, "n_layer": 48, "n_head": 56, "tie_word_embeddings": False},
    "sailor-opt-350": {**_SAILOR_GPT, "n_embd": 1024, "n_layer": 24, "n_head": 16, "tie_word_embeddings": False},
}
