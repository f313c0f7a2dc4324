"""The job: what to train, under which budget, on which resources. Its file format is described in docs/design.md."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.decoder import Family
from sailor_cloud.model.duration import Duration as Duration
from sailor_cloud.model.duration import reject_boolean
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.model.offer import Market, Precision, Provider
from sailor_cloud.model.presets import PRESETS
from sailor_cloud.units import duration_text


class Goal(StrEnum):
    MAXIMIZE_THROUGHPUT = "maximize-throughput"
    MINIMIZE_COST = "minimize-cost"
    MINIMIZE_TIME = "minimize-time"


class Optimizer(StrEnum):
    """`cpu-adam` and `fused-adam` are DeepSpeed's AdamW; nodes need its extension, which must be built beforehand."""

    ADAMW = "adamw"
    SGD = "sgd"
    CPU_ADAM = "cpu-adam"
    FUSED_ADAM = "fused-adam"


class Schedule(StrEnum):
    CONSTANT = "constant"
    COSINE = "cosine"


class DataFormat(StrEnum):
    BYTES = "bytes"
    TEXT = "text"
    TOKENS = "tokens"


class NetworkAccess(StrEnum):
    PUBLIC_SSH = "public-ssh"
    PRIVATE = "private"


def _known_place(place: str) -> str:
    if "://" in place and not place.startswith(("gs://", "s3://")):
        raise ValueError("must be a path, gs://bucket/folder or s3://bucket/folder")
    return place


Place = Annotated[str, AfterValidator(_known_place)]
# The prefix of addresses on the Hugging Face Hub.
HUB = "hf://"


def _known_source(place: str) -> str:
    if place.startswith(HUB):
        return place
    if "://" in place and not place.startswith(("gs://", "s3://")):
        raise ValueError("must be a path, gs://bucket/folder, s3://bucket/folder or hf://datasets/ORG/NAME")
    return place


DataPlace = Annotated[str, AfterValidator(_known_source)]


# Larger numbers are mistakes, and floating point can't represent their products exactly.
MOST = 10**9

Count = Annotated[int, Field(gt=0, le=MOST), BeforeValidator(reject_boolean)]
# Tables of the planner grow with the square of the layers; the deepest models published have a few hundred.
Layers = Annotated[int, Field(gt=0, le=1_000), BeforeValidator(reject_boolean)]
# More devices of one kind than any zone has; the search lists nodes one by one.
Devices = Annotated[int, Field(gt=0, le=100_000), BeforeValidator(reject_boolean)]
Amount = Annotated[float, Field(gt=0, le=MOST), BeforeValidator(reject_boolean)]


class _Part(BaseModel):
    # Each validator is built on first use; most parts are only validated within a job.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class ModelSource(_Part):
    """Exactly one of: a preset's name, a Hugging Face config file, or sizes under Hugging Face's names.

    `module`: a function of the job that builds the layers; plans use the sizes given with it. `weights`: a Hugging Face
    checkpoint in safetensors files from which training starts; null: random weights.
    """

    model_config = ConfigDict(protected_namespaces=())

    preset: str | None = None
    config: str | None = None
    module: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="A function in the job's workdir that builds the layers, my_package.model:build; see training.md.",
    )
    model_type: Family | None = None
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    num_hidden_layers: Layers | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    intermediate_size: Count | None = None
    max_position_embeddings: Count | None = None
    tie_word_embeddings: bool | None = None
    weights: Place | None = Field(
        default=None,
        description="A folder of model.safetensors files: a path that is absolute unless nodes are local, gs:// or "
        "s3://.",
    )
    whole_experts: bool | None = Field(
        default=None,
        description="Of a mixture of experts: tensor-parallel devices share out the experts instead of cutting each.",
    )

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str | None) -> str | None:
        if name is not None and name not in PRESETS:
            close = difflib.get_close_matches(name.lower(), PRESETS, n=1)
            guess = f"did you mean '{close[0]}'? " if close else ""
            known = ", ".join(sorted(PRESETS))
            other = "for any other model give {config: FOLDER/config.json} or {config: hf://ORG/NAME}"
            raise ValueError(f"{name!r} is not a preset ({guess}known: {known}; {other})")
        return name

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        separate = ("preset", "config", "weights", "whole_experts", "module")
        inline = {name for name in type(self).model_fields if name not in separate} & self.given
        if sum((self.preset is not None, self.config is not None, bool(inline))) != 1:
            raise ValueError("give exactly one of preset, config or inline sizes")
        if self.module is not None and (not inline or self.weights is not None or self.whole_experts is not None):
            raise ValueError("a module also needs inline sizes, and takes neither weights nor whole_experts")
        if inline:
            required = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
            missing = [name for name in required if name not in inline]
            if missing:
                raise ValueError(f"inline sizes lack {', '.join(missing)}")
        return self

    @property
    def given(self) -> set[str]:
        """Names of the fields that the job sets."""
        return {name for name in type(self).model_fields if getattr(self, name) is not None}


