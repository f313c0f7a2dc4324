"""The agent's loop: reads commands, writes events, runs one generation at a time, and always ends at the TTL."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from sailor_runtime.agent.generation import Generation, Limits, Outcome
from sailor_runtime.agent.inbox import Command, Inbox, Name, Unreadable
from sailor_runtime.agent.journal import EventJournal, LogEcho
from sailor_runtime.agent.preemption import PreemptionWatch
from sailor_runtime.agent.ranks import Starter
from sailor_runtime.agent.rendezvous import JOIN_S, Artefact, Rendezvous, RendezvousError
from sailor_runtime.spec import HEARTBEAT_FILE, CommandSpec, RunSpec, read_spec

_POLL_S = 0.05
SHUTDOWN_S = 27.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one agent.

    After a generation has ended it waits `hold_s` for a new one or another ping of a controller. On a node that its
    provider may preempt, which is one with `preemption`, a SIGTERM means that the system shuts down. Ranks then have
    `shutdown_s` for a last checkpoint, as they have before the TTL. Google's machines end 30 s after that ("Spot VMs"
    in its Compute Engine guide, 2026-11); some of it is left for the journal.

    With an `artefact` the agent is part of a scheduler's job: it meets the others at `meeting`, for which it waits at
    most `join_s`, runs the artefact's only generation and ends with it. A SIGTERM then means that the whole job must
    end. `echo` prints events on stdout, for controllers that can't read the folder.
    """

    home: Path
    node: str | None
    rank_module: str
    hold_s: float
    limits: Limits
    preemption: PreemptionWatch | None = None
    shutdown_s: float = SHUTDOWN_S
    artefact: Artefact | None = None
    meeting: str = ""
    join_s: float = JOIN_S
    echo: bool = False


# A job's agent numbers its events from this times its generation, since its folder may be new each time.
_EVENTS_OF_JOB = 1_000_000


