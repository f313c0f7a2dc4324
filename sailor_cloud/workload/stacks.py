"""The overheads of a device type and its software on layers and tensors."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from sailor_cloud.catalog.files.tables import RowParser
from sailor_cloud.errors import DataError
from sailor_cloud.units import GIB

FILE = "stacks.csv"
DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOverheads:
    """Memory beyond the counted tensors; fitted over all programs and models together.

    `activations`: kept bytes of a layer over the counted ones, if none were measured. `scores`: kept bytes of plain
    attention over its probabilities alone: dropout has a mask and an output. `reserve`: the share of all tensors that
    the caching allocator holds in addition; when memory runs short, `fragments` of it stay and the rest is freed
    (judgement). `link_bytes_per_gb_per_s`: of collectives, which open channels in proportion to NVLink's rate.
    `least_framework_bytes`: of a CUDA context and communicators without NVLink.
    """

    activations: float
    scores: float
    reserve: float
    fragments: float
    link_bytes_per_gb_per_s: float
    least_framework_bytes: int

    def framework_bytes(self, nvlink_gb_per_s: float | None) -> int:
        return max(self.least_framework_bytes, round(self.link_bytes_per_gb_per_s * (nvlink_gb_per_s or 0.0)))


# Torch's out-of-memory errors show 0.13 (T4), 0.25 (L4) and 0.2 to 0.51 GiB (L40S, RTX 3090) outside its allocator
# (public logs, 2026-11-30): half a GiB for the context. The other quarter is a judgement: the few channels that
# communicators open over PCIe, a few MiB each.
_WITHOUT_NVLINK = 3 * GIB // 4
# The others are fitted by benchmarks/simulator_accuracy/published_memory.py, 2026-11-23: results/published_memory.md.
GPU_OVERHEADS = MemoryOverheads(
    activations=1.19,
    scores=2.25,
    reserve=0.115,
    fragments=0.5,
    link_bytes_per_gb_per_s=4.7e6,
    least_framework_bytes=_WITHOUT_NVLINK,
)
# The local provider's memory is a cap on tensor bytes.
NO_OVERHEADS = MemoryOverheads(
    activations=1.0,
    scores=1.0,
    reserve=0.0,
    fragments=0.0,
    link_bytes_per_gb_per_s=0.0,
    least_framework_bytes=0,
)
_OVERHEADS = {"gpu": GPU_OVERHEADS, "none": NO_OVERHEADS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Constants of one accelerator under one software stack.

    `timing_overhead_s`: how much longer a layer's forward and backward take when timed alone than in training.
    """

    accelerator: str
    stack: str
    overheads: MemoryOverheads
    timing_overhead_s: float
    source: str
    as_of: date


_ROW = RowParser(Stack, overheads=_OVERHEADS.__getitem__)


def read_stacks(path: Path) -> dict[str, Stack]:
    """Read the table by accelerator; its row `default` serves the others. Raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_ROW.of(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a table of software stacks: {error!r}") from error
    table = {row.accelerator: row for row in rows}
    if DEFAULT not in table:
        raise DataError(f"{path} lacks the row {DEFAULT!r}")
    return table