class DataSource(_Part):
    """Training data: `synthetic`, `python-stdlib` (the interpreter's own library), a path, gs://, s3:// or hf://."""

    source: DataPlace = "synthetic"
    format: DataFormat = DataFormat.BYTES
    tokenizer: DataPlace | None = None

    @model_validator(mode="after")
    def _tokenizer_for_text(self) -> Self:
        if self.format is DataFormat.TEXT and self.tokenizer is None:
            raise ValueError("format 'text' needs a tokenizer: add 'tokenizer' with a tokenizers file, or use 'bytes'")
        return self


class SumFormat(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"


class Training(_Part):
    """How the model is trained. Without `steps`, only rates are known, no totals."""

    global_batch_size: Count
    sequence_length: Count
    steps: Count | None = None
    optimizer: Optimizer = Optimizer.ADAMW
    learning_rate: float = Field(default=3.0e-4, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Schedule = Schedule.COSINE
    warmup_steps: int = Field(default=0, ge=0, le=MOST)
    gradient_clipping: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    precision: Precision = Precision.FP32
    seed: int = Field(default=0, ge=0, lt=2**63)
    max_loss_rise: float | None = Field(
        default=2.0,
        gt=0,
        description="Stop when the smoothed loss is so many nats per token above its lowest; null: never.",
    )
    sums: SumFormat = Field(
        default=SumFormat.FP32,
        description="Format of gradients in all-reduces between pipelines; bf16 halves the bytes and loses precision.",
    )
    max_zero_stage: int | None = Field(
        default=None,
        ge=0,
        le=3,
        exclude_if=lambda value: value is None,
        description="The ZeRO stage that a plan may have at most. Without it, plans for our runtime have 0 or 1.",
    )
    zero_bubble: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="Let plans have a zero-bubble schedule (ZB-H1) where it is faster and memory suffices.",
    )
    interleaved: bool = Field(
        default=False,
        exclude_if=lambda value: not value,
        description="Let plans have an interleaved schedule, with several ranges of layers in each stage, where it is "
        "faster and memory suffices.",
    )
    compile: bool = Field(default=False, description="Run each layer as torch.compile makes it; not with dropout.")
    sync_every: int | None = Field(
        default=None,
        gt=0,
        description="Pipelines in different zones average their weights every so many steps (DiLoCo) and exchange no "
        "gradients in between; null: they synchronize at every step. It changes how the model converges, so it is "
        "never chosen for you.",
    )

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        if self.compile and self.dropout > 0.0:
            raise ValueError(f"compile needs dropout 0, got {self.dropout:g}: what is dropped changes with every step")
        if self.compile and self.zero_bubble:
            raise ValueError("zero_bubble halves backward passes, which compiled layers can't: leave one of both out")
        if self.sync_every is not None and (self.max_zero_stage or 0) >= 2:
            raise ValueError("sync_every needs max_zero_stage 1 or less: ZeRO-2 and 3 sum gradients in every step")
        return self


class Constraints(_Part):
    """Limits that a plan must keep; None means no limit."""

    budget_usd: Amount | None = None
    deadline: Duration | None = None
    max_usd_per_hour: Amount | None = None
    min_throughput: Amount | None = Field(default=None, description="Iterations per second.")
    max_usd_per_iteration: Amount | None = None
    max_nodes: Count | None = None
    probability: Annotated[float, Field(gt=0.5, lt=1), BeforeValidator(reject_boolean)] | None = Field(
        default=None,
        description="How probable it must be that the run ends within budget, deadline and TTL; null: as expected.",
    )

    @model_validator(mode="after")
    def _probability_of_something(self) -> Self:
        if self.probability is not None and self.budget_usd is None and self.deadline is None:
            raise ValueError("probability is that of keeping budget_usd or deadline, and neither is set")
        return self


class Resource(_Part):
    """Usable devices: at most these numbers of each accelerator per zone of this entry."""

    provider: Provider
    zones: tuple[str, ...] = Field(min_length=1)
    markets: tuple[Market, ...] = Field(default=(Market.ON_DEMAND,), min_length=1)
    accelerators: dict[str, Devices] = Field(min_length=1)
    instance_types: tuple[str, ...] | None = None

    @field_validator("zones", "markets", "instance_types")
    @classmethod
    def _once_each(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = sorted(name for name, times in Counter(names or ()).items() if times > 1)
        if twice:
            raise ValueError(f"names {', '.join(twice)} twice")
        return names


class GcpAccount(_Part):
    """Existing resources of the project, and purchases in it besides nodes.

    `service_account`: the identity of nodes; null creates one for the run that can only access the checkpoint's bucket.
    `watchdog`: a function that deletes everything of the run 15 minutes after its TTL. `billing_export`: the BigQuery
    table with the billing export, which `cost --actual` reads.
    """

    project: str
    service_account: str | None = Field(default=None, pattern=r"^[^@\s]+@[^@\s]+\.gserviceaccount\.com$")
    watchdog: bool = False
    billing_export: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9:.-]{4,}\.\w+\.\w+$")


class AwsAccount(_Part):
    """Existing resources of the account.

    `instance_profile`: the identity of nodes; null creates one for the run that can only access the checkpoint's
    bucket. `watchdog`: a function that deletes everything of the run 15 minutes after its TTL.
    """

    instance_profile: str | None = Field(default=None, min_length=1)
    watchdog: bool = False


class StateBackend(_Part):
    """Where Terraform keeps the states of runs, one object per root. `region` is that of an S3 bucket."""

    bucket: str = Field(pattern=r"^(gs|s3)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$")
    prefix: str = Field(default="sailor-cloud", pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$")
    region: str | None = None

    @model_validator(mode="after")
    def _region_of_s3(self) -> Self:
        if self.bucket.startswith("s3://") == (self.region is None):
            raise ValueError("an s3:// bucket needs its region, and a gs:// bucket takes none")
        return self


class HostKeys(StrEnum):
    """Which SSH host key of a node is trusted: the one that its cloud reports, else the one at first contact."""

    PUBLISHED = "published"
    FIRST_CONTACT = "first-contact"


class Cloud(_Part):
    """Accounts and access.

    `state: null` keeps Terraform's states in the run's folder. `host_keys: first-contact` trusts the key that a node
    shows if its cloud does not report one in time; otherwise such a node is refused. `cluster`: the inventory of
    existing machines, `cluster.yaml`, as a path or its content. `capacity`: a list of reservations, blocks and the
    like, `capacity.yaml`, as a path or its content.
    """

    gcp: GcpAccount | None = None
    aws: AwsAccount | None = None
    owner: str | None = None
    network: NetworkAccess = NetworkAccess.PUBLIC_SSH
    host_keys: HostKeys = HostKeys.PUBLISHED
    image: str | None = None
    state: StateBackend | None = None
    cluster: Inventory | str | None = Field(default=None, exclude_if=lambda value: value is None)

    capacity: tuple[Capacity, ...] | str | None = Field(default=None, exclude_if=lambda value: value is None)

    @property
    def reserved(self) -> tuple[Capacity, ...]:
        """The capacity other than spot and on-demand, after its file was read."""
        return self.capacity if isinstance(self.capacity, tuple) else ()

    @property
    def inventory(self) -> Inventory | None:
        """The inventory, after its file was read."""
        return self.cluster if isinstance(self.cluster, Inventory) else None


class Checkpoint(_Part):
    """When to save, how many to keep, and where; `to: null` keeps checkpoints inside the run."""

    every: Duration = 600.0
    keep: int = Field(default=3, gt=0)
    to: Place | None = None

    @property
    def to_bucket(self) -> bool:
        return self.to is not None and "://" in self.to


class WandbProject(_Part):
    """A project of Weights & Biases. The key comes from WANDB_API_KEY, WANDB_API_KEY_FILE or `wandb login`."""

    project: str = Field(min_length=1)
    entity: str | None = None


class MlflowExperiment(_Part):
    """An experiment of MLflow. `uri: null` uses MLFLOW_TRACKING_URI; passwords come from the environment."""

    experiment: str = Field(min_length=1)
    uri: str | None = None

    @field_validator("uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri is not None and "@" in uri.partition("://")[2].partition("/")[0]:
            raise ValueError("must hold no password: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead")
        return uri


class Metrics(_Part):
    """Where the curves of a run go besides its folder. `tensorboard` is a folder of the machine that runs `up`."""

    tensorboard: str | None = Field(default=None, min_length=1)
    wandb: WandbProject | None = None
    mlflow: MlflowExperiment | None = None

    @field_validator("tensorboard")
    @classmethod
    def _is_a_folder(cls, folder: str | None) -> str | None:
        if folder is not None and "://" in folder:
            raise ValueError("must be a folder of this machine")
        return folder


# The run sets these for a command, so a job can't.
_DECIDED = frozenset(("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE", "WORLD_SIZE"))
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _text(value: Any) -> Any:
    # YAML has already changed the text, such as 010 and yes.
    if isinstance(value, bool | int | float):
        raise ValueError("must be text: put it in quotes")
    return value


def _of_command(default: Any, description: str, **limits: Any) -> Any:
    """Return a field that documents omit at its default, as all documents without a command do."""
    return Field(default=default, exclude_if=lambda value: value == default, description=description, **limits)


class Job(_Part):
    """One validated job file. It trains a `model` with our runtime, or runs any command (`run`).

    Without a model, the resources say what to buy: these numbers of each accelerator, in one zone of each entry.
    """

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    model: ModelSource | None = None
    data: DataSource = DataSource()
    training: Training = Training(global_batch_size=1, sequence_length=1)
    goal: Goal = Goal.MAXIMIZE_THROUGHPUT
    constraints: Constraints = Constraints()
    resources: tuple[Resource, ...] = Field(min_length=1)
    cloud: Cloud = Cloud()
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Field(default=Metrics(), exclude_if=lambda metrics: metrics == Metrics())
    run: str | None = _of_command(None, "A shell command that every node starts once.", min_length=1)
    setup: str | None = _of_command(None, "A shell command that a node runs before.", min_length=1)
    workdir: str | None = _of_command(None, "The folder that every node gets a copy of.", min_length=1)
    env: dict[str, Annotated[str | None, BeforeValidator(_text)]] = _of_command(
        {}, "Variables of `run` and `setup`; null takes the value from your environment."
    )
    processes_per_node: int | None = _of_command(
        None, "Processes that `run` starts on each node; null: one per device.", gt=0
    )
    stall: Duration = _of_command(1800.0, "A command that says and saves nothing for so long has hung.")
    throughput: Literal["measured"] | Annotated[float, Field(gt=0)] | None = _of_command(
        None, "Steps per second of `run` without a model; measured: plan again with the first 20."
    )

    def __repr__(self) -> str:
        limits = self.constraints.model_dump(exclude_none=True)
        texts = {name: duration_text(value) if name == "deadline" else f"{value:g}" for name, value in limits.items()}
        shown = ", ".join(f"{name}={text}" for name, text in texts.items())
        return f"<Job {self.name}: {self.goal}, {shown or 'no limits'}>"

    @model_validator(mode="before")
    @classmethod
    def _batch_of_a_command(cls, raw: Any) -> Any:
        """Without a model nothing depends on the batch, so a job with only the number of steps is complete."""
        if isinstance(raw, dict) and raw.get("run") and not raw.get("model"):
            training = raw.get("training")
            if isinstance(training, dict):
                return {**raw, "training": {"global_batch_size": 1, "sequence_length": 1, **training}}
        return raw

    @field_validator("run")
    @classmethod
    def _says_something(cls, run: str | None) -> str | None:
        if run is not None and not run.strip():
            raise ValueError("is blank: say what every node starts, as in run: torchrun train.py")
        return run

    @field_validator("env")
    @classmethod
    def _names(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        wrong = [name for name in env if not _VARIABLE.fullmatch(name)]
        if wrong:
            raise ValueError(f"{', '.join(map(repr, wrong))}: names are letters, digits and _, not a digit first")
        ours = [name for name in env if name in _DECIDED or name.startswith(("SAILOR_", "PET_"))]
        if ours:
            raise ValueError(f"{', '.join(ours)}: set for each node by the run itself")
        return env

    @property
    def one_cloud_reason(self) -> str | None:
        """Why nodes on several clouds can't train this job together; None if they can, given a bucket."""
        if self.run is not None:
            return "a command under 'run' gets nodes of one cloud, because gradients cross clouds too slowly"
        if self.training.sync_every is None:
            return "only with 'training: {sync_every: N}' clouds exchange weights, every N steps"
        if self.cloud.network is not NetworkAccess.PUBLIC_SSH:
            return f"they reach each other at public addresses, and the job has 'network: {self.cloud.network}'"
        return None

    @property
    def shipped_folder(self) -> str | None:
        """The folder that is copied to every node: that of the command, or that of the model's own module."""
        alone = self.model is not None and self.model.module is not None
        return self.workdir or ("." if alone else None)

    @property
    def shipped_code(self) -> str:
        """What the shipped folder holds, as the beginning of a sentence."""
        return "the job has a workdir" if self.model is None or self.model.module is None else "model.module names code"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.run is None:
            missing = [name for name in ("model", "training") if name not in self.model_fields_set]
            if missing or self.model is None:
                raise PydanticCustomError("no_training", "needs model and training, or a command to run")
            shipped = ("workdir", "setup") if self.model is not None and self.model.module is not None else ()
            alone = [name for name in COMMAND_FIELDS if name in self.model_fields_set - {"run", *shipped}]
            given = [name for name in alone if getattr(self, name) != type(self).model_fields[name].default]
            if given:
                raise ValueError(f"{', '.join(given)}: only with a command, such as run: torchrun train.py")
        elif self.model is not None and self.model.module is not None:
            raise ValueError("model.module is for our own runtime; a command builds its model itself")
        elif self.model is not None and self.throughput is not None:
            raise ValueError("throughput is for a command without a model, which the plan is made for")
        elif self.model is not None and "training" not in self.model_fields_set:
            raise ValueError("with a model, training must say global_batch_size and sequence_length")
        return self

    @model_validator(mode="after")
    def _probability_of_an_end(self) -> Self:
        if self.constraints.probability is not None and self.training.steps is None:
            raise ValueError("constraints.probability needs training.steps: without an end nothing ends in time")
        if self.constraints.probability is not None and self.model is None:
            raise ValueError("constraints.probability needs a model: without one the risk of a run is unknown")
        return self

    @property
    def iteration_s(self) -> float | None:
        """The stated seconds per step of a command without a model; None if unknown."""
        return 1.0 / self.throughput if isinstance(self.throughput, float) else None


COMMAND_FIELDS = ("run", "setup", "workdir", "env", "processes_per_node", "stall", "throughput")
