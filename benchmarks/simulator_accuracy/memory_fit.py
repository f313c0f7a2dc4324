"""Peak memory as a function of the fitted constants, and their fit over sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from published import Counter, PublishedRun, Recompute
from reference import Measured, plan_of
from scipy.optimize import least_squares

from sailor_cloud.model import plan
from sailor_cloud.model.job import Optimizer
from sailor_cloud.simulator import MemoryTable, Scenario, in_flight, memory_tables
from sailor_cloud.simulator.engines import engine_named, stage_bounds
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.workload import tp_problem
from sailor_cloud.workload.stacks import GPU_OVERHEADS, NO_OVERHEADS, MemoryOverheads

Floats = NDArray[np.float64]

# What a source leaves unsaid is taken as not done.
_RECOMPUTE = {
    Recompute.NONE: plan.Recompute.NONE,
    Recompute.SELECTIVE: plan.Recompute.SELECTIVE,
    Recompute.FULL: plan.Recompute.FULL,
    Recompute.UNKNOWN: plan.Recompute.NONE,
}
# The inputs that the one engine with a stream of its own for gathered inputs has in flight.
SHIPPED_GATHERS = engine_named("nanotron").memory.gathered_inputs
# Errors beyond this count linearly in the fit.
_ROBUST = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All that is fitted: what programs have in common, and how many gathered inputs nanotron has in flight."""

    overheads: MemoryOverheads
    gathers: float


SHIPPED = Constants(overheads=GPU_OVERHEADS, gathers=SHIPPED_GATHERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A run's peak as a function of the constants.

    `bytes_of` has shape [stages, 3]: what stands for itself, then bytes per unit of activations and of scores.
    `gather_bytes` are per input gathered ahead, which only one stage has.
    """

    bytes_of: Floats
    gather_bytes: float
    counter: Counter
    nvlink_gb_per_s: float
    limit_bytes: float

    def predicted_bytes(self, constants: Constants, *, counter: Counter | None = None) -> float:
        """Return what a counter would show of the fullest stage: by default the source's."""
        overheads, counter = constants.overheads, counter or self.counter
        tensors = float((self.bytes_of @ np.array([1.0, overheads.activations, overheads.scores])).max())
        reserve = 0.0 if counter is Counter.ALLOCATED else overheads.reserve
        framework = overheads.framework_bytes(self.nvlink_gb_per_s) if counter is Counter.DEVICE else 0
        least = tensors * (1.0 + reserve * overheads.fragments) + framework
        held = (tensors + constants.gathers * self.gather_bytes) * (1.0 + reserve) + framework
        return min(held, max(self.limit_bytes, least))

    def fits(self, constants: Constants) -> bool:
        return self.predicted_bytes(constants, counter=Counter.DEVICE) <= self.limit_bytes


def peak_of_run(run: PublishedRun, *, nvlink: float, limit_bytes: float) -> Peak:
    """Raises ValueError for a layout that the model can't have or that isn't stated."""
    if run.pp > run.decoder.blocks:
        raise ValueError(f"{run.pp} stages for {run.decoder.blocks} blocks")
    problem = tp_problem(run.decoder, run.tp)
    if problem is not None:
        raise ValueError(problem)
    if not run.zero_stated and run.dp > 1:
        raise ValueError("zero_stage is not stated")
    bounds = np.array(stage_bounds(run.engine.split, run.decoder, run.pp))
    held = in_flight(run.pp, np.arange(run.pp), run.microbatches)

    def table(overheads: MemoryOverheads) -> MemoryTable:
        kind = _RECOMPUTE[run.recompute]
        return memory_tables(
            run.decoder,
            run.engine,
            sequence_length=run.sequence_length,
            precision=run.precision,
            optimizer=Optimizer.ADAMW,
            tp=run.tp,
            microbatch_size=run.microbatch_size,
            kinds=(kind,),
            zero_stage=run.zero_stage,
            overheads=overheads,
            attention=run.engine.attention,
            nvlink_gb_per_s=None,
            limit_bytes=0,
        )[kind]

    def tensors(activations: float, scores: float) -> Floats:
        each = table(replace(NO_OVERHEADS, activations=activations, scores=scores))
        return np.asarray(each.needed_bytes(bounds[:-1], bounds[1:], in_flight=held, replicas=run.dp), dtype=np.float64)

    counted, gathers = tensors(0.0, 0.0), run.engine.memory.gathered_inputs
    return Peak(
        bytes_of=np.stack([counted, tensors(1.0, 0.0) - counted, tensors(0.0, 1.0) - counted], axis=1),
        gather_bytes=table(NO_OVERHEADS).gathered_bytes / gathers if gathers and run.pp == 1 else 0.0,
        counter=run.counter,
        nvlink_gb_per_s=nvlink,
        limit_bytes=limit_bytes,
    )


def peak_of_measured(row: Measured, scenario: Scenario) -> Peak:
    """Return the peak of a measured configuration, whose activations were measured, too."""
    layout = lay_out(*plan_of(row, scenario))
    counted = []
    for seat in layout.seats:
        held = int(in_flight(len(row.layers), seat.index, row.microbatches))
        table, stage = replace(seat.table.memory, fragments=0.0, framework_bytes=0), seat.stage
        counted.append(table.needed_bytes(stage.first_layer, stage.end_layer, in_flight=held, replicas=row.replicas))
    parts = [seat.table.accelerator for seat in layout.seats]
    return Peak(
        bytes_of=np.array([[float(nbytes), 0.0, 0.0] for nbytes in counted]),
        gather_bytes=0.0,
        counter=Counter.DEVICE,
        nvlink_gb_per_s=max(part.nvlink_gb_per_s or 0.0 for part in parts),
        limit_bytes=min(seat.table.limit_bytes for seat in layout.seats),
    )


def fit(peaks: Sequence[Peak], actual: Floats, weights: Floats, *, start: Constants = SHIPPED) -> Constants:
    """Return the constants of least robust relative errors; `weights` are per row."""
    first = start.overheads
    scale = np.array([1.0, 1.0, 0.1, 1e7, 100.0])

    def constants(values: Floats) -> Constants:
        activations, scores, reserve, link, gathers = (float(value) for value in values * scale)
        return Constants(
            overheads=MemoryOverheads(
                activations=activations,
                scores=scores,
                reserve=reserve,
                fragments=first.fragments,
                link_bytes_per_gb_per_s=link,
                least_framework_bytes=first.least_framework_bytes,
            ),
            gathers=gathers,
        )

    def errors(values: Floats) -> Floats:
        now = constants(values)
        predicted = np.array([peak.predicted_bytes(now) for peak in peaks])
        return np.asarray(np.log(predicted / actual) * weights)

    begin = [first.activations, first.scores, first.reserve, first.link_bytes_per_gb_per_s]
    found = least_squares(
        errors,
        np.array([*begin, start.gathers]) / scale,
        bounds=(np.array([1.0, 1.0, 0.0, 0.0, 0.0]), np.array([2.0, 2.5, 4.0, 1.0, 2.0])),
        loss="soft_l1",
        f_scale=_ROBUST,
    )
    return constants(found.x)
