"""Combines the events of all agents into the state of the training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sailor_cloud.run.progress import Verification

# A rank's exit code when it refuses its spec; see sailor_runtime.training.__main__.
REFUSED_EXIT_CODE = 2

# The first steps of a generation fill caches and allocators; the later pace differs.
UNSETTLED_STEPS = 2
# The interval at which torchrun forwards output of its processes.
BURST_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A rank that ended too early; `final` if the runtime itself refused to continue."""

    node: str
    rank: int
    how: str
    tail: str
    at: float = 0.0
    final: bool = False
    # The user's failed part, `command` or `setup`, and its running time; empty for our own ranks.
    what: str = ""
    ran_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.what or f'rank {self.rank}'} on node {self.node} {self.how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBytes:
    """The bytes that a rank had sent to each other node by the end of a step, since its generation began."""

    node: str
    step: int
    by_node: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A step of the journal: before a generation's first one, a checkpoint if it has a `path`, or its end."""

    step: int
    begins: bool = False
    path: str = ""
    at: float = 0.0


# The parts of an iteration's time, as rank 0 reports them.
PARTS = ("compute", "transfer", "bubble", "sync")


@dataclass(slots=True)
class Monitor:
    """The agents' reports about one generation so far."""

    generation: int
    tokens_per_iteration: float
    step: int = 0
    loss: float | None = None
    loss_is_nan: bool = False
    first_step: int | None = None
    first_loss: float | None = None
    unigram_entropy: float | None = None
    # Iterations of this generation, including those repeated after a checkpoint, and the time and number of each event.
    steps_done: int = 0
    iteration_times: list[tuple[float, int]] = field(default_factory=list)
    steps_from_output: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    most_memory_bytes: int | None = None
    verification: Verification | None = None
    preflight: dict[str, Any] | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    # Counts by rank: the newest one, and the first one, before its first step.
    traffic: dict[int, SentBytes] = field(default_factory=dict)
    traffic_before: dict[int, SentBytes] = field(default_factory=dict)
    hello: set[str] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    stopped: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    # Nodes with a broken device, and how that shows.
    faulty: dict[str, str] = field(default_factory=dict)
    # What the journal says, for events that were lost.
    journaled: tuple[Saved, ...] = ()
    # The settled pace and what it was computed from, because displays ask often.
    _pace: tuple[tuple[int, bool], float | None] | None = field(default=None, init=False, repr=False, compare=False)

    def apply(self, node: str, event: dict[str, Any]) -> None:
        """Apply one event of a node's agent; events of other generations are ignored."""
        kind = event["event"]
        if kind == "hello":
            self.hello.add(node)
            return
        if kind == "preempt_notice":
            self.leaving.add(node)
            return
        if event.get("generation") not in (None, self.generation):
            return
        match kind:
            case "step":
                self._step(event)
            case "verified":
                self.verification = Verification(
                    steps=event["steps"],
                    max_abs_difference=event["max_abs_difference"],
                    tolerance=event["tolerance"],
                )
            case "preflight":
                self.preflight = event
            case "data":
                self.unigram_entropy = event["unigram_entropy"]
            case "checkpoint":
                self.checkpoints.append(event)
            case "traffic":
                sent = SentBytes(node=node, step=event["step"], by_node=event["sent"])
                self.traffic[event["rank"]] = sent
                self.traffic_before.setdefault(event["rank"], sent)
            case "generation_started":
                self.started.add(node)
            case "refused" if "rank" not in event:
                self.refused[node] = event.get("reason", "no reason given")
            case "rank_dead":
                signal, code = event.get("signal"), event.get("exit_code")
                how = f"ended with signal {signal}" if signal else f"ended with exit code {code}"
                how = "was ended" if signal is code is None else how
                self.failures.append(_failure(node, event, how))
            case "rank_hung":
                how = f"has shown no sign of life for {event.get('silent_s', 0.0):.0f} s"
                self.failures.append(_failure(node, event, how))
            case "device_fault":
                self.faulty[node] = event["reason"]
            case "stopped":
                self.stopped[node] = event["reason"]

    def _step(self, event: dict[str, Any]) -> None:
        self.step = event["step"]
        self.loss, self.loss_is_nan = event["loss"], bool(event.get("loss_is_nan"))
        if self.first_step is None:
            self.first_step = event["step"]
        if self.first_loss is None:
            self.first_loss = event["loss"]
        # Our own ranks report all tokens since the start, a command those since its last step.
        if "tokens_since_last" in event:
            self.tokens_per_iteration = event["tokens_since_last"] / event.get("iterations", 1)
        self.steps_from_output = "iterations" in event
        # One event may represent several iterations of equal length; a command may count tokens as steps.
        count = int(event.get("iterations", 1))
        self.iteration_times.append((event["iteration_s"], count))
        self.steps_done += count
        if "most_memory_bytes" in event:
            self.most_memory_bytes = max(self.most_memory_bytes or 0, int(event["most_memory_bytes"]))
        self.parts = {part: event[f"{part}_s"] for part in PARTS if f"{part}_s" in event}

    @property
    def trained_s(self) -> float:
        """The time of all iterations."""
        return math.fsum(seconds * count for seconds, count in self.iteration_times)

    @property
    def lost_checkpoints(self) -> tuple[Saved, ...]:
        """Checkpoints of the journal without an event."""
        known = {(saved["step"], saved["path"]) for saved in self.checkpoints}
        return tuple(saved for saved in self.journaled if saved.path and (saved.step, saved.path) not in known)

    @property
    def reached_step(self) -> int:
        """The newest step of events and journal. A command's checkpoints may be ahead of the steps that it reports."""
        ends = (saved.step for saved in self.journaled if not saved.path and not saved.begins)
        return max([self.step, *ends, *(saved.step for saved in self.lost_checkpoints)])

    @property
    def steps_unseen(self) -> int:
        """Iterations that only the journal knows of.

        A command reports not every step, so only those after its last report count.
        """
        begun = next((saved.step for saved in self.journaled if saved.begins), None)
        if begun is None or self.steps_from_output:
            return max(0, self.reached_step - max(self.step, begun or 0))
        return max(0, self.reached_step - begun - self.steps_done)

    def steps_metered(self, sent: SentBytes) -> int:
        """Return the number of iterations whose traffic a rank's count covers."""
        done = self.steps_done + self.steps_unseen
        return max(0, min(done, sent.step - (self.reached_step - done)))

    @property
    def checkpoint_step(self) -> int | None:
        """The newest step that this generation saved."""
        steps = [saved["step"] for saved in self.checkpoints] + [saved.step for saved in self.lost_checkpoints]
        return max(steps, default=None)

    @property
    def measured_iteration_s(self) -> float | None:
        """The median iteration time since the pace has settled; for a command's lines the mean.

        Its launcher forwards lines in bursts, so most seem to take no time; a single burst tells nothing.
        """
        known = (self.steps_done, self.steps_from_output)
        if self._pace is None or self._pace[0] != known:
            self._pace = (known, self._settled_s())
        return self._pace[1]

    def _settled_s(self) -> float | None:
        settled = list(_without_first(self.iteration_times, UNSETTLED_STEPS))
        if self.steps_from_output:
            total_s = math.fsum(seconds * count for seconds, count in settled)
            return total_s / sum(count for _, count in settled) if total_s > BURST_S else None
        return statistics.median(seconds for seconds, _ in settled) if settled else None

    @property
    def tokens_per_s(self) -> float | None:
        measured = self.measured_iteration_s
        return self.tokens_per_iteration / measured if measured and self.tokens_per_iteration else None


def _without_first(times: Iterable[tuple[float, int]], skipped: int) -> Iterator[tuple[float, int]]:
    """Yield the times and numbers of iterations after the first ones."""
    for seconds, count in times:
        left = count - skipped
        skipped = max(0, -left)
        if left > 0:
            yield seconds, left


def _failure(node: str, event: dict[str, Any], how: str) -> Failure:
    return Failure(
        node=node,
        rank=event["rank"],
        how=how,
        tail=event.get("tail", ""),
        at=event.get("ts", 0.0),
        final=event.get("final", event.get("exit_code") == REFUSED_EXIT_CODE and "what" not in event),
        what=event.get("what", ""),
        ran_s=event.get("ran_s", 0.0),
    )
