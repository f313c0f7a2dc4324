"""The operations of one rank during an iteration, as spans on the clock of its device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import torch


class Activity(StrEnum):
    """The activity of a span; the names are those of the simulator's timeline."""

    FORWARD = "forward"
    # Whole; in a zero-bubble schedule, the gradient of the stage's input.
    BACKWARD = "backward"
    WEIGHT_GRADIENTS = "weight_gradients"
    RECEIVE_ACTIVATION = "receive_activation"
    RECEIVE_GRADIENT = "receive_gradient"
    SEND = "send"
    SYNC = "sync"
    UPDATE = "update"
    GATHER = "gather"


COMPUTING = (Activity.FORWARD, Activity.BACKWARD, Activity.WEIGHT_GRADIENTS, Activity.UPDATE)
WAITING = (Activity.RECEIVE_ACTIVATION, Activity.RECEIVE_GRADIENT)


class Span(NamedTuple):
    """Seconds count from the last moment that all ranks shared; `microbatch` is -1 without one.

    `chunk`: the index of the stage's range of layers.
    """

    activity: Activity
    microbatch: int
    start_s: float
    end_s: float
    chunk: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Clock:
    """The time of a device.

    On a processor a mark is a time; on a CUDA device it is an event in the stream, because the calls return long before
    the work is done. A mark never waits for the device: a receive that is posted ahead keeps it busy.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"

    def mark(self) -> Any:
        """Return the device's present time."""
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Wait until the device has reached a mark."""
        if self._on_device:
            mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks that the device has reached."""
        return float(start.elapsed_time(end) / 1e3 if self._on_device else end - start)


class Spans:
    """The spans of one iteration.

    Reading them waits for the device, so `read` belongs where the device is idle anyway.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._marks: list[tuple[Activity, int, Any, Any, int]] = []
        self._shared = self._zero = self.mark()

    def begin(self) -> None:
        self._marks.clear()
        self._zero = self._shared

    def share(self) -> None:
        """Record a moment that all ranks pass together, from which the spans of the next iteration count."""
        self._shared = self.mark()

    def mark(self) -> Any:
        """Return the device's present time."""
        return self._clock.mark()

    def note(self, doing: Activity, microbatch: int, start: Any, chunk: int = 0) -> None:
        """Record an activity from a mark until now."""
        self._marks.append((doing, microbatch, start, self.mark(), chunk))

    @contextmanager
    def during(self, doing: Activity, microbatch: int = -1, chunk: int = 0) -> Iterator[None]:
        start = self.mark()
        yield
        self.note(doing, microbatch, start, chunk)

    def read(self) -> list[Span]:
        """Return the spans so far in order of their ends."""
        if self._marks:
            self._clock.wait(self._marks[-1][3])
        zero, seconds = self._zero, self._clock.seconds
        return [
            Span(doing, m, seconds(zero, start), seconds(zero, end), chunk)
            for doing, m, start, end, chunk in self._marks
        ]


def total_s(spans: list[Span], *doings: Activity) -> float:
    """Return the seconds spent on some activities."""
    return sum(span.seconds for span in spans if span.activity in doings)
