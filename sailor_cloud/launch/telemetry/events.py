"""Agents' events as they come from nodes and files: a line whose fields have wrong types is no event."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

AgentEvent = dict[str, Any]

# Fields that an event of a kind must have; other fields have defaults.
_NEEDED = {
    "step": ("step", "loss", "iteration_s"),
    "verified": ("steps", "max_abs_difference", "tolerance"),
    "calibrated": ("iteration_s", "iterations"),
    "preflight": ("devices", "links"),
    "checkpoint": ("step", "path"),
    "traffic": ("rank", "step", "sent"),
    "rank_dead": ("rank",),
    "rank_hung": ("rank",),
    "device_fault": ("reason",),
    "stopped": ("reason",),
    "data": ("unigram_entropy",),
}
# Larger numbers are damage: no run lasts 30 years or sends an exabyte. A command may count tokens as steps.
_MOST_S = 1e9
_MOST = 10**18
_MOST_ITERATIONS = 2**63 - 1


def parse_line(line: bytes, *, node: str) -> AgentEvent | None:
    """Return the event of a line, or None if the line is no event.

    A line may be lost when a disk is full or a node loses power; that must not end a run.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        logger.warning("node %s: an event line of %d bytes is not JSON", node, len(line))
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        logger.warning("node %s: an event line of %d bytes names no event", node, len(line))
        return None
    missing = [name for name in _NEEDED.get(event["event"], ()) if name not in event]
    wrong = [name for name, valid in _VALID.items() if name in event and not valid(event[name])]
    if missing or wrong:
        logger.warning("node %s: event %s: missing %s, invalid %s", node, event["event"], missing, wrong)
        return None
    return event


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any, least: int = 0, most: int = _MOST) -> bool:
    return isinstance(value, int) and _number(value) and least <= value <= most


def _seconds(value: Any) -> bool:
    return _number(value) and 0 <= value <= _MOST_S


def _amount(value: Any) -> bool:
    return _number(value) and 0 <= value <= _MOST


def _optional(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or valid(value)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _sent(value: Any) -> bool:
    return isinstance(value, dict) and all(_whole(nbytes) for nbytes in value.values())


def _written(value: Any) -> bool:
    """Return whether a value is a list of each rank's files and bytes."""
    pairs = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    return pairs and all(_whole(number) for pair in value for number in pair)


def _devices(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) and _text(one.get("name")) for one in value)


def _links(value: Any) -> bool:
    rows = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    return rows and all(
        _text(one.get("src_node")) and _text(one.get("dst_node")) and _amount(one.get("bytes_per_s")) for one in value
    )


# Checked in events of every kind; fields that nobody computes with are left out.
_VALID: dict[str, Callable[[Any], bool]] = {
    "seq": _whole,
    "ts": lambda value: _number(value) and 0 <= value <= 100 * _MOST_S,
    "generation": _optional(_whole),
    "rank": _whole,
    "step": _optional(lambda value: _whole(value, least=-_MOST, most=_MOST_ITERATIONS)),
    "steps": _whole,
    "loss": _optional(_number),
    "unigram_entropy": _optional(_number),
    "max_abs_difference": _number,
    "loss_difference": _number,
    "norm_difference": _number,
    "tolerance": _number,
    "iterations": lambda value: _whole(value, least=1, most=_MOST_ITERATIONS),
    "iteration_s": _seconds,
    "compute_s": _number,
    "transfer_s": _number,
    "bubble_s": _number,
    "sync_s": _number,
    "silent_s": _seconds,
    "ran_s": _seconds,
    "tokens_since_last": _amount,
    "most_memory_bytes": _optional(_amount),
    "sent": _sent,
    "written": _optional(_written),
    "devices": _devices,
    "links": _links,
    "path": _text,
    "reason": _text,
    "tail": _text,
    "what": _text,
    "nodes": lambda value: isinstance(value, list),
    "changed": _optional(lambda value: isinstance(value, list)),
}
