"""Reads the lines of an agent's event file."""

from __future__ import annotations

import json
import logging
from typing import Any

logger = logging.getLogger(__name__)

AgentEvent = dict[str, Any]

# Fields without which an event of a kind says nothing; those of other kinds are read with a default.
_NEEDED = {
    "step": ("step", "loss", "iteration_s"),
    "verified": ("steps", "max_abs_difference", "tolerance"),
    "calibrated": ("iteration_s", "iterations"),
    "preflight": ("devices", "links"),
    "checkpoint": ("step", "path"),
    "traffic": ("rank", "step", "sent"),
    "rank_dead": ("rank",),
    "rank_hung": ("rank",),
    "stopped": ("reason",),
    "data": ("unigram_entropy",),
}


def parse_line(line: bytes, *, node: str) -> AgentEvent | None:
    """Return the event of one line, or None where the line is none.

    Disks fill up and nodes lose power while they write; a line lost that way must not end a run.
    """
    try:
        event = json.loads(line)
    except ValueError:
        logger.warning("node %s: an event line of %d bytes is not JSON", node, len(line))
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        logger.warning("node %s: an event line of %d bytes names no event", node, len(line))
        return None
    missing = [name for name in _NEEDED.get(event["event"], ()) if name not in event]
    if missing:
        logger.warning("node %s: event %s lacks %s", node, event["event"], ", ".join(missing))
        return None
    return event
