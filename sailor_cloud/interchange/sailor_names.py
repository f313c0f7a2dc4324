"""Names of accelerators and models in Sailor's artifact (SOSP'25, eth-easl/sailor), and constants from its code."""

from __future__ import annotations

ACCELERATORS = {"RTX-2080": "RTX-2080-11", "RTX-3090": "RTX-3090-24", "Titan-RTX": "Titan-RTX-24"}
MODELS = {
    "GPT-Neo-2.7": "sailor-gpt-neo-2.7",
    "LLAMA-3-8": "sailor-llama-3-8",
    "OPT-30": "sailor-opt-30",
    "OPT-350": "sailor-opt-350",
}
SEQUENCE_LENGTHS = {"LLAMA-3-8": 8192}
DEFAULT_SEQUENCE_LENGTH = 2048

# USD per device and hour in the artifact's simulator at commit cf2c8e3; its data files hold no prices.
USD_PER_DEVICE_HOUR = {"A100-40": 3.673385, "GH-96": 11.06, "V100-16": 2.859998}

# Its curves were fitted on messages of about 1 to 256 MB.
MIN_CURVE_BYTES = 1_000_000
MAX_CURVE_BYTES = 256_000_000

# Its update times are those of a model with two blocks.
UPDATED_BLOCKS = 2


def our_accelerator(name: str) -> str:
    """Return our name of one of the artifact's accelerators."""
    return ACCELERATORS.get(name, name)


def their_accelerator(name: str) -> str:
    """Return the artifact's name of one of our accelerators."""
    return next((theirs for theirs, ours in ACCELERATORS.items() if ours == name), name)


def our_model(name: str) -> str:
    """Return the preset for a model of the artifact; a model without one keeps its name."""
    return MODELS.get(name, name)
