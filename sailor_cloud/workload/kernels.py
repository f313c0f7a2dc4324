"""Layer times in half precision from kernels: matrix products, attention, memory traffic, launches.

Each generation of accelerators has two shares of the peak rate, for products and for attention; everything else is
common. The constants are fitted on published training runs (benchmarks/simulator_accuracy/fit_kernels.py).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload.features import ELEMENT_BYTES
from sailor_cloud.workload.models.layers import Attention, LayerCosts, gathered_share, layer_costs

FILE = "kernels.csv"
PRECISIONS = (Precision.BF16, Precision.FP16)
# One direction of a x16 slot in bytes per second, by PCIe generation (PCI-SIG rates after encoding).
PCIE_BYTES_PER_S = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
# The share of it that devices reach if all send at once: geometric mean of RTX-2080 and Titan RTX (0.39) and RTX-3090
# (0.04), four pairs each (bandwidth_profiles/curves.csv).
_PCIE_SHARE = 0.18
# How sharply the longer of GPU work and launches dominates; if they are close, both count.
_SHARPNESS = 6.0
# Elements of the result that one multiprocessor computes at a time: the largest tile of cuBLAS, 128 x 256.
_TILE = 128.0 * 256.0
# The compute capability on which torch's modules were timed.
MODULES_CAPABILITY = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchModules:
    """The cost of layers as torch modules of transformers, one kernel per operation; replaces the common constants.

    `launch_factor` multiplies the common launch time. `layer_norm_passes` and `rms_norm_passes`: how often a block's
    activations cross the memory, by the kind of its norms. `logit_bytes` per logit, `update_bytes` per parameter.
    `sum_bytes`: per parameter and microbatch, for gradients accumulated in single precision. `product_factor` and
    `attention_factor`: kernel times of torch's version on compute capability 9, relative to those of published runs.
    """

    launch_factor: float
    layer_norm_passes: float
    rms_norm_passes: float
    logit_bytes: float
    update_bytes: float
    sum_bytes: float
    product_factor: float
    attention_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRates:
    """A program's own kernels on accelerators of a compute capability and newer ones.

    `product_factor` and `attention_factor`: times of products and of attention without kept scores, relative to those
    by the generation's constants.
    """

    compute_capability: float
    product_factor: float
    attention_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How a training program runs a layer; `name` is that of the engine.

    `modules`: it runs layers as modules of torch. `fused`: one kernel runs several element-wise operations.
    `sequence_parallel`: tensor-parallel devices divide norms and dropout. `launch_factor` multiplies the common time to
    launch a layer's kernels; `more_launch_s` is added to it, per block and its three passes. `exposed`: the share of a
    collective that products do not hide; `collective_s`: the seconds that each takes beyond its steps. `rates`: of its
    own kernels, oldest accelerators first. `logit_bytes`: what its loss moves per logit, if not the common bytes.
    """

    name: str = ""
    attention: Attention = Attention.FLASH
    fused: bool = False
    modules: TorchModules | None = None
    sequence_parallel: bool = False
    launch_factor: float = 1.0
    more_launch_s: float = 0.0
    exposed: float = 1.0
    collective_s: float = 0.0
    rates: tuple[OwnRates, ...] = ()
    logit_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The rates of kernels on one generation of accelerators.

    `matmul_share` and `flash_share` are shares of the peak rate. A product is cut into tiles; each of the device's
    multiprocessors of `processor_tflops` computes one at a time. `partial_wave`: the idle share of a round.
    `matmul_passes`, `score_passes`, `eager_passes` and `fused_passes`: how often operands, kept scores and activations
    cross the memory; writing them counts as one. `logit_bytes` per logit, `update_bytes` per parameter. `launch_s` per
    block and its three passes; tensor parallelism adds `launch_tensor_parallel_s`. An all-reduce of tensor parallelism
    takes `step_s` for each of its 2 * (tp - 1) steps, and its bytes at `link_share` of the link.
    """

    matmul_share: float
    flash_share: float
    processor_tflops: float
    partial_wave: float
    matmul_passes: float
    score_passes: float
    eager_passes: float
    fused_passes: float
    logit_bytes: float
    update_bytes: float
    launch_s: float
    launch_tensor_parallel_s: float
    link_share: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Constants of the accelerators of one compute capability.

    `accelerators` and `precisions`: those of the runs in the fit; both empty for borrowed constants. `programs`: the
    engines with five runs or more in it.
    """

    compute_capability: float
    constants: Constants
    accelerators: tuple[str, ...]
    precisions: tuple[Precision, ...]
    programs: tuple[str, ...]
    source: str
    as_of: date

    def measured(self, accelerator: Accelerator, precision: Precision) -> bool:
        """Return whether the fit had runs of an accelerator and runs in a precision."""
        return accelerator.name in self.accelerators and precision in self.precisions


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Seconds per layer of one microbatch; `update_s` is for one optimizer step.

    `exchange_share`: the share of a block's seconds for tensor-parallel all-reduces.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    update_s: NDArray[np.float64]
    exchange_share: float


