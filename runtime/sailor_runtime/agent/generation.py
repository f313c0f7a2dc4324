"""One generation on this node: starts its ranks, forwards their events, and detects dead and hung ranks."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sailor_runtime.agent.device_faults import fault_in, kernel_log
from sailor_runtime.agent.journal import EventJournal
from sailor_runtime.agent.ranks import Rank, Starter, kill
from sailor_runtime.spec import CommandSpec, RunSpec

# Events of ranks that are only for the agent.
_INTERNAL = frozenset({"progress", "ended"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a silent rank counts as hung, and how long a requested stop may take, in seconds.

    During training a rank may be silent for `iterations` times the predicted iteration time, but at least for
    `training_s`. Before that (imports, joining, the check against one process) and during a save the limit is
    `phase_s`.
    """

    iterations: float = 20.0
    training_s: float = 60.0
    phase_s: float = 600.0
    stop_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Why a generation ended on this node, and after which step."""

    reason: str
    step: int | None


class Generation:
    """The ranks of one generation that run on this node."""

    def __init__(
        self,
        spec: RunSpec | CommandSpec,
        spec_path: Path,
        node: str,
        *,
        home: Path,
        starter: Starter,
        journal: EventJournal,
        limits: Limits,
    ) -> None:
        self.spec = spec
        self.step: int | None = None
        self._journal = journal
        self._limits = limits
        self._control = home / "control" / f"g{spec.generation}.json"
        self._control.parent.mkdir(parents=True, exist_ok=True)
        self._control.unlink(missing_ok=True)
        self._checkpoints = 0
        self._stop_by: float | None = None
        # The kernel's log has this clock.
        self._started_s = time.monotonic()
        numbers = _numbers(spec, node)
        journal.write("generation_started", generation=spec.generation, ranks=numbers, plan_hash=spec.plan_hash)
        self._ranks: list[Rank] = []
        for number in numbers:
            self._ranks.append(starter.start(spec, spec_path, node, number, self._control))

    def request_checkpoint(self) -> None:
        self._checkpoints += 1
        self._write_control(stop=self._stop_by is not None)

    def node_leaves(self) -> None:
        """Have ranks save while they continue; stop a command, for which SIGTERM is the only request to save."""
        if isinstance(self.spec, CommandSpec):
            self.request_stop()
        else:
            self.request_checkpoint()

    def request_stop(self) -> None:
        """Ask the ranks to checkpoint and end; they are killed if that takes too long."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._limits.stop_s
        self._write_control(stop=True)

    def poll(self) -> Outcome | None:
        """Forward new events; return an outcome once the generation and all its ranks here have ended."""
        # The order matters: a rank that is dead here has already written its last event.
        dead = [rank for rank in self._ranks if rank.process.poll() is not None]
        for rank in self._ranks:
            self._pass_on(rank)
        failed = [rank for rank in dead if rank.process.returncode != 0 or rank.ended is None]
        if failed:
            for rank in failed:
                self._report_dead(rank)
            self._report_fault("\n".join(rank.tail() for rank in failed))
            return self._end("failed")
        if not self._ranks:
            # All devices of the node are idle, so no rank can report the end. For a command, its end on this node means
            # that it has ended on all others.
            reason = "finished" if isinstance(self.spec, CommandSpec) else "requested"
            return Outcome(reason=reason, step=None) if self._stop_by is not None else None
        reasons = [rank.ended["reason"] for rank in dead if rank.ended is not None]
        if len(reasons) == len(self._ranks):
            return self._end(reasons[0])
        hung = [rank for rank in self._ranks if rank not in dead and self._is_hung(rank)]
        if hung:
            for rank in hung:
                silent = time.monotonic() - rank.last_sign
                self._journal.write(
                    "rank_hung",
                    generation=self.spec.generation,
                    rank=rank.number,
                    phase=rank.phase,
                    silent_s=silent,
                    tail=rank.tail(),
                )
            self._report_fault("\n".join(rank.tail() for rank in hung))
            return self._end("hung")
        if self._stop_by is not None and time.monotonic() > self._stop_by:
            return self._end("requested")
        return None

    def end(self, reason: str) -> Outcome:
        """End the ranks now."""
        outcome = self._end(reason)
        for rank in self._ranks:
            self._pass_on(rank)
        return replace(outcome, step=self.step)

    def _end(self, reason: str) -> Outcome:
        if left := kill(self._ranks):
            numbers = ", ".join(str(rank.number) for rank in left)
            self._fault(f"ranks that can't be killed: {numbers}; their driver does not answer")
        return Outcome(reason=reason, step=self.step)

    def _is_hung(self, rank: Rank) -> bool:
        limit = self._limits.phase_s
        if isinstance(self.spec, CommandSpec):
            limit = self.spec.stall_s
        elif rank.phase == "train":
            limit = max(self._limits.training_s, self._limits.iterations * self.spec.predicted_iteration_s)
        return time.monotonic() - rank.last_sign > limit

    def _pass_on(self, rank: Rank) -> None:
        for event in rank.new_events():
            fields: dict[str, Any] = dict(event)
            kind, ts = fields.pop("event"), fields.pop("ts")
            rank.phase = "train" if kind == "step" else fields.get("phase", rank.phase)
            if kind == "ended":
                rank.ended = fields
            step = fields.get("step")
            if step is not None:
                self.step = step
            if kind not in _INTERNAL:
                self._journal.write(kind, generation=self.spec.generation, ts=ts, rank=rank.number, **fields)

    def _report_dead(self, rank: Rank) -> None:
        code = rank.process.returncode
        # A command's supervisor reports how the command ended; its own exit code differs.
        reported = rank.ended if rank.supervises else None
        ending = reported or ({"signal": -code} if code < 0 else {"exit_code": code})
        fields = {"phase": rank.phase, "tail": rank.tail(), **ending}
        self._journal.write("rank_dead", generation=self.spec.generation, rank=rank.number, **fields)

    def _report_fault(self, tails: str) -> None:
        """Report a fault of a device that the ranks' logs or the kernel's show."""
        if reason := fault_in(kernel_log(self._started_s)) or fault_in(tails):
            self._fault(reason)

    def _fault(self, reason: str) -> None:
        self._journal.write("device_fault", generation=self.spec.generation, reason=reason)

    def _write_control(self, *, stop: bool) -> None:
        staged = self._control.with_suffix(".new")
        staged.write_text(json.dumps({"checkpoint": self._checkpoints, "stop": stop}))
        os.replace(staged, self._control)


def _numbers(spec: RunSpec | CommandSpec, node: str) -> list[int]:
    """Return the ranks of a node; for a command the first one, whose number its logs and events have."""
    if isinstance(spec, CommandSpec):
        return [other.first_rank for other in spec.nodes if other.id == node and other.processes]
    stages = [stage for pipeline in spec.pipelines for stage in pipeline.stages]
    return [rank for stage in stages if stage.node == node for rank in stage.ranks]