class Agent:
    """The agent of one node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        job = settings.artefact
        first = 0 if job is None else job.generation * _EVENTS_OF_JOB
        self._journal = EventJournal(settings.home / "agent.jsonl", first=first, echo=settings.echo)
        self._logs = LogEcho(settings.home / "logs") if settings.echo else None
        self._inbox = Inbox(settings.home / "inbox")
        self._starter = Starter(settings.home, settings.rank_module)
        self._generation: Generation | None = None
        self._newest = 0
        self._expires_at: float | None = None
        self._idle_since = time.monotonic()
        self._last_heartbeat: int | None = None
        self._leave_at: float | None = None
        self._save_wanted = False
        self._preemption_noted = False
        self._expiry_noted = False
        self._rendezvous: Rendezvous | None = None
        self._joining = False
        # Filled by the threads that watch connections, journaled by the loop.
        self._neighbours_lost: deque[list[str]] = deque()
        self._ended: str | None = None

    def run(self) -> str:
        """Serve until terminated, expired, or without a controller for the holding time; SIGUSR1 requests a save.

        A second SIGTERM ends the agent immediately. Returns why it ended: `requested`, `expired` or `held`; as part of
        a job, the reason of its generation's end, or `refused`.
        """
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_save)
        self._journal.write(
            "hello",
            generation=None,
            node=self._settings.node or self._settings.home.name,
            pid=os.getpid(),
            python=sys.version.split()[0],
            runtime_sha=runtime_sha256(),
        )
        self._journal.sync()
        if self._settings.artefact is not None and not self._joined(self._settings.artefact):
            return "refused"
        reason = None
        while reason is None:
            self._take_commands()
            self._tell_neighbours_lost()
            self._watch_preemption()
            self._watch_expiry()
            if self._save_wanted and self._generation is not None:
                self._save_wanted = False
                self._generation.request_checkpoint()
            if self._generation is not None:
                outcome = self._generation.poll()
                if self._logs is not None:
                    self._logs.send(generation=self._newest)
                if outcome is not None:
                    self._stopped(outcome)
            reason = self._reason_to_exit()
            if reason is None:
                time.sleep(_POLL_S)
        self._leave(reason)
        if self._rendezvous is not None:
            self._rendezvous.leave()
        return reason

    def _joined(self, artefact: Artefact) -> bool:
        """Meet the other agents of the job and begin its generation; False if they did not all come."""
        node = self._settings.node
        assert node is not None, "a job's agent knows its node"
        for old in self._settings.home.glob("inbox/*.json"):
            # Commands of an earlier job that ended before it read them.
            old.unlink(missing_ok=True)
        path = self._settings.home / "generations" / str(artefact.generation) / "spec.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._rendezvous = Rendezvous(artefact, node, self._settings.meeting, self._neighbours_lost.append)
            self._joining = True
            content = self._rendezvous.join(self._settings.join_s)
            self._joining = False
            # The variables of a command may contain secrets.
            path.touch(mode=0o600)
            path.chmod(0o600)
            path.write_text(content)
            spec = read_spec(content)
        except (RendezvousError, ValueError, OSError) as error:
            self._joining = False
            self._refuse(None, str(error), generation=artefact.generation)
            self._journal.sync()
            return False
        self._begin(spec, path, node)
        return True

    def _tell_neighbours_lost(self) -> None:
        while self._neighbours_lost:
            self._journal.write(
                "neighbours_lost", generation=self._newest or None, nodes=self._neighbours_lost.popleft()
            )

    def _on_term(self, signum: int, frame: object) -> None:
        if self._joining:
            raise RendezvousError("the scheduler ended the job before all its nodes had come")
        warned = self._settings.preemption is not None or self._settings.artefact is not None
        last_words_s = self._settings.shutdown_s if warned and self._leave_at is None else 0.0
        self._leave_at = time.monotonic() + last_words_s

    def _on_save(self, signum: int, frame: object) -> None:
        self._save_wanted = True

    def _reason_to_exit(self) -> str | None:
        if self._settings.artefact is not None and self._generation is None:
            return self._ended
        if self._leave_at is not None and (self._generation is None or time.monotonic() >= self._leave_at):
            return "requested"
        if self._expires_at is not None and time.time() >= self._expires_at:
            return "expired"
        self._listen()
        if self._generation is None and time.monotonic() - self._idle_since >= self._settings.hold_s:
            return "held"
        return None

    def _listen(self) -> None:
        """Detect a controller's ping, by any change of its file: the node's clock may be wrong."""
        try:
            heartbeat = os.stat(self._settings.home / HEARTBEAT_FILE).st_mtime_ns
        except OSError:
            return
        if heartbeat != self._last_heartbeat:
            self._last_heartbeat, self._idle_since = heartbeat, time.monotonic()

    def _leave(self, reason: str) -> None:
        if self._generation is not None:
            self._stopped(self._generation.end(reason))
        elif self._settings.artefact is None or self._ended is None:
            self._journal.write("stopped", generation=self._newest or None, reason=reason, step=None)
        self._journal.sync()

    def _stopped(self, outcome: Outcome) -> None:
        assert self._generation is not None
        if self._logs is not None:
            # Readers stop at the event that says that this node has stopped.
            self._logs.send(generation=self._newest, last=True)
        self._journal.write(
            "stopped", generation=self._generation.spec.generation, reason=outcome.reason, step=outcome.step
        )
        self._journal.sync()
        self._generation, self._ended = None, outcome.reason
        self._idle_since = time.monotonic()

    def _take_commands(self) -> None:
        for command in self._inbox.take():
            if isinstance(command, Unreadable):
                self._refuse(None, f"{command.file}: {command.reason}")
            elif command.name == Name.START:
                self._start(command)
            elif self._generation is None:
                self._refuse(command, "no generation is running")
            elif problem := _mismatch(command, self._generation.spec):
                self._refuse(command, problem)
            elif command.name == Name.CHECKPOINT:
                self._generation.request_checkpoint()
            else:
                self._generation.request_stop()

    def _refuse(self, command: Command | None, reason: str, *, generation: int | None = None) -> None:
        generation = generation if command is None else command.generation
        name = None if command is None else command.name.value
        self._journal.write("refused", generation=generation, command=name, reason=reason)

    def _start(self, command: Command) -> None:
        assert command.spec is not None
        if command.generation <= self._newest:
            self._refuse(command, f"generation {command.generation} is not newer than {self._newest}")
            return
        path = self._settings.home / command.spec
        try:
            spec = read_spec(path.read_text())
        except (OSError, ValueError) as error:
            self._refuse(command, f"spec {command.spec}: {error}")
            return
        node = command.node or self._settings.node or self._settings.home.name
        if problem := _mismatch(command, spec):
            self._refuse(command, problem)
        elif node not in {other.id for other in spec.nodes}:
            self._refuse(command, f"node {node!r} is not in the spec: {sorted(other.id for other in spec.nodes)}")
        elif spec.expires_at <= time.time():
            self._refuse(command, f"the spec expired at {spec.expires_at}")
        else:
            self._begin(spec, path, node)

    def _begin(self, spec: RunSpec | CommandSpec, path: Path, node: str) -> None:
        if self._generation is not None:
            self._stopped(self._generation.end("requested"))
        self._newest = spec.generation
        self._expires_at, self._expiry_noted = spec.expires_at, False
        self._generation = Generation(
            spec,
            path,
            node,
            home=self._settings.home,
            starter=self._starter,
            journal=self._journal,
            limits=self._settings.limits,
        )
        if self._preemption_noted:
            self._generation.node_leaves()

    def _watch_preemption(self) -> None:
        """Report the provider's notice, and have the ranks save their state."""
        watch, job = self._settings.preemption, self._settings.artefact
        if self._preemption_noted or (watch is None and job is None):
            return
        notice = watch.notice.text if watch and watch.notice else None
        if notice is None and self._leave_at:
            notice = "the system shuts down" if job is None else "the scheduler ends the job"
        if notice is None:
            return
        self._preemption_noted = True
        self._journal.write("preempt_notice", generation=self._newest or None, notice=notice)
        self._journal.sync()
        if self._generation is not None and job is not None:
            # All nodes get the signal together, so the ranks can save and end together.
            self._generation.request_stop()
        elif self._generation is not None:
            self._generation.node_leaves()

    def _watch_expiry(self) -> None:
        """Have the ranks save once before the TTL; a controller would have ended the generation long before."""
        if self._expiry_noted or self._generation is None or self._expires_at is None:
            return
        if time.time() >= self._expires_at - self._settings.shutdown_s:
            self._expiry_noted = True
            self._generation.node_leaves()


def _mismatch(command: Command, spec: RunSpec | CommandSpec) -> str | None:
    """Return why a command does not fit the spec of a generation, None if it fits."""
    if command.generation != spec.generation:
        return f"command is for generation {command.generation}, the spec for {spec.generation}"
    if command.plan_hash != spec.plan_hash:
        return f"command has plan_hash {command.plan_hash!r}, the spec {spec.plan_hash!r}"
    return None


def runtime_sha256() -> str:
    """Return one hash over the runtime's sources, which identifies a node's code."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name, data = path.relative_to(root.parent).as_posix(), path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()