def read_generations(path: Path) -> tuple[Generation, ...]:
    """Read the table of generations, by compute capability. Raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_generation(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a table of kernel constants: {error!r}") from error
    return tuple(sorted(rows, key=lambda row: row.compute_capability))


def generation_of(accelerator: Accelerator, generations: tuple[Generation, ...]) -> Generation:
    """Return the newest generation that is not newer than an accelerator, or the oldest for older accelerators."""
    capability = accelerator.compute_capability or 0.0
    older = [each for each in generations if each.compute_capability <= capability]
    return older[-1] if older else generations[0]


def kernel_times(
    accelerator: Accelerator,
    decoder: Decoder,
    constants: Constants,
    *,
    sequence_length: int,
    microbatch_size: int,
    tp: int,
    precision: Precision,
    program: Program,
    ring_bytes_per_s: float | None = None,
) -> KernelTimes:
    """Return layer times: per pass the longer of GPU work, with exposed collectives, and launches.

    `ring_bytes_per_s`: the measured rate of a ring over `tp` devices; None takes the links' (`ring_rate`). Raises
    RequestError if the accelerator lacks the precision.
    """
    peak = accelerator.peak_tflops(precision)
    if peak is None:
        raise RequestError(f"{accelerator.name} can't compute in {precision}")
    costs = layer_costs(decoder, sequence_length, tp, attention=program.attention)
    constants = _as_run(constants, program, accelerator, decoder)
    work = _Work(
        costs=costs,
        decoder=decoder,
        constants=constants,
        program=program,
        tokens=float(sequence_length * microbatch_size),
        microbatch_size=microbatch_size,
        width=ELEMENT_BYTES[precision],
        flops_per_s=peak * 1e12,
        bytes_per_s=accelerator.memory_bandwidth_gb_per_s * 1e9,
    )
    reduced_bytes = work.tokens * decoder.hidden_size * work.width
    rate = ring_bytes_per_s or ring_rate(accelerator, tp, constants.link_share)
    collective = _collective_s(constants, program, tp, reduced_bytes / rate)
    forward, backward = np.empty(decoder.layers), np.empty(decoder.layers)
    # A block reduces twice in each pass; the embedding once, in the forward pass.
    forward[0] = work.embedding_s() + collective / 2.0
    backward[0] = 2.0 * work.embedding_s()
    launch = (constants.launch_s + (constants.launch_tensor_parallel_s if tp > 1 else 0.0)) * program.launch_factor
    launch += program.more_launch_s
    gathered, split = gathered_share(decoder)
    forward[1:-1] = _longer(work.block_s(backward=False) + collective * (1.0 + gathered / 2.0), launch / 3.0)
    backward[1:-1] = _longer(work.block_s(backward=True) + collective * (1.0 + split / 2.0), launch * 2.0 / 3.0)
    forward[-1], backward[-1] = work.head_s(backward=False), work.head_s(backward=True)
    if program.modules is not None:
        backward += costs.trainable * (program.modules.sum_bytes / work.bytes_per_s)
    update = costs.trainable.astype(np.float64) * (constants.update_bytes / work.bytes_per_s)
    block_s = float(forward[1] + backward[1])
    return KernelTimes(
        forward_s=forward, backward_s=backward, update_s=update, exchange_share=min(1.0, 2.0 * collective / block_s)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of one microbatch on one device."""

    costs: LayerCosts
    decoder: Decoder
    constants: Constants
    program: Program
    tokens: float
    microbatch_size: int
    width: int
    flops_per_s: float
    bytes_per_s: float

    def embedding_s(self) -> float:
        return 2.0 * self.tokens * self.decoder.embedding_size * self.width / self.bytes_per_s

    def block_s(self, *, backward: bool) -> float:
        """Seconds of a block's GPU work in one pass."""
        elementwise = self.constants.fused_passes if self.program.fused else self.constants.eager_passes
        # All passes of a block over its activations count in `elementwise`; a third of them is forward.
        passes = elementwise / 3.0 * (2.0 if backward else 1.0)
        moved = passes * self._activation_elements() * self.width / self.bytes_per_s
        products = sum(count * self._product_s(n, k, backward) for n, k, count in self._factors())
        return products + moved + self._attention_s(backward)

    def head_s(self, *, backward: bool) -> float:
        logits = self.microbatch_size * float(self.costs.loss_elements[-1])
        moved = self.constants.logit_bytes / 3.0 * (2.0 if backward else 1.0) * logits / self.bytes_per_s
        return self._product_s(logits / self.tokens, float(self.decoder.embedding_size), backward) + moved

    def _factors(self) -> tuple[tuple[float, float, float], ...]:
        """Columns and rows of a block's weights on one device, and how many of each."""
        decoder, tp = self.decoder, self.costs.tp
        hidden = float(decoder.hidden_size)
        query = decoder.heads * decoder.head_size / tp
        projected = query + 2.0 * decoder.kv_heads * decoder.head_size / tp
        wide, columns = decoder.active_ffn_size / tp, 2.0 if decoder.gated_mlp else 1.0
        return ((projected, hidden, 1.0), (hidden, query, 1.0), (wide, hidden, columns), (hidden, wide, 1.0))

    def _product_s(self, columns: float, rows: float, backward: bool) -> float:
        """Seconds of tokens times a weight; in the backward pass, of the gradients of both factors."""
        if backward:
            return self._matmul_s(self.tokens, rows, columns) + self._matmul_s(rows, columns, self.tokens)
        return self._matmul_s(self.tokens, columns, rows)

    def _matmul_s(self, m: float, n: float, k: float) -> float:
        """Seconds of an [m, k] by [k, n] product: its tiles, the idle part of their last wave, and the memory."""
        constants = self.constants
        computed = 2.0 * m * n * k / self._matmul_rate()
        processor = constants.matmul_share * constants.processor_tflops * 1e12
        empty = constants.partial_wave * 2.0 * _TILE * k / processor
        moved = constants.matmul_passes * (m * n + n * k + m * k) * self.width / self.bytes_per_s
        return computed + empty + moved

    def _matmul_rate(self) -> float:
        return self.constants.matmul_share * self.flops_per_s

    def _attention_s(self, backward: bool) -> float:
        passes = 2.0 if backward else 1.0
        flops = self.costs.backward_flops if backward else self.costs.forward_flops
        scored = float((flops - passes * self.costs.matmul_flops)[1]) * self.microbatch_size
        if self.program.attention is not Attention.PLAIN:
            return scored / (self.constants.flash_share * self.flops_per_s)
        kept = float(self.costs.score_elements[1]) * self.microbatch_size * self.width
        return scored / self._matmul_rate() + passes / 3.0 * self.constants.score_passes * kept / self.bytes_per_s

    def _activation_elements(self) -> float:
        """Elements of a block's activations: whole on every device unless sequence-parallel, and divided ones."""
        decoder, tp = self.decoder, self.costs.tp
        whole = 4.0 * decoder.hidden_size / (tp if self.program.sequence_parallel else 1)
        wide = decoder.active_ffn_size * (3.0 if decoder.gated_mlp else 2.0)
        return self.tokens * (whole + (4.0 * decoder.hidden_size + wide) / tp)


