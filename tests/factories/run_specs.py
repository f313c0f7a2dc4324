"""Run specs of small models for tests of the runtime."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sailor_runtime.spec import (
    SPEC_VERSION,
    CheckpointSpec,
    DataSpec,
    ModelSpec,
    NodeSpec,
    PipelineSpec,
    RunSpec,
    StageSpec,
    TrainingSpec,
)

# (first layer, end layer, tp, later ranges of layers ...) of each stage, after microbatch size and count
PipelineShape = tuple[int, int, Sequence[tuple[Any, ...]]]

TINY = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "hidden_size": 24,
    "blocks": 4,
    "heads": 6,
    "kv_heads": 6,
    "ffn_size": 96,
    "max_positions": 16,
    "embedding_size": 24,
    "tied_head": True,
}

SHORT_TRAINING = {
    "global_batch_size": 12,
    "sequence_length": 16,
    "steps": 5,
    "optimizer": "adamw",
    "learning_rate": 1e-2,
    "weight_decay": 0.01,
    "schedule": "cosine",
    "warmup_steps": 2,
    "gradient_clipping": None,
    "dropout": 0.0,
    "precision": "fp64",
    "seed": 0,
}


_handed_out: set[int] = set()


def free_port() -> int:
    """Return a free port, each one once, and below those that the kernel gives to outgoing connections meanwhile.

    A port is busy for a minute after its world has ended, and free when it is asked for: two cases of one file must
    not get the same, nor two test processes, so each of those draws from its own eighth of the range.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    while True:
        port = 20_000 + 1_100 * worker + random.randrange(1_100)
        if port in _handed_out:
            continue
        _handed_out.add(port)
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return port


def run_spec(
    pipelines: Sequence[PipelineShape],
    *,
    directory: Path,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    recompute: int = 0,
    node_of_rank: Sequence[str] | None = None,
    accelerators: dict[str, str] | None = None,
    zones: dict[str, str] | None = None,
    checkpoint_every_s: float = 3600.0,
    checkpoint_directory: str | None = None,
    **fields: Any,
) -> RunSpec:
    """Return a spec; all ranks are devices of `node-0` unless `node_of_rank` says otherwise of a stage's first rank.

    recompute: 1 for all blocks, 2 for every second one. A stage's shape ends with its later ranges of layers, if any.
    """
    rank, sizes = 0, {**TINY, **(model or {})}
    again = range(1, sizes["blocks"] + 1, recompute) if recompute else range(0)
    used: dict[str, int] = {}
    built = []
    for microbatch_size, microbatches, shapes in pipelines:
        stages = []
        for first, end, tp, *later in shapes:
            node = "node-0" if node_of_rank is None else node_of_rank[rank]
            device = used.get(node, 0)
            used[node] = device + tp
            stages.append(
                StageSpec(
                    first_layer=first,
                    end_layer=end,
                    node=node,
                    devices=tuple(range(device, device + tp)),
                    ranks=tuple(range(rank, rank + tp)),
                    recompute=tuple(
                        layer for layer in again if any(start <= layer < stop for start, stop in ((first, end), *later))
                    ),
                    later_ranges=tuple(later),
                )
            )
            rank += tp
        built.append(PipelineSpec(microbatch_size=microbatch_size, microbatches=microbatches, stages=tuple(stages)))
    kinds = dict.fromkeys(used, "CPU-fast") | (accelerators or {})
    nodes = tuple(
        NodeSpec(
            id=node,
            address="127.0.0.1",
            accelerator=kinds[node],
            devices=used[node],
            zone=(zones or {}).get(node, ""),
        )
        for node in sorted(used)
    )
    values: dict[str, Any] = {
        "run": "test",
        "generation": 1,
        "plan_hash": "hash-1",
        "zero_stage": 0,
        "data": DataSpec(source="synthetic", format="bytes", tokenizer=None),
        "checkpoint": CheckpointSpec(
            directory=checkpoint_directory or str(directory / "checkpoints"), every_s=checkpoint_every_s, keep=2
        ),
        "predicted_iteration_s": 0.1,
        "verify_steps": 0,
        "calibrate": False,
        "expires_at": 4e9,
        "master_port": free_port(),
    }
    return RunSpec(
        spec_version=SPEC_VERSION,
        model=ModelSpec(**sizes),
        training=TrainingSpec(**{**SHORT_TRAINING, **(training or {})}),
        nodes=nodes,
        pipelines=tuple(built),
        master_address="127.0.0.1",
        **{**values, **fields},
    )
