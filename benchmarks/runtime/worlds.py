"""Specs of benchmark models, and worlds of rank processes on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
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

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
# Layers, cut by tp, of one stage on a device of an accelerator: (first layer, end layer, tp, accelerator).
Shape = tuple[int, int, int, str]


def model_of(*, hidden: int, blocks: int, heads: int, sequence: int, vocabulary: int) -> ModelSpec:
    return ModelSpec(
        model_type="gpt2",
        vocab_size=vocabulary,
        hidden_size=hidden,
        blocks=blocks,
        heads=heads,
        kv_heads=heads,
        ffn_size=4 * hidden,
        max_positions=sequence,
        embedding_size=hidden,
        tied_head=False,
    )


def spec_of(
    model: ModelSpec,
    pipelines: Sequence[tuple[int, int, Sequence[Shape]]],
    directory: Path,
    *,
    steps: int = 1_000_000,
    precision: str = "fp32",
    generation: int = 1,
    every_s: float = 1e9,
) -> RunSpec:
    """Return a spec; every stage has a node of its own. A pipeline is (microbatch size, microbatches, stages)."""
    rank, nodes, built = 0, [], []
    for size, count, shapes in pipelines:
        stages = []
        for first, end, tp, accelerator in shapes:
            node = f"node-{len(nodes)}"
            nodes.append(NodeSpec(id=node, address="127.0.0.1", accelerator=accelerator, devices=tp))
            ranks = tuple(range(rank, rank + tp))
            stages.append(
                StageSpec(
                    first_layer=first,
                    end_layer=end,
                    node=node,
                    devices=tuple(range(tp)),
                    ranks=ranks,
                )
            )
            rank += tp
        built.append(PipelineSpec(microbatch_size=size, microbatches=count, stages=tuple(stages)))
    return RunSpec(
        spec_version=SPEC_VERSION,
        run="benchmark",
        generation=generation,
        plan_hash=f"plan-{generation}",
        zero_stage=0,
        model=model,
        training=TrainingSpec(
            global_batch_size=sum(size * count for size, count, _ in pipelines),
            sequence_length=model.max_positions,
            steps=steps,
            optimizer="adamw",
            learning_rate=1e-3,
            weight_decay=0.01,
            schedule="constant",
            warmup_steps=0,
            gradient_clipping=1.0,
            dropout=0.0,
            precision=precision,
            seed=0,
        ),
        data=DataSpec(source="synthetic", format="bytes", tokenizer=None),
        checkpoint=CheckpointSpec(directory=str(directory / "checkpoints"), every_s=every_s, keep=1),
        nodes=tuple(nodes),
        pipelines=tuple(built),
        master_address="127.0.0.1",
        master_port=free_port(),
        predicted_iteration_s=1.0,
        verify_steps=0,
        calibrate=False,
        expires_at=4e9,
    )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(CHECKOUT / "runtime"), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run_world(
    spec: RunSpec,
    folder: Path,
    *,
    program: str = "rank.py",
    timeout_s: float = 900.0,
    share: bool = False,
    **task: Any,
) -> Any:
    """Run a rank program in a world and return what rank 0 printed. Raises RuntimeError where a rank fails.

    Each rank is a node of its own with one CUDA device, wherever there are any. With `share` all ranks use the first
    device; NCCL takes them for hosts of their own then and connects them by sockets.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "task.json"
    file.write_text(json.dumps({**task, "spec": asdict(spec)}))
    processes = []
    for rank in range(spec.world_size):
        with (folder / f"rank{rank}.out").open("w") as out, (folder / f"rank{rank}.err").open("w") as err:
            command = [sys.executable, str(HERE / program), str(file), str(rank)]
            own = {**environment(), "CUDA_VISIBLE_DEVICES": "0" if share else str(rank)}
            if share:
                own["NCCL_HOSTID"] = f"rank-{rank}"
            processes.append(subprocess.Popen(command, env=own, stdout=out, stderr=err))
    try:
        for rank, process in enumerate(processes):
            if process.wait(timeout=timeout_s) != 0:
                raise RuntimeError(f"rank {rank} failed: {(folder / f'rank{rank}.err').read_text()[-3000:]}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return json.loads((folder / "rank0.out").read_text().splitlines()[-1])