def _as_run(constants: Constants, program: Program, accelerator: Accelerator, decoder: Decoder) -> Constants:
    """Return the constants of a generation, with those of the program or of torch's modules replaced."""
    capability, modules = accelerator.compute_capability or 0.0, program.modules
    if modules is None:
        own = [each for each in program.rates if each.compute_capability <= capability]
        return replace(
            constants,
            matmul_share=constants.matmul_share / (own[-1].product_factor if own else 1.0),
            flash_share=constants.flash_share / (own[-1].attention_factor if own else 1.0),
            logit_bytes=constants.logit_bytes if program.logit_bytes is None else program.logit_bytes,
        )
    newer = capability >= MODULES_CAPABILITY
    return replace(
        constants,
        matmul_share=constants.matmul_share / (modules.product_factor if newer else 1.0),
        flash_share=constants.flash_share / (modules.attention_factor if newer else 1.0),
        eager_passes=modules.rms_norm_passes if decoder.rms_norm else modules.layer_norm_passes,
        logit_bytes=modules.logit_bytes,
        update_bytes=modules.update_bytes,
        launch_s=constants.launch_s * modules.launch_factor,
        launch_tensor_parallel_s=constants.launch_tensor_parallel_s * modules.launch_factor,
    )


def _longer(work_s: float, launch_s: float) -> float:
    longest = max(work_s, launch_s)
    return float(longest * ((work_s / longest) ** _SHARPNESS + (launch_s / longest) ** _SHARPNESS) ** (1 / _SHARPNESS))


def ring_rate(accelerator: Accelerator, devices: int, link_share: float) -> float:
    """Return the bytes per second of rings over some devices of a node, by the links that those share.

    NVLink reaches `link_share` of one direction. Against measurements: 124 GB/s over four V100 with two links per pair
    (Jean Zay) are 6 % less, 231 GB/s over eight A100 12 % less (published_collectives.csv).
    """
    nvlink = accelerator.ring_gb_per_s(devices)
    if nvlink:
        return nvlink * 1e9 / 2.0 * link_share
    return PCIE_BYTES_PER_S[accelerator.pcie_generation or 3] * _PCIE_SHARE


def _collective_s(constants: Constants, program: Program, tp: int, transfer_s: float) -> float:
    """Return the exposed seconds of the two all-reduces of one pass, as rings over the devices of a node.

    transfer_s: of all bytes at the rate of the ring.
    """
    if tp == 1:
        return 0.0
    step = constants.step_s + transfer_s / tp
    return 2.0 * program.exposed * (program.collective_s + 2.0 * (tp - 1) * step)


def _generation(row: dict[str, str]) -> Generation:
    return Generation(
        compute_capability=float(row["compute_capability"]),
        constants=Constants(**{field.name: float(row[field.name]) for field in fields(Constants)}),
        accelerators=tuple(row["accelerators"].split()),
        precisions=tuple(Precision(name) for name in row["precisions"].split()),
        programs=tuple(row["programs"].split()),
        source=row["source"],
        as_of=date.fromisoformat(row["as_of"]),
    )
