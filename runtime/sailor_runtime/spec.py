"""The run spec: everything that agents and ranks of one generation need to know. Standard library only."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from dataclasses import dataclass
from typing import Any

SPEC_VERSION = 1
# Pipeline schedules. The second halves backward passes and computes gradients of weights where a stage would wait; in
# the third each stage alternates between several ranges of layers.
ONE_F_ONE_B, ZERO_BUBBLE, INTERLEAVED = SCHEDULES = "1f1b", "zero-bubble", "interleaved"
# Without a generation, an agent leaves this long after a controller's last ping, and its node powers off: 30 minutes in
# total. A controller relies on this, and sends pings at this interval.
HOLD_S = 1740.0
HEARTBEAT_S = 300.0
# The file for pings in the node's folder.
HEARTBEAT_FILE = "controller"
# Of the file from which the agents of a scheduler's job read the plan.
ARTEFACT_VERSION = 1
# With these NCCL uses sockets, also where a plugin for another network is installed.
NCCL_SOCKETS = {"NCCL_NET": "Socket"}
# The variable with these agents' shared token, if that file does not contain it.
JOB_TOKEN = "SAILOR_JOB_TOKEN"
# The most bytes that are sent as events of each log of a node whose folder is not readable.
MOST_LOG_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Sizes of the decoder; `model_type` is its Hugging Face family. Layers are numbered 0..blocks + 1.

    `config` is the model's Hugging Face configuration as JSON; missing values are transformers' defaults for the
    family. `weights` is a folder with a Hugging Face checkpoint from which training starts; without it, weights are
    random. `module` names a function that builds the layers instead of a family; see training/model/user_module.py.
    `code` is the folder with the user's files, below the node's own; `setup` is a shell command that runs there first.
    `whole_experts`: tensor-parallel devices share a layer's experts; otherwise each expert is cut over all. `seed`: of
    the random numbers with which `module` builds.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    blocks: int
    heads: int
    kv_heads: int
    ffn_size: int
    max_positions: int
    embedding_size: int
    tied_head: bool
    config: str | None = None
    module: str | None = None
    code: str | None = None
    setup: str | None = None
    whole_experts: bool = False
    weights: str | None = None
    seed: int = 0

    @property
    def layers(self) -> int:
        return self.blocks + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """How the model is trained; `precision` is fp32, tf32, bf16, fp16 or fp64.

    `max_loss_rise`: training stops when the smoothed loss is this many nats per token above its lowest; None: never.
    `sync_every`: pipelines that share no zone sum nothing in a step, and average their weights after this many steps.
    `sums`: the format of gradients in transit, fp32 or bf16. `compile`: run the layers between embedding and head by
    torch.compile.
    """

    global_batch_size: int
    sequence_length: int
    steps: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    warmup_steps: int
    gradient_clipping: float | None
    dropout: float
    precision: str
    seed: int
    max_loss_rise: float | None = None
    sync_every: int | None = None
    sums: str = "fp32"
    compile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    source: str
    format: str
    tokenizer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """`directory` is a path or a URL (gs://, s3://), reachable from every node under the same name.

    `saved_step` is the newest step that the run is known to have saved there, 0 for none: if that is missing, training
    does not start again from the beginning.
    """

    directory: str
    every_s: float
    keep: int
    saved_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node, the address at which its ranks listen, its accelerator (the same for all its devices), zone and cloud."""

    id: str
    address: str
    accelerator: str
    devices: int
    zone: str = ""
    cloud: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """Layers [first_layer, end_layer) on `ranks`, one per tensor-parallel index; `recompute`: layers to recompute.

    `later_ranges`: more layers, as first and end, which the pipeline runs after all stages' earlier ranges.
    """

    first_layer: int
    end_layer: int
    node: str
    devices: tuple[int, ...]
    ranks: tuple[int, ...]
    recompute: tuple[int, ...] = ()
    later_ranges: tuple[tuple[int, int], ...] = ()

    @property
    def ranges(self) -> tuple[range, ...]:
        return (range(self.first_layer, self.end_layer), *(range(first, end) for first, end in self.later_ranges))

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(layer for each in self.ranges for layer in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    microbatch_size: int
    microbatches: int
    stages: tuple[StageSpec, ...]

    @property
    def virtual_stages(self) -> tuple[tuple[int, range], ...]:
        """The stages in the order of a microbatch, each with its layers at that point."""
        chunks = max(len(stage.ranges) for stage in self.stages)
        return tuple((s, stage.ranges[chunk]) for chunk in range(chunks) for s, stage in enumerate(self.stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One generation of one run.

    `verify_steps` steps are first trained in float64 and compared with one process, with `verify_narrow` those of a
    narrow copy of the model. `calibrate` then times the layers with all ranks running. `expires_at` (seconds since the
    epoch) is the TTL. `sockets`: NCCL uses no network but sockets.
    """

    spec_version: int
    run: str
    generation: int
    plan_hash: str
    zero_stage: int
    model: ModelSpec
    training: TrainingSpec
    data: DataSpec
    checkpoint: CheckpointSpec
    nodes: tuple[NodeSpec, ...]
    pipelines: tuple[PipelineSpec, ...]
    master_address: str
    master_port: int
    predicted_iteration_s: float
    verify_steps: int
    calibrate: bool
    expires_at: float
    pipeline_schedule: str = ONE_F_ONE_B
    verify_narrow: bool = False
    sockets: bool = False

    @property
    def world_size(self) -> int:
        return sum(len(stage.ranks) for pipeline in self.pipelines for stage in pipeline.stages)

    def node_of(self, rank: int) -> NodeSpec:
        """Return the node on which a rank runs. Raises KeyError for an unknown rank or node."""
        for pipeline in self.pipelines:
            for stage in pipeline.stages:
                if rank in stage.ranks:
                    return next(node for node in self.nodes if node.id == stage.node)
        raise KeyError(f"rank {rank} is in no stage of the spec")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Return the spec in a text. Raises ValueError if a field is missing, unknown or of the wrong kind."""
        raw = json.loads(text)
        if raw.get("spec_version") != SPEC_VERSION:
            raise ValueError(f"spec_version is {raw.get('spec_version')!r}, this runtime reads {SPEC_VERSION}")
        return typing.cast(RunSpec, _build(cls, raw, "spec"))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable of a command. `value` None: the value in the node's own environment."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandNode:
    """A node that runs a command, which starts `processes` ranks there, from `first_rank` on; 0: it stays idle.

    `plan_rank` is the first of the plan's own ranks there, one per device. `plan` is the value of SAILOR_PLAN.
    """

    id: str
    address: str
    processes: int
    first_rank: int
    plan_rank: int
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """One generation of a run whose training is a command of the user's, started once on every node.

    `code` is the folder with the user's files, below the node's own; None: there are none. A stop is SIGTERM, and
    SIGKILL after `grace_s`. A command without a sign of life for `stall_s` counts as hung. `meets_at_port`: its
    processes meet at the master's port, unless a launcher sets another place. `sockets`: NCCL uses no network but
    sockets.
    """

    spec_version: int
    run: str
    generation: int
    plan_hash: str
    command: str
    setup: str | None
    code: str | None
    environment: tuple[Variable, ...]
    checkpoint: CheckpointSpec
    nodes: tuple[CommandNode, ...]
    plan_ranks: int
    master_address: str
    master_port: int
    meets_at_port: bool
    budget_usd: float | None
    grace_s: float
    stall_s: float
    expires_at: float
    sockets: bool = False

    @property
    def world_size(self) -> int:
        return sum(node.processes for node in self.nodes)

    @property
    def working_nodes(self) -> tuple[CommandNode, ...]:
        """The nodes that run the command, in the order of their ranks."""
        return tuple(node for node in self.nodes if node.processes)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def read_spec(text: str) -> RunSpec | CommandSpec:
    """Return the spec of a generation. Raises ValueError as `RunSpec.from_json` does."""
    raw = json.loads(text)
    if not isinstance(raw, dict) or "command" not in raw:
        return RunSpec.from_json(text)
    if raw.get("spec_version") != SPEC_VERSION:
        raise ValueError(f"spec_version is {raw.get('spec_version')!r}, this runtime reads {SPEC_VERSION}")
    return typing.cast(CommandSpec, _build(CommandSpec, raw, "spec"))


def model_from_dict(raw: Any) -> ModelSpec:
    """Return a model that `dataclasses.asdict` has written. Raises ValueError if a field is missing or wrong."""
    return typing.cast(ModelSpec, _build(ModelSpec, raw, "model"))


def _build(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object, got {value!r}")
        hints = typing.get_type_hints(kind)
        names = {field.name for field in dataclasses.fields(kind)}
        needed = {field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING}
        if not needed <= set(value) <= names:
            raise ValueError(f"{where}: missing {sorted(needed - set(value))}, unknown {sorted(set(value) - names)}")
        return kind(**{name: _build(hints[name], value[name], f"{where}.{name}") for name in value})
    origin = typing.get_origin(kind)
    if origin is tuple:
        element = typing.get_args(kind)[0]
        return tuple(_build(element, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is types.UnionType:
        if value is None:
            return None
        return _build(next(a for a in typing.get_args(kind) if a is not type(None)), value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} must be {kind.__name__}, got {value!r}")
    return value
