"""One generation: ranks under one plan, from their start to their end."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sailor_cloud.clock import Clock
from sailor_cloud.errors import LaunchError, ProvisionError
from sailor_cloud.launch.fleet.command_spec import GRACE_S
from sailor_cloud.launch.fleet.fleet import Fleet, Health, Link, UnreachableError
from sailor_cloud.launch.stopping import StopSignal
from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.launch.telemetry.generation_log import EventRecord
from sailor_cloud.launch.telemetry.monitor import Failure, Monitor
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.run.options import LaunchOptions

logger = logging.getLogger(__name__)

_CLEAN_REASONS = frozenset({"finished", "requested"})

# The last line of a Python traceback. torchrun's own error follows that of its processes, whatever theirs is.
_PYTHON_ERROR = re.compile(r"^(?:\[\w+\]:\s*)?((?!.*\bChildFailedError)[\w.]*(?:Error|Exception)\b.*)$", re.MULTILINE)
# Messages of gloo, NCCL and sockets about a lost peer.
_LOST_NEIGHBOUR = ("Connection closed by peer", "Connection reset by peer", "remote process exited", "Broken pipe")

# CUDA errors that a broken device or a program's kernel may cause.
_MAYBE_DEVICE = (
    "CUDA error: unspecified launch failure",
    "CUDA error: unknown error",
    "CUDA error: hardware stack error",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
)


class End(StrEnum):
    """How a generation ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    HANDED_OVER = "handed over"
    NODES_LOST = "nodes lost"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The end of a generation; `why` is for people. `final`: another attempt can't help.

    `taken_back`: the provider wanted the lost nodes back, so their machines are not broken.
    """

    end: End
    step: int
    lost: tuple[str, ...] = ()
    taken_back: bool = False
    failures: tuple[Failure, ...] = ()
    why: str = ""
    final: bool = False

    @property
    def failure(self) -> Failure | None:
        """The first failure, as far as known: failures of the job itself come before lost connections."""
        return min(self.failures, key=lambda one: (not one.final, _lost_neighbour(one), one.at), default=None)

    @property
    def suspect(self) -> str | None:
        """The node whose device may be broken, None if nothing points to one."""
        first = self.failure
        return first.node if first and any(error in first.tail for error in _MAYBE_DEVICE) else None

    @property
    def errors(self) -> tuple[str, ...]:
        """The Python errors in the last lines of the first failure; empty if a lost neighbour may explain them."""
        first = self.failure
        return () if first is None or _lost_neighbour(first) else tuple(_PYTHON_ERROR.findall(first.tail))


@dataclass(slots=True, kw_only=True)
class Generation:
    """Follows the agents of a started generation, whichever process started it."""

    number: int
    digest: str
    document: PlanDocument
    links: Sequence[Link]
    fleet: Fleet
    monitor: Monitor
    record: EventRecord
    clock: Clock
    options: LaunchOptions
    stop: StopSignal
    on_event: Callable[[AgentEvent, Monitor], None]
    on_poll: Callable[[], None]
    handover: asyncio.Event = field(default_factory=asyncio.Event)
    _silent_since: dict[str, float] = field(default_factory=dict)
    _asked_s: float | None = None
    _running: frozenset[str] | None = None
    _last_event_s: float = 0.0
    _begun_s: float = 0.0
    _noticed_s: float | None = None
    _saved_before: int = 0

    async def follow(self) -> Result:
        """Read events until the generation has ended. A stop request first saves a last checkpoint.

        If a command fails or loses a node, it is ended on all other nodes.
        """
        result = await self._followed()
        if self._runs_command and result.end in (End.NODES_LOST, End.FAILED):
            # An agent's death also ends its command.
            states = await self._health()
            await self._stop_ranks(without=[name for name, state in states.items() if state is not Health.WELL])
        return result

    @property
    def _runs_command(self) -> bool:
        return self.document.job.run is not None

    async def _followed(self) -> Result:
        self._begun_s = self._last_event_s = self.clock.monotonic_s()
        while True:
            await self._poll()
            if self._runs_command and self._finished() and self._only_idle_left():
                await self._stop_ranks()
            if len(self.monitor.stopped) == len(self.links) and self._all_stopped_cleanly():
                if self._asked_to_stop() and self._leaving() and self.stop.ending is None:
                    return await self._leave()
                return self._result(End.STOPPED if self._asked_to_stop() else End.FINISHED)
            if self.stop.ending is not None:
                await self._stop_ranks()
                return self._result(End.STOPPED)
            if self.handover.is_set():
                await self._stop_ranks()
                if self.monitor.faulty and not self._finished():
                    return self._without_faulty()
                return self._result(End.FINISHED if self._finished() else End.HANDED_OVER)
            lost = await self._lost_nodes()
            if lost:
                return self._result(End.NODES_LOST, lost=lost, why=f"{_nodes(lost)} lost")
            if self.monitor.faulty:
                return self._without_faulty()
            if self._leaving_is_due():
                return await self._leave()
            if self._failed() or await self._agents_are_silent():
                return await self._diagnosed()
            await asyncio.sleep(self.options.poll_s)

    async def _poll(self) -> None:
        now = self.clock.monotonic_s()
        batches = await asyncio.gather(*(self._events_of(link) for link in self.links))
        for link, batch in zip(self.links, batches, strict=True):
            name = link.node.id
            if batch is None:
                self._silent_since.setdefault(name, now)
                continue
            self._silent_since.pop(name, None)
            for event in self.record.append(name, batch):
                self._last_event_s = now
                self.monitor.apply(name, event)
                self.on_event(event, self.monitor)
        self.on_poll()

    async def _events_of(self, link: Link) -> list[AgentEvent] | None:
        """Return a node's new events, or None if the node does not answer."""
        try:
            return await asyncio.wait_for(link.new_events(), self.options.poll_timeout_s)
        except (UnreachableError, TimeoutError) as error:
            logger.info("node %s does not answer: %s", link.node.id, error)
            return None

    async def _lost_nodes(self) -> tuple[str, ...]:
        """Return nodes to give up: those silent for too long, and silent ones that the provider reports as gone."""
        if not self._silent_since:
            return ()
        now = self.clock.monotonic_s()
        if self._asked_s is None or now - self._asked_s >= self.options.ask_s:
            self._asked_s = now
            try:
                self._running = await self.fleet.running(self.document)
            except ProvisionError as error:
                # If a cloud does not answer, the state of its nodes is unknown.
                logger.info("can't ask which nodes exist: %s", error)
                self._running = None
        return tuple(
            sorted(
                name
                for name, since in self._silent_since.items()
                if (self._running is not None and name not in self._running)
                or self.clock.monotonic_s() - since >= self.options.lost_after_s
            )
        )

    def _leaving(self) -> tuple[str, ...]:
        return tuple(sorted(self.monitor.leaving & {link.node.id for link in self.links}))

    def _leaving_is_due(self) -> bool:
        """Whether a node is about to be preempted and its state has been saved, or no time is left."""
        if not self._leaving():
            return False
        if self._runs_command:
            return True
        if self._noticed_s is None:
            self._noticed_s = self.clock.monotonic_s()
            self._saved_before = len(self.monitor.checkpoints)
        waited = self.clock.monotonic_s() - self._noticed_s
        return len(self.monitor.checkpoints) > self._saved_before or waited >= self.options.preemption_wait_s

    async def _leave(self) -> Result:
        await self._stop_ranks()
        if self._finished():
            return self._result(End.FINISHED)
        leaving = self._leaving()
        why = f"the provider or scheduler takes back {_nodes(leaving)}"
        return replace(self._result(End.NODES_LOST, lost=leaving, why=why), taken_back=True)

    def _without_faulty(self) -> Result:
        faulty = sorted(self.monitor.faulty.items())
        reasons = "; ".join(f"{node} has a broken device: {reason}" for node, reason in faulty)
        return self._result(End.NODES_LOST, lost=tuple(node for node, _ in faulty), why=f"node {reasons}")

    def _failed(self) -> bool:
        return bool(self.monitor.failures or self.monitor.refused) or not self._all_stopped_cleanly()

    def _all_stopped_cleanly(self) -> bool:
        return all(reason in _CLEAN_REASONS for reason in self.monitor.stopped.values())

    def _finished(self) -> bool:
        if self._runs_command and self._asked_to_stop():
            return False
        return any(self.monitor.stopped.get(node) == "finished" for node in self._busy) and self._all_stopped_cleanly()

    @property
    def _busy(self) -> set[str]:
        """The nodes that have work in the plan; the others end on request."""
        assert self.document.plan is not None
        return {stage.node for pipeline in self.document.plan.pipelines for stage in pipeline.stages}

    def _only_idle_left(self) -> bool:
        waiting = {link.node.id for link in self.links} - self.monitor.stopped.keys()
        return bool(waiting) and not waiting & self._busy

    def _asked_to_stop(self) -> bool:
        return "requested" in self.monitor.stopped.values()

    async def _agents_are_silent(self) -> bool:
        """Whether an agent did not begin in time, or has died since."""
        now = self.clock.monotonic_s()
        unstarted = len(self.monitor.started) < len(self.links) and now - self._begun_s > self.options.agent_timeout_s
        if not unstarted and now - self._last_event_s <= self.options.silence_s:
            return False
        self._last_event_s = now
        states = await self._health()
        return unstarted or any(state is Health.AGENT_DEAD for state in states.values())

    async def _health(self) -> dict[str, Health]:
        async def of(link: Link) -> Health:
            try:
                return await asyncio.wait_for(link.health(), self.options.poll_timeout_s)
            except TimeoutError:
                return Health.UNREACHABLE

        states = await asyncio.gather(*(of(link) for link in self.links))
        return {link.node.id: state for link, state in zip(self.links, states, strict=True)}

    async def _diagnosed(self) -> Result:
        """Decide whether a failure is the job's own or comes from a lost node.

        Ranks fail within milliseconds of a neighbour's death, long before the death itself can be seen.
        """
        until = self.clock.monotonic_s() + self.options.settle_s
        while self.clock.monotonic_s() < until and len(self.monitor.stopped) < len(self.links):
            await asyncio.sleep(self.options.poll_s)
            await self._poll()
        if self._finished() and len(self.monitor.stopped) == len(self.links):
            return self._result(End.FINISHED)
        if self.monitor.faulty:
            return self._without_faulty()
        states = await self._health()
        while any(state is Health.UNREACHABLE for state in states.values()):
            for name, state in states.items():
                if state is Health.UNREACHABLE:
                    self._silent_since.setdefault(name, self.clock.monotonic_s())
            lost = await self._lost_nodes()
            if lost:
                return self._result(End.NODES_LOST, lost=lost, why=f"{_nodes(lost)} lost")
            self.stop.check()
            await asyncio.sleep(self.options.poll_s)
            states = await self._health()
        return self._failure([name for name, state in states.items() if state is Health.AGENT_DEAD])

    def _failure(self, dead_agents: list[str]) -> Result:
        failures = tuple(self.monitor.failures)
        if failures and not (dead_agents and self._runs_command and all(map(_lost_neighbour, failures))):
            first = Result(end=End.FAILED, step=0, failures=failures).failure
            assert first is not None
            last_lines = f"{first.tail.rstrip()}{_hint(first.tail, self.document.job)}"
            why, final = (
                f"{first}; its last lines:\n{last_lines}" if last_lines else f"{first}, without a word",
                first.final,
            )
        elif self.monitor.refused:
            node, reason = sorted(self.monitor.refused.items())[0]
            why, final = f"the agent on node {node} refused the generation: {reason}", True
        elif dead_agents:
            why, final = f"the agent on {_nodes(dead_agents)} has died", False
        else:
            late = sorted({link.node.id for link in self.links} - self.monitor.started)
            reasons = ", ".join(f"{node}: {reason}" for node, reason in sorted(self.monitor.stopped.items()))
            why = f"training stopped before its end ({reasons})" if reasons else ""
            if late and not reasons:
                why = f"the agent on {_nodes(late)} did not begin within {self.options.agent_timeout_s:.0f} s"
            final = False
        return self._result(End.FAILED, failures=failures, why=why or "the agents fell silent", final=final)

    async def _stop_ranks(self, *, without: Sequence[str] = ()) -> None:
        """Ask the ranks to save a checkpoint and end, within the time for it."""
        waiting = [link for link in self.links if link.node.id not in {*self.monitor.stopped, *without}]
        orders = (
            asyncio.wait_for(
                link.command("stop", generation=self.number, plan_hash=self.digest), self.options.poll_timeout_s
            )
            for link in waiting
        )
        for link, answer in zip(waiting, await asyncio.gather(*orders, return_exceptions=True), strict=True):
            if isinstance(answer, LaunchError | TimeoutError):
                logger.info("node %s did not get the request to stop: %s", link.node.id, answer)
            elif isinstance(answer, BaseException):
                raise answer
        patience_s = self.options.stop_timeout_s + (GRACE_S if self._runs_command else 0.0)
        until = self.clock.monotonic_s() + patience_s
        while self.clock.monotonic_s() < until:
            await self._poll()
            expected = [link for link in self.links if link.node.id not in {*self._silent_since, *without}]
            if all(link.node.id in self.monitor.stopped for link in expected):
                return
            await asyncio.sleep(self.options.poll_s)
        logger.warning("generation %d: some agents did not stop in time; they end with their nodes", self.number)

    def _result(
        self,
        end: End,
        *,
        lost: tuple[str, ...] = (),
        failures: tuple[Failure, ...] = (),
        why: str = "",
        final: bool = False,
    ) -> Result:
        return Result(end=end, step=self.monitor.step, lost=lost, failures=failures, why=why, final=final)


