"""The output of a command: a log for each of its processes, and metrics from lines of JSON."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# torchrun's prefix of its processes' lines: their role and local rank.
_PREFIX = re.compile(rb"^\[[A-Za-z_-]*?(\d+)\]:")
_TORCHRUN_ENDS = "torch/distributed/elastic/multiprocessing/api.py"
_TAIL_BYTES = 12_000
_LONGEST_LINE = 1 << 20


class Output:
    """Processes a command's output as it arrives."""

    def __init__(self, log: Callable[[int], Path], first_rank: int, processes: int, *, leads: bool) -> None:
        """`leads`: this is the first node, whose processes report the steps; others may repeat them."""
        self._log, self._first_rank, self._processes, self._leads = log, first_rank, processes, leads
        self._torn = b""
        self._tail = b""
        self._step: float | None = None
        self._at = time.monotonic()
        self.lines = 0
        # The newest steps in a row whose loss is not a number.
        self.nan_lines = 0

    def take(self, data: bytes) -> list[dict[str, Any]]:
        """Add data to the logs; return the reported steps."""
        *whole, self._torn = (self._torn + data).split(b"\n")
        if len(self._torn) > _LONGEST_LINE:
            whole, self._torn = [*whole, self._torn], b""
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        # A progress bar may write no line for hours.
        self.lines += len(whole) + data.count(b"\r")
        by_rank: dict[int, list[bytes]] = {}
        steps = []
        for line in whole:
            prefix = _PREFIX.match(line)
            # Other prefixes that look alike, such as torch's [rank12]:, name no process of this node.
            prefix = prefix if prefix and int(prefix[1]) < self._processes else None
            rank = self._first_rank + (int(prefix[1]) if prefix else 0)
            text = line[prefix.end() :] if prefix else line
            by_rank.setdefault(rank, []).append(text)
            step = self._metrics(text.strip())
            if step is not None:
                steps.append(step)
        for rank, lines in by_rank.items():
            with self._log(rank).open("ab") as file:
                file.write(b"\n".join([*lines, b""]))
        return steps

    def end(self) -> list[dict[str, Any]]:
        """Process a last line without its end."""
        return self.take(b"\n") if self._torn else []

    @property
    def tail(self) -> str:
        """The end of the output, without steps and without torchrun's long report on a failed process."""
        lines = []
        for line in self._tail.decode(errors="replace").splitlines():
            if _TORCHRUN_ENDS in line:
                lines.append(line.rpartition("] ")[2])
                break
            if '"step"' not in line:
                lines.append(line)
        return "\n".join(lines)

    def _metrics(self, line: bytes) -> dict[str, Any] | None:
        """Return a step that a line reports for the first time: {"step", "loss", "tokens"}, the last two if given.

        `tokens` are those of all processes since the previous line; the event has them as `tokens_since_last`.
        """
        if not self._leads or not line.startswith(b"{") or b'"step"' not in line:
            return None
        try:
            found = json.loads(line)
        except ValueError:
            return None
        step = found.get("step")
        if not _number(step) or (self._step is not None and step <= self._step):
            return None
        now = time.monotonic()
        # The first reported step has no pace: the time before it was the start-up.
        iterations = 1 if self._step is None else max(1, round(step - self._step))
        seconds = (now - self._at) / iterations
        first = self._step is None
        self._step, self._at = step, now
        event: dict[str, Any] = {"event": "step", "step": int(step), "iteration_s": seconds, "iterations": iterations}
        loss = found.get("loss")
        event["loss"] = float(loss) if _number(loss) else None
        if isinstance(loss, float) and not math.isfinite(loss):
            # JSON has no such number.
            event["loss_is_nan"] = True
            self.nan_lines += 1
        elif loss is not None:
            self.nan_lines = 0
        if _number(found.get("tokens")) and found["tokens"] >= 0:
            event["tokens_since_last"] = float(found["tokens"])
        return {**event, "first": True} if first else event


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e18
