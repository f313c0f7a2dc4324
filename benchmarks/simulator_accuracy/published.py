"""Reads tables of published runs: the decoder, the layout and the program of every row, and what was measured."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from sailor_cloud.model.decoder import Decoder, Family
from sailor_cloud.model.offer import Precision
from sailor_cloud.simulator import Engine, engine_named
from sailor_cloud.units import GIB
from sailor_cloud.workload import Attention


class Counter(StrEnum):
    """What a source's memory figure counts: tensors, the allocator's reserve too, or all that the device shows."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    DEVICE = "device"


_FSDP, _DEEPSPEED, _MEGATRON = (engine_named(name) for name in ("fsdp", "deepspeed", "megatron"))
# Programs that are like Megatron-LM in other things have kernels and losses of their own.
# Its optimizer flattens averaged gradients, copies them to fp32 and is not fused: AdamW's square root is one more copy.
# Source: internlm/solver/optimizer/hybrid_zero_optim.py, configs/7B_sft.py (2023).
_INTERNEVO = replace(
    _MEGATRON,
    sequence_parallel=False,
    overlap_gather=False,
    reduce_bytes=2,
    rates=(),
    logit_bytes=None,
    memory=replace(_MEGATRON.memory, gate_copies=4, layer_gradients=False, step_bytes=8),
)
# Gradients stay in fp16 (O2). Source: the table's own configuration.
_PADDLE = replace(
    _MEGATRON,
    sequence_parallel=False,
    reduce_bytes=2,
    rates=(),
    logit_bytes=None,
    memory=replace(
        _MEGATRON.memory, gate_copies=4, bf16_gradient_bytes=2, fp16_gradient_bytes=2, layer_gradients=False
    ),
)
# What a row's `framework` holds, first match, the engine whose behaviour it has, and what its memory figures count.
# nanotron's are inferred: without the reserve they fit its bytes per parameter.
PROGRAMS = {
    "nanotron": (engine_named("nanotron"), Counter.ALLOCATED),
    "llm-foundry": (_FSDP, Counter.RESERVED),
    "torchtitan": (_FSDP, Counter.RESERVED),
    "InternEvo": (_INTERNEVO, Counter.DEVICE),
    "FlagScale": (replace(_MEGATRON, sequence_parallel=False), Counter.DEVICE),
    "without sequence parallelism": (replace(_MEGATRON, sequence_parallel=False), Counter.DEVICE),
    "PaddleNLP": (_PADDLE, Counter.DEVICE),
    "NeMo": (_MEGATRON, Counter.DEVICE),
    "Megatron-DeepSpeed": (_DEEPSPEED, Counter.DEVICE),
    "Megatron": (_MEGATRON, Counter.DEVICE),
    "DeepSpeed": (_DEEPSPEED, Counter.DEVICE),
    "GPT-NeoX": (_DEEPSPEED, Counter.DEVICE),
    "BMTrain": (_DEEPSPEED, Counter.DEVICE),
    "litgpt": (_FSDP, Counter.ALLOCATED),
    "PyTorch": (_FSDP, Counter.ALLOCATED),
    "nanoGPT": (_FSDP, Counter.ALLOCATED),
    "llm.c": (replace(_MEGATRON, rates=(), logit_bytes=None), Counter.DEVICE),
    "sailor_runtime": (engine_named("sailor"), Counter.ALLOCATED),
}
# Other programs behave as those that most run such a layout with: split over devices within a replica, or sharded.
_SPLIT, _WHOLE = (_MEGATRON, Counter.DEVICE), (_FSDP, Counter.RESERVED)
# The failed layouts are of these programs and parts; the table names neither.
FAILED_FRAMEWORK, FAILED_GPU, FAILED_GPUS_PER_NODE, FAILED_SEQUENCE = "nanotron", "H100-80", 8, 4096
_COMMIT = re.compile(r"@[0-9a-f]{6,}\^?")
# Columns that tell one table from another.
THROUGHPUT_COLUMNS = frozenset({"framework", "gpu", "tokens_per_s_per_gpu", "peak_memory_gib"})
FAILED_COLUMNS = frozenset({"model", "n_nodes", "grad_accum", "global_batch_size"})


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One published run, or one layout that failed: then nothing is measured.

    `devices_per_node`, `compiled` and measured figures are None where the source is silent; without a ZeRO stage the
    engine's default stands and `zero_stated` is False. `engine` has the row's attention and what compiling fuses.
    `virtual_stages`: ranges of layers per stage, more than one under an interleaved schedule. `eager_script`: the
    source runs modules of torch in a small script of its own.
    Where copies of the model are sharded over some of the devices each, `devices`, `dp` and `global_batch_size` are
    those of one copy: what the copies sum is left out. `first_error`: that of a prediction before the row was known.
    `accelerator` is a part of the catalog or, for parts that it lacks, the source's own.
    """

    id: str
    source: str
    trust: str
    framework: str
    engine: Engine
    counter: Counter
    decoder: Decoder
    sequence_length: int
    accelerator: str
    devices: int
    devices_per_node: int | None
    internode_gbps: float | None
    precision: Precision
    tp: int
    pp: int
    virtual_stages: int
    dp: int
    zero_stage: int
    zero_stated: bool
    microbatch_size: int
    global_batch_size: int
    recompute: Recompute
    compiled: bool | None
    tokens_per_s_per_device: float | None
    iteration_s: float | None
    peak_bytes: float | None
    eager_script: bool
    first_error: float | None
    note: str

    @property
    def microbatches(self) -> int:
        return max(1, self.global_batch_size // (self.dp * self.microbatch_size))

    @property
    def source_name(self) -> str:
        """The source's page or file, without the commit that it was read at."""
        return _COMMIT.sub("", self.source)

    @property
    def layout(self) -> str:
        return (
            f"tp={self.tp} pp={self.pp} virtual={self.virtual_stages} dp={self.dp} microbatch={self.microbatch_size} "
            f"zero={self.zero_stage}"
            f"{f' recompute={self.recompute}' if self.recompute else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A row that can't be used, and why."""

    id: str
    source: str
    reason: str


def is_published(header: Sequence[str]) -> bool:
    return set(header) >= THROUGHPUT_COLUMNS


def is_failed(header: Sequence[str]) -> bool:
    return set(header) >= FAILED_COLUMNS and "framework" not in header


def read_published(path: Path) -> tuple[tuple[PublishedRun, ...], tuple[Unread, ...]]:
    """Read published_throughput.csv or a table of its columns."""
    runs, unread = [], []
    for row in _rows(path):
        try:
            runs.append(_run(row))
        except (ValueError, ZeroDivisionError) as error:
            unread.append(Unread(id=row["id"], source=row["source"], reason=str(error)))
    return tuple(runs), tuple(unread)


def read_failed(path: Path, decoders: Mapping[str, Decoder]) -> tuple[tuple[PublishedRun, ...], tuple[Unread, ...]]:
    """Read published_failed_or_oom.csv; `decoders` are those of the runs of the same models by name."""
    runs, unread = [], []
    for number, row in enumerate(_rows(path)):
        try:
            runs.append(_failed(f"f{number:04}", row, decoders))
        except ValueError as error:
            unread.append(Unread(id=f"f{number:04}", source=path.name, reason=str(error)))
    return tuple(runs), tuple(unread)


def _rows(path: Path) -> list[dict[str, str]]:
    """Return rows by column; what a table lacks is not stated."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [
            defaultdict(str, {name: "" if value in (None, "unknown") else value for name, value in row.items() if name})
            for row in csv.DictReader(file, restval="")
        ]


def _run(row: Mapping[str, str]) -> PublishedRun:
    for name, kind in (("cp", "context"), ("ep", "expert")):
        if (_number(row, name) or 1) != 1:
            raise ValueError(f"{kind} parallelism {row[name]} is not modelled")
    devices, tp, pp = (_count(row, name) for name in ("n_gpus", "tp", "pp"))
    dp = _count(row, "dp") if row["dp"] else max(1, devices // (tp * pp))
    copies = devices // _count(row, "shard_devices") if row["shard_devices"] else 1
    stage = _number(row, "zero_stage")
    engine, counter = known_program(row["framework"]) or (_SPLIT if tp * pp > 1 and stage != 3 else _WHOLE)
    batch = _measured(row, "global_batch_size")
    microbatch = _count(row, "microbatch_size")
    tokens_per_s, iteration_s = _measured(row, "tokens_per_s_per_gpu"), _measured(row, "iteration_s")
    if tokens_per_s is None and iteration_s is not None and batch is not None:
        tokens_per_s = batch * _count(row, "sequence_length") / iteration_s / devices
    devices, dp, batch = devices // copies, dp // copies, None if batch is None else batch / copies
    gib = _measured(row, "peak_memory_gib")
    compiled = _number(row, "compile")
    per_node = _number(row, "gpus_per_node")
    return PublishedRun(
        id=row["id"],
        source=row["source"],
        trust=row["trust"],
        framework=row["framework"],
        engine=replace(
            engine,
            attention=Attention.PLAIN if row["attention"] == "plain" else Attention.FLASH,
            gather_in_node="zero1=8" in row["note"] or "zero1=4" in row["note"],
            memory=replace(engine.memory, gate_copies=3) if compiled else engine.memory,
        ),
        counter=counter,
        decoder=_decoder(row),
        sequence_length=_count(row, "sequence_length"),
        accelerator=row["gpu"],
        devices=devices,
        devices_per_node=None if per_node is None else int(per_node),
        internode_gbps=_number(row, "internode_network"),
        precision=_precision(row["precision"].lower()),
        tp=tp,
        pp=pp,
        virtual_stages=_count(row, "virtual_stages") if row["virtual_stages"] else 1,
        dp=dp,
        zero_stage=engine.default_zero_stage if stage is None else int(stage),
        zero_stated=stage is not None,
        microbatch_size=microbatch,
        global_batch_size=dp * microbatch if batch is None else int(batch),
        recompute=_recompute(row),
        compiled=None if compiled is None else bool(compiled),
        tokens_per_s_per_device=tokens_per_s,
        iteration_s=iteration_s,
        peak_bytes=None if gib is None else gib * GIB,
        eager_script=row["eager_script"] == "1",
        first_error=float(row["first_error"]) if row["first_error"] else None,
        note=row["note"],
    )


def _failed(name: str, row: Mapping[str, str], decoders: Mapping[str, Decoder]) -> PublishedRun:
    if row["model"] not in decoders:
        raise ValueError(f"the shape of {row['model']} is not known")
    engine, counter = PROGRAMS[FAILED_FRAMEWORK]
    return PublishedRun(
        id=name,
        source="failed or out of memory",
        trust="medium",
        framework=FAILED_FRAMEWORK,
        engine=engine,
        counter=counter,
        decoder=decoders[row["model"]],
        sequence_length=FAILED_SEQUENCE,
        accelerator=FAILED_GPU,
        devices=_count(row, "n_nodes") * FAILED_GPUS_PER_NODE,
        devices_per_node=FAILED_GPUS_PER_NODE,
        internode_gbps=None,
        precision=Precision.BF16,
        tp=_count(row, "tp"),
        pp=_count(row, "pp"),
        virtual_stages=1,
        dp=_count(row, "dp"),
        zero_stage=int(_number(row, "zero_stage") or 0),
        zero_stated=True,
        microbatch_size=_count(row, "microbatch_size"),
        global_batch_size=_count(row, "global_batch_size"),
        recompute=Recompute.NONE,
        compiled=None,
        tokens_per_s_per_device=None,
        iteration_s=None,
        peak_bytes=None,
        eager_script=False,
        first_error=None,
        note="",
    )


def _recompute(row: Mapping[str, str]) -> Recompute:
    if not row["recompute"] and "gradient checkpointing apparently on" in row["note"]:
        return Recompute.FULL
    try:
        return Recompute(row["recompute"].lower())
    except ValueError:
        raise ValueError(f"recompute {row['recompute']} is not modelled") from None


def known_program(framework: str) -> tuple[Engine, Counter] | None:
    """Return what is known of a program, however its name is spelt."""
    name = _letters(framework)
    return next((program for part, program in PROGRAMS.items() if _letters(part) in name), None)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _precision(name: str) -> Precision:
    try:
        return Precision(name)
    except ValueError:
        raise ValueError(f"precision {name} is not modelled" if name else "precision is not stated") from None


def _decoder(row: Mapping[str, str]) -> Decoder:
    hidden, heads, blocks = _count(row, "hidden_size"), _count(row, "n_heads"), _count(row, "n_layers")
    gated = _count(row, "ffn_matrices") == 3
    tokens = _count(row, "sequence_length")
    # BLOOM has ALiBi: no table of positions.
    learned = not gated and not row["model"].startswith("bloom")
    return Decoder(
        name=row["model"],
        family=Family.LLAMA if gated else Family.GPT2,
        vocab_size=_count(row, "vocab_size"),
        hidden_size=hidden,
        blocks=blocks,
        heads=heads,
        kv_heads=int(_number(row, "n_kv_heads") or heads),
        head_size=hidden // heads,
        ffn_size=_count(row, "ffn_size"),
        max_positions=tokens,
        position_rows=tokens if learned else 0,
        embedding_size=hidden,
        gated_mlp=gated,
        rms_norm=gated,
        final_norm=True,
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        tied_head=row["tied"] == "1" or "suggests tied embeddings" in row["note"],
        config="{}",
    )


def _number(row: Mapping[str, str], name: str) -> float | None:
    """Return a number, None where it is not stated. Raises ValueError for one that no run has."""
    if not row[name].strip():
        return None
    try:
        value = float(row[name])
    except ValueError:
        raise ValueError(f"{name} is no number") from None
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} is negative or not finite")
    return value


def _measured(row: Mapping[str, str], name: str) -> float | None:
    value = _number(row, name)
    if value == 0.0:
        raise ValueError(f"{name} is 0")
    return value


def _count(row: Mapping[str, str], name: str) -> int:
    value = _number(row, name)
    if value is None or value < 1 or value != int(value):
        raise ValueError(f"{name} is {row[name] or 'not stated'}")
    return int(value)
