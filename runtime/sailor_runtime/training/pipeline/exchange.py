"""Exchanges between the holders of a parameter: all-reduces, and gathers of weights that each updated in part.

Across zones every byte crosses a border once: a zone adds up its ranks' values before it sends them to another, and
distributes what it receives. Point-to-point messages do that on every backend; inside one zone NCCL has its own
collectives. gloo's reduce-scatter sends as much as its all-reduce, so it is not used.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad


class Exchange:
    """The holders of some parameters, as one of them sees them; they are numbered in the order of their ranks."""

    def __init__(self, ranks: Sequence[int], rank: int, zones: Sequence[str], group: Any, *, native: bool) -> None:
        """`zones`: of each holder. `native`: the backend has its own collectives that send no more than needed."""
        self.group = group
        self._ranks = tuple(ranks)
        self._index = self._ranks.index(rank)
        by_zone = {zone: [i for i, each in enumerate(zones) if each == zone] for zone in dict.fromkeys(zones)}
        self._zone = by_zone.pop(zones[self._index])
        self._others = list(by_zone.values())
        self._native = native and not self._others
        self._led = self._led_by(self._index)

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def crosses(self) -> bool:
        """Whether the holders are in several zones, at least one with several holders."""
        return bool(self._others) and self.size > len(self._others) + 1

    def sum_parts(self, flat: Tensor, wire: torch.dtype) -> Tensor:
        """Return the sum over all holders of this rank's part of `flat`, which is overwritten.

        Parts are those of `flat.tensor_split`, one per holder; native collectives need equally long ones. They are sent
        in the format `wire` and added up in that of `flat`; no collective can do that if the two differ.
        """
        parts = flat.tensor_split(self.size)
        own = parts[self._index]
        if self._native and wire == flat.dtype:
            total = torch.empty_like(own)
            dist.reduce_scatter_single(total, flat, group=self.group)
            return total
        for to, source in self._rounds():
            come = [(number, torch.empty_like(parts[number], dtype=wire)) for number in self._led]
            self._swap(
                [(self._ranks[to], number, parts[number].to(wire)) for number in self._led_by(to)],
                [(self._ranks[source], number, part) for number, part in come],
            )
            for number, part in come:
                parts[number].add_(part)
        leaders = [self._leader(zone, self._index) for zone in self._others]
        come = [(leader, torch.empty_like(own, dtype=wire)) for leader in leaders]
        self._swap(
            [(self._ranks[number], number, parts[number].to(wire)) for number in self._led if number != self._index],
            [(self._ranks[leader], self._index, part) for leader, part in come],
        )
        for _, part in come:
            own.add_(part)
        return own

    def gather_parts(self, flat: Tensor) -> None:
        """Fill `flat`, of which this rank has its own part, with the parts of all holders."""
        parts = flat.tensor_split(self.size)
        if self._native:
            dist.all_gather_single(flat, parts[self._index], group=self.group)
            return
        own = self._index
        self._swap(
            [(self._ranks[self._leader(zone, own)], own, parts[own]) for zone in self._others],
            [(self._ranks[number], number, parts[number]) for number in self._led if number != own],
        )
        for to, source in self._rounds():
            self._swap(
                [(self._ranks[to], number, parts[number]) for number in self._led],
                [(self._ranks[source], number, parts[number]) for number in self._led_by(source)],
            )

    def sum_all(self, flat: Tensor, wire: torch.dtype) -> None:
        """Replace `flat` by the sum over all holders, bitwise equal on each."""
        length = flat.numel()
        missing = -length % self.size if self._native else 0
        whole = pad(flat, (0, missing)) if missing else flat
        own = self.sum_parts(whole, wire)
        sums = whole if wire == flat.dtype else torch.empty_like(whole, dtype=wire)
        sums.tensor_split(self.size)[self._index].copy_(own)
        self.gather_parts(sums)
        if sums is not flat:
            flat.copy_(sums[:length])

    def _leader(self, zone: Sequence[int], number: int) -> int:
        """Return who collects a part in a zone: its owner, or elsewhere a deputy."""
        return number if number in zone else zone[number % len(zone)]

    def _led_by(self, index: int) -> list[int]:
        """Return the parts that a holder in this zone collects there."""
        return [number for number in range(self.size) if self._leader(self._zone, number) == index]

    def _rounds(self) -> Iterable[tuple[int, int]]:
        """Return to whom this rank sends and from whom it receives inside its zone, round by round."""
        at, count = self._zone.index(self._index), len(self._zone)
        return [(self._zone[(at + away) % count], self._zone[(at - away) % count]) for away in range(1, count)]

    def _swap(self, out: list[tuple[int, int, Tensor]], come: list[tuple[int, int, Tensor]]) -> None:
        """Send and receive some parts, each given as rank, number and tensor; wait for them."""
        operations = [
            dist.P2POp(kind, part, rank, self.group, tag=number)
            for kind, messages in ((dist.isend, out), (dist.irecv, come))
            for rank, number, part in messages
            if part.numel()
        ]
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()


class BackgroundQueue:
    """Runs tasks one after the other during the passes: in a thread, or in a stream of a CUDA device.

    All ranks begin their common tasks in one order, so none waits for another in a circle.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, task: Callable[[], Any]) -> Task:
        """Begin a task on the tensors' present values; after `wait`, its result belongs to the caller."""
        done: Future[Any] = Future()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream), torch.no_grad():
                done.set_result(task())
            return Task(done, self._stream.record_event(), task)
        if self._thread is None:
            # A daemon, so that a failing rank can end while others keep a task waiting.
            self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
            self._thread.start()
        self._tasks.put((task, done))
        return Task(done)

    @torch.no_grad()
    def _run(self) -> None:
        torch.set_num_threads(1)
        while True:
            task, done = self._tasks.get()
            try:
                done.set_result(task())
            # `wait` raises it.
            except BaseException as error:
                done.set_exception(error)


class Task:
    """A task that runs during the passes; `uses` keeps what a device may still read until it is waited for."""

    def __init__(self, done: Future[Any], event: Any = None, uses: Any = None) -> None:
        self._done, self._event, self._uses = done, event, uses

    def is_completed(self) -> bool:
        return self._done.done() and (self._event is None or bool(self._event.query()))

    def wait(self) -> Any:
        """Return the task's result; work that is queued afterwards starts after the task."""
        result = self._done.result()
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
            if isinstance(result, Tensor):
                result.record_stream(torch.cuda.current_stream())
            self._uses = None
        return result
