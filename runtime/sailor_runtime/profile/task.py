"""The measurements of a profile, and their worlds of ranks. Standard library only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
from dataclasses import dataclass
from itertools import pairwise
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
    model_from_dict,
)

# Enough microbatches that a pipeline of a few stages is mostly full.
_MICROBATCHES = 8
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTask:
    """The sizes for which a link is timed, and its ends: two ranks of this machine, or one here and one elsewhere.

    `end` is None for both ends on this machine; else 0 listens at `address` and `port`, and 1 connects to it.
    """

    least_bytes: int = 2**16
    most_bytes: int = 2**24
    address: str = _ADDRESS
    port: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """A model at one sequence length and precision on one accelerator.

    `together` is the number of this machine's devices that are busy at the same time, as under a plan that uses as many
    here. It matters if devices share something, as processor threads share cores.
    """

    model: ModelSpec
    sequence_length: int
    precision: str
    optimizer: str
    accelerator: str
    microbatch_sizes: tuple[int, ...]
    tps: tuple[int, ...]
    together: int
    link: LinkTask | None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ProfileTask:
        raw: dict[str, Any] = json.loads(text)
        model, link = model_from_dict(raw.pop("model")), raw.pop("link")
        tuples = {name: tuple(raw.pop(name)) for name in ("microbatch_sizes", "tps")}
        return cls(model=model, link=None if link is None else LinkTask(**link), **tuples, **raw)

    @property
    def key(self) -> str:
        """A hash of everything that measured layers depend on; it distinguishes measurements of other tasks."""
        left_out = {"microbatch_sizes": (), "tps": (), "link": None}
        return hashlib.sha256(dataclasses.replace(self, **left_out).to_json().encode()).hexdigest()[:16]  # type: ignore[arg-type]


def shortened(model: ModelSpec, blocks: int) -> ModelSpec:
    """Return the model with at most this many blocks; all blocks are equal."""
    if blocks >= model.blocks:
        return model
    return dataclasses.replace(model, blocks=blocks, weights=None)


def layer_spec(task: ProfileTask, *, tp: int, microbatch_size: int, directory: str, port: int) -> RunSpec:
    """Return a world that trains a shortened model at `tp` on `together` devices.

    As many stages of `tp` devices as possible make one pipeline; each remaining device trains the whole model at the
    same time, so that all are busy.
    """
    stages = max(1, task.together // tp)
    single = max(0, task.together - stages * tp)
    model = shortened(task.model, max(2, 2 * stages))
    stages = min(stages, model.layers)
    cuts = [0, *(1 + model.blocks * s // stages for s in range(1, stages)), model.layers]
    built, rank = [], 0
    for first, end in pairwise(cuts):
        built.append(_stage(first, end, rank, tp))
        rank += tp
    pipelines = [PipelineSpec(microbatch_size=microbatch_size, microbatches=_MICROBATCHES, stages=tuple(built))]
    for _ in range(single):
        alone = (_stage(0, model.layers, rank, 1),)
        pipelines.append(PipelineSpec(microbatch_size=microbatch_size, microbatches=_MICROBATCHES // 2, stages=alone))
        rank += 1
    return RunSpec(
        spec_version=SPEC_VERSION,
        run="profile",
        generation=1,
        plan_hash="",
        zero_stage=0,
        model=model,
        training=TrainingSpec(
            global_batch_size=sum(each.microbatch_size * each.microbatches for each in pipelines),
            sequence_length=task.sequence_length,
            steps=1,
            optimizer=task.optimizer,
            learning_rate=1e-6,
            weight_decay=0.01,
            schedule="constant",
            warmup_steps=0,
            gradient_clipping=1.0,
            dropout=0.0,
            precision=task.precision,
            seed=0,
        ),
        data=DataSpec(source="synthetic", format="bytes", tokenizer=None),
        checkpoint=CheckpointSpec(directory=directory, every_s=1e9, keep=1),
        nodes=(NodeSpec(id="here", address=_ADDRESS, accelerator=task.accelerator, devices=rank),),
        pipelines=tuple(pipelines),
        master_address=_ADDRESS,
        master_port=port,
        predicted_iteration_s=1.0,
        verify_steps=0,
        calibrate=False,
        expires_at=4e9,
    )


def _stage(first: int, end: int, rank: int, tp: int) -> StageSpec:
    devices = tuple(range(rank, rank + tp))
    return StageSpec(first_layer=first, end_layer=end, node="here", devices=devices, ranks=devices)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_ADDRESS, 0))
        port: int = listener.getsockname()[1]
        return port
