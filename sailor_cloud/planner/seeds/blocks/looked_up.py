"""Computes the measures of all options at once from single values that were looked up."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.seeds.blocks.measures import NAMES

Floats = NDArray[np.float64]

_Value = TypeVar("_Value")


class LookedUp(NamedTuple, Generic[_Value]):
    """The inputs of an option's measures: of its plain stages, of the stage for the head, and of its block."""

    whole_s: _Value
    layer_s: _Value
    block_s: _Value
    room: _Value
    head_whole_s: _Value
    head_layer_s: _Value
    head_block_s: _Value
    head_room: _Value
    ends: _Value
    inside_s: _Value
    out_s: _Value
    sum_s: _Value
    tied_s: _Value
    large_s: _Value
    ring_usd: _Value
    usd_per_hour: _Value
    lost_per_hour: _Value
    last_stages: _Value
    per_node: _Value
    nodes_each: _Value
    alone: _Value
    tp: _Value


def last_and_more(found: LookedUp[Floats], replicas: int) -> tuple[Floats, Floats]:
    """Return most measures of options' last blocks, and what every further block adds to them; [names, options] each.

    For `longest_s`, the second one is that of several blocks.
    """
    whole_s, alone, per_node = found.whole_s, found.alone, found.per_node
    plain, none = found.last_stages - alone, np.zeros(len(alone))
    usd, lost = found.nodes_each * found.usd_per_hour, found.nodes_each * found.lost_per_hour
    inside, out = found.inside_s, found.out_s
    pairs = {
        "stages": (found.last_stages, per_node),
        "speed": (plain / whole_s + alone / found.head_whole_s, per_node / whole_s),
        "cut_s": ((found.last_stages - 1) * inside, (per_node - 1) * inside + out),
        "room": (plain * found.room + alone * found.head_room, per_node * found.room),
        "usd_per_hour": (usd, usd),
        "nodes": (found.nodes_each, found.nodes_each),
        "lost_per_hour": (lost, lost),
        "sum_usd": (found.ring_usd * 2.0 * (replicas - 1) / replicas, none),
        "sum_s": (found.sum_s / np.minimum(whole_s, found.head_whole_s), none),
        "longest_s": (inside, np.maximum(inside, out)),
        "out_s": (out, none),
        "far_s": (none, none),
        "tied_s": (found.tied_s, none),
        "tp_most": (found.tp, none),
        "layer_s": (np.minimum(found.layer_s, found.head_layer_s), none),
        "large_s": (found.large_s, none),
        "ends": (found.ends, none),
        "tp_least": (found.tp, none),
        "block_s": (found.block_s, none),
    }
    first, more = zip(*(pairs[name] for name in NAMES), strict=True)
    return np.array(first), np.array(more)