def _lost_neighbour(failure: Failure) -> bool:
    """Whether a rank failed because another one did; agents see both within the same few milliseconds."""
    return any(sign in failure.tail for sign in _LOST_NEIGHBOUR)


def _nodes(names: Sequence[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"nodes {', '.join(names)}"


def _hint(tail: str, job: Job) -> str:
    """Return advice on a failure that a user's code often has on a new machine; nothing for other failures."""
    missing = re.findall(r"ModuleNotFoundError: No module named '([^']+)'", tail)
    if missing:
        if job.run is None and job.shipped_folder is None:
            return f"\nnodes lack the package {missing[-1]}, which sailor-cloud[runtime] installs"
        return f"\nnodes lack the package {missing[-1]}: install it in setup, such as setup: pip install {missing[-1]}"
    unknown = re.findall(r"line \d+: (\S+): command not found", tail)
    if unknown:
        return f"\nnodes lack the program {unknown[-1]}: install it in setup"
    if "No such file or directory" in tail and job.run is not None and job.workdir is None:
        return "\nnodes have no files of yours, since the job names no workdir: add workdir: ."
    closed = re.findall(r"^bash: (?:line \d+: )?(\S+): Permission denied", tail, re.MULTILINE)
    return (
        f"\n{closed[-1]} is not executable: chmod +x {closed[-1]}, or name what runs it, such as bash" if closed else ""
    )
