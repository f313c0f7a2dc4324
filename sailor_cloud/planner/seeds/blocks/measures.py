"""The measures of options as arrays, and which options dominate others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How the measures of a set are computed from those of its options.
ADDED = ("stages", "speed", "cut_s", "room", "usd_per_hour", "nodes", "lost_per_hour", "sum_usd")
LARGEST = ("sum_s", "longest_s", "out_s", "far_s", "tied_s", "tp_most")
SMALLEST = ("layer_s", "large_s", "tp_least", "block_s", "ends")
NAMES = (*ADDED, *LARGEST, *SMALLEST)
_ADDED = slice(0, len(ADDED))
_LARGEST = slice(_ADDED.stop, _ADDED.stop + len(LARGEST))
_SMALLEST = slice(_LARGEST.stop, _LARGEST.stop + len(SMALLEST))


class _Row:
    """One row of a table of measures, by its name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.number = NAMES.index(name)

    def __get__(self, measures: Measures, owner: type) -> Floats:
        return np.asarray(measures.values[self.number])


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of options: values [names, options], rows and zones [options]; times are of one microbatch.

    speed: whole models per second, by all stages together. layer_s: the longest layer on the fastest stage; block_s:
    one in the middle of the model on any stage. sum_s: the all-reduce of the share of the model that a stage computes
    in a second; large_s: that of the layer with most parameters; sum_usd: that of the whole model; tied_s: that of a
    tied weight between nodes. cut_s: all cuts between the stages, of which longest_s is the longest. out_s, far_s: a
    cut to a node of the same zone, and of another one. room: the share of the layers that fit in memory if all stages
    were in the middle of the model; ends: by how much less fits in the first and the last stage. tp_least, tp_most: the
    smallest and the largest tp. rows, zones: those in use, as bits.
    """

    values: Floats
    rows: Ints
    zones: Ints

    stages = _Row()
    speed = _Row()
    layer_s = _Row()
    block_s = _Row()
    sum_s = _Row()
    large_s = _Row()
    sum_usd = _Row()
    cut_s = _Row()
    longest_s = _Row()
    out_s = _Row()
    far_s = _Row()
    room = _Row()
    ends = _Row()
    tied_s = _Row()
    usd_per_hour = _Row()
    nodes = _Row()
    lost_per_hour = _Row()
    tp_least = _Row()
    tp_most = _Row()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, kept: Ints) -> Measures:
        return Measures(np.take(self.values, kept, axis=1), self.rows[kept], self.zones[kept])

    def having(self, **changed: Floats) -> Measures:
        """Return the measures with some names replaced."""
        values = self.values.copy()
        for name, value in changed.items():
            values[NAMES.index(name)] = value
        return Measures(values, self.rows, self.zones)

    def and_(self, others: Measures) -> Measures:
        """Return the measures of sets of two, entry by entry."""
        one, other = self.values, others.values
        values = one.copy()
        values[_ADDED] += other[_ADDED]
        np.maximum(one[_LARGEST], other[_LARGEST], out=values[_LARGEST])
        np.minimum(one[_SMALLEST], other[_SMALLEST], out=values[_SMALLEST])
        return Measures(values, self.rows | others.rows, self.zones | others.zones)


def joined(parts: Sequence[Measures]) -> Measures:
    """Return the measures of all parts, concatenated."""
    return Measures(
        np.concatenate([part.values for part in parts], axis=1),
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.zones for part in parts]),
    )


def unbeaten(measures: Measures) -> Ints:
    """Return the options that no other one of the same rows equals or beats in every measure; of equals, the first."""
    if not len(measures):
        return np.zeros(0, dtype=np.int64)
    # All are to be minimised; speed is that of all stages together.
    table = np.stack(
        [
            -measures.speed,
            measures.layer_s,
            measures.stages,
            measures.sum_s,
            measures.large_s,
            measures.cut_s,
            measures.out_s,
            -np.minimum(measures.room - measures.ends, 1.0),
            measures.usd_per_hour,
            measures.lost_per_hour,
        ]
    )
    places = _places(np.round(table, 12))
    kept = []
    for rows in sorted(set(measures.rows.tolist())):
        there = np.flatnonzero(measures.rows == rows)
        # A dominated option has the larger sum of ranks, or the same sum and a later position.
        there = there[np.argsort(places[:, there].sum(axis=0, dtype=np.int64), kind="stable")]
        number = np.arange(len(there), dtype=places.dtype)
        beats = number[:, None] < number[None]
        for measure in places[:, there]:
            beats &= measure[:, None] <= measure[None]
        kept.append(there[~beats.any(axis=0)])
    return np.sort(np.concatenate(kept))


def _places(values: Floats) -> NDArray[Any]:
    """Return the ranks of values in their row, equal ones sharing one: small numbers compare fastest."""
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    steps = np.zeros(values.shape, dtype=np.int32)
    steps[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.empty(values.shape, dtype=np.int32)
    np.put_along_axis(places, order, steps.cumsum(axis=1, dtype=np.int32), axis=1)
    return places.astype(np.int16) if values.shape[1] < np.iinfo(np.int16).max else places
