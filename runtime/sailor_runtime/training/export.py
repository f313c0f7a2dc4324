"""`python -m sailor_runtime.training.export --checkpoint DIR --out DIR`: a checkpoint as safetensors.

For a family of transformers, the folder is a Hugging Face model.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from sailor_runtime.object_store import StoreError, leave
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, model_from_dict
from sailor_runtime.training.checkpoint.checkpoint import BUFFER, open_folder, saved_buffers
from sailor_runtime.training.checkpoint.description import FORMAT
from sailor_runtime.training.model import weights
from sailor_runtime.training.model.architecture import architecture_of, range_parameters
from sailor_runtime.training.model.parameters import ParameterSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def export(checkpoint: str | Path, folder: Path, *, dtype: torch.dtype = torch.float32) -> ModelSpec:
    """Write the weights of a checkpoint in the form that transformers loads; return the model's sizes.

    Those of a user's module have the names of its own parameters. Raises RefusedError if a file of the checkpoint is
    not as written, or the module can't be imported.
    """
    directory, _, name = str(checkpoint).rstrip("/").rpartition("/")
    saved = open_folder(directory or ".")
    about = saved.describe(name)
    if about.get("format") != FORMAT:
        raise RefusedError(
            f"it has format {about.get('format')!r}, this version reads {FORMAT}; use the one that made it"
        )
    # Versions whose checkpoints do not describe the module built it from seed 0, whatever the job's.
    model = replace(model_from_dict(about["model"]), seed=about["seed"] if "module" in about else 0)
    try:
        architecture = architecture_of(model)
    except RefusedError as error:
        if model.module is None:
            raise
        raise RefusedError(f"{error}; run this in the job's workdir, from which the module is imported") from error
    fault = saved.damage(name, 0, 1)
    if fault is not None:
        raise RefusedError(fault)
    reader = saved.reader(name)
    metadata = reader.read_metadata()
    # torch would read the metadata again with every tensor, which is slow in a bucket.
    reader.read_metadata = lambda *args, **options: metadata  # type: ignore[method-assign]

    first = weights.first_weights(model, about["seed"]) if model.module is not None else None

    def read(spec: ParameterSpec) -> Tensor:
        if first is not None and not spec.trainable:
            # Frozen weights have not changed since the first step, and no checkpoint contains them.
            return first(spec, torch.float32)
        key = f"model.{spec.name}"
        entry = metadata.state_dict_metadata[key]
        assert isinstance(entry, TensorStorageMetadata)
        state: dict[str, Any] = {key: torch.empty(spec.shape, dtype=entry.properties.dtype)}
        _load(state, reader)
        return state[key]

    buffers = architecture.first_buffers()
    changed = saved_buffers(metadata)
    if changed:
        _load(changed, reader)
    buffers |= {key.removeprefix(BUFFER): value for key, value in changed.items()}
    weights.save(model, read, folder, dtype=dtype, buffers=buffers)
    return model


def _load(state: dict[str, Any], reader: FileSystemReader) -> None:
    with warnings.catch_warnings():
        # A single process is intended here.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        dcp.load(state, storage_reader=reader, no_dist=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.training.export")
    parser.add_argument("--checkpoint", required=True, help="step-<n> of a run: a folder, or a gs:// or s3:// URL")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    options = parser.parse_args()
    try:
        model = export(options.checkpoint, options.out, dtype=DTYPES[options.dtype])
    except (OSError, ValueError, RefusedError, StoreError) as error:
        print(f"sailor_runtime: can't export {options.checkpoint}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    parameters = sum(math.prod(spec.shape) for spec in range_parameters(model, range(model.layers)).values())
    print(f"wrote {parameters:,} parameters of {_loading(model, options.out)}")  # noqa: T201
    return 0


def _loading(model: ModelSpec, folder: Path) -> str:
    """Return which model a folder holds, and what loads it."""
    if model.module is None:
        loads = f"transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r})"
        return f"a {model.model_type} model to {folder}; {loads} loads it"
    loads = "root.load_state_dict(safetensors.torch.load_file(file), strict=False) for each file"
    return f"{model.module} to {folder}; with root.layers = torch.nn.ModuleList(build().layers()), {loads} loads it"


if __name__ == "__main__":
    leave(main())
