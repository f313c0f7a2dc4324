"""What options bring and cost, as arrays, and which of them are worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What options bring and cost, one entry each; all times are of one microbatch.

    speed: whole models per second, by all stages together. layer_s: the longest layer by the fastest stage; block_s:
    one in the middle of the model by any stage. sum_s: the gradient sum of the share of the model for which a stage
    computes for a second; large_s: that of the layer with most parameters; sum_usd: that of the whole model; tied_s:
    that of a tied weight between nodes. cut_s: all cuts between the stages, of which longest_s is the longest. out_s,
    far_s: a cut to a node of the same zone, and of another one. room: the share of the layers that all stages have
    memory for. tp_least, tp_most: the smallest and the largest tp. rows, zones: what is used of them, as bits.
    """

    stages: Floats
    speed: Floats
    layer_s: Floats
    block_s: Floats
    sum_s: Floats
    large_s: Floats
    sum_usd: Floats
    cut_s: Floats
    longest_s: Floats
    out_s: Floats
    far_s: Floats
    room: Floats
    tied_s: Floats
    usd_per_hour: Floats
    nodes: Floats
    lost_per_hour: Floats
    tp_least: Floats
    tp_most: Floats
    rows: Ints
    zones: Ints

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, kept: Ints) -> Measures:
        return Measures(**{part.name: getattr(self, part.name)[kept] for part in fields(Measures)})


def joined(parts: Sequence[Measures]) -> Measures:
    """Return the measures of all parts, one after the other."""
    return Measures(
        **{part.name: np.concatenate([getattr(each, part.name) for each in parts]) for part in fields(Measures)}
    )


def unbeaten(measures: Measures) -> Ints:
    """Return the options that no other one of the same rows equals or beats in every way, the first of equals."""
    if not len(measures):
        return np.zeros(0, dtype=np.int64)
    # Smaller is better in all; speed is that of all stages together.
    table = np.stack(
        [
            -measures.speed,
            measures.layer_s,
            measures.stages,
            measures.sum_s,
            measures.large_s,
            measures.cut_s,
            measures.out_s,
            -np.minimum(measures.room, 1.0),
            measures.usd_per_hour,
            measures.lost_per_hour,
        ]
    )
    rounded = np.round(table, 12)
    kept = []
    for rows in np.unique(measures.rows):
        there = np.flatnonzero(measures.rows == rows)
        part = rounded[:, there]
        beats = np.ones((len(there), len(there)), dtype=bool)
        for measure in part:
            beats &= measure[:, None] <= measure[None]
        equal = beats & beats.T
        number = np.arange(len(there))
        beaten = (beats & ~equal).any(axis=0) | (equal & (number[:, None] < number[None])).any(axis=0)
        kept.append(there[~beaten])
    return np.sort(np.concatenate(kept))
