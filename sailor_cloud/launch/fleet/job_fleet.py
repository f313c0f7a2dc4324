"""Nodes of a run as parts of a scheduler's jobs: each generation is one job, whose agents find each other.

A node exists here from the moment its group could start it until its machine is lost. The scheduler chooses new
machines for each generation.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sailor_cloud.clock import Clock
from sailor_cloud.errors import LaunchError, ProvisionError, StockoutError, of_system
from sailor_cloud.launch.fleet.bundle import pack_runtime
from sailor_cloud.launch.fleet.code import Code
from sailor_cloud.launch.fleet.fleet import Health, Link, UnreachableError
from sailor_cloud.launch.fleet.job_artefact import artefact, master_of, node_paths, without_address
from sailor_cloud.launch.telemetry.events import AgentEvent, parse_line
from sailor_cloud.launch.telemetry.generation_log import generations, read_plan
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.bookkeeping import NODE, intend_node, ledger_key, open_node
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.provision.jobs import CLUSTER_ID, ClusterJob, JobPhase, JobState, Scheduler, check_identity, groups_of
from sailor_cloud.provision.live_resources import Scope
from sailor_cloud.provision.provisioner import Applied
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.provision.scopes import scopes_for_journal, scopes_of
from sailor_cloud.provision.terraform.progress import Interrupt, Listener
from sailor_cloud.run.folder import RunFolder, private_dir
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold
from sailor_runtime.spec import MOST_LOG_BYTES, read_spec

_T = TypeVar("_T")
EVENTS_FILE = "agent.jsonl"
# The shortest interval between queries to a scheduler; agents' events are read at every poll.
_ASK_S = 1.0
_ENDS_WITHIN_S = 90.0
_SETTLES_S = 10.0
# Names of the logs that an agent forwards from its ranks.
_LOG, _RANK_LOG = "log", re.compile(r"g\d{1,9}-rank\d{1,9}\.log")


@dataclass(slots=True)
class _Current:
    """The newest job, and the scheduler's last answer about it."""

    id: str
    job: ClusterJob
    document: PlanDocument
    state: JobState
    asked_s: float
    cancelled: bool = False
    # Whether this controller saw the job queued or running.
    seen: bool = False


@dataclass(slots=True)
class JobFleet:
    """See `fleet.Fleet`."""

    folder: RunFolder
    clock: Clock
    scheduler: Scheduler
    inventory: Inventory
    say: Callable[[str], None] = lambda text: None
    ask_s: float = _ASK_S
    _current: _Current | None = None
    # Hosts that a job of this run has lost, and the plan's nodes on them.
    _avoid: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)
    _known: set[str] = field(default_factory=set)
    _document: PlanDocument | None = None
    _wanted: dict[str, str] = field(default_factory=dict)
    _expires_at: datetime | None = None
    _queued: bool = False
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def home(self) -> Path:
        """The folder with the agents' folders, scripts and plans of jobs."""
        return private_dir(self.folder.cluster_dir)

    def node_home(self, node: str) -> Path:
        return self.home / node

    async def secure(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> None:
        """Do nothing: a cluster's machines exist already."""

    async def create(
        self, document: PlanDocument, *, expires_at: datetime, interrupt: Interrupt, on_progress: Listener
    ) -> Applied:
        """Record the plan's nodes. Raises StockoutError if a later plan needs more than could start now.

        The first job of a run may wait in the queue. A job that replaces another may not: the present nodes can
        continue.
        """
        begun, journal = time.monotonic(), Journal.of(self.folder, self.clock)
        started = any(entry.event is Event.GENERATION_STARTED for entry in journal.entries())
        places = scopes_of(document) | {await asyncio.to_thread(self._cluster)}
        journal.append(Event.PROVISION_STARTED, expires_at=expires_at.isoformat(), **scopes_for_journal(places))
        if started:
            await self._check_free(document)
        rows = {row.key for row in fold(journal.entries()).resources if row.resource == NODE}
        for placed in placed_nodes(document):
            self._known.add(placed.node.id)
            if placed.node.id not in rows:
                intend_node(journal, placed)
        self._document, self._expires_at = document, expires_at
        journal.append(Event.PROVISIONED)
        return Applied(
            nodes=await self.reachable_nodes(document), expires_at=expires_at, seconds=time.monotonic() - begun
        )

    def _cluster(self) -> Scope:
        """Return the cluster that answers. Raises ProvisionError if it is not the one that has the run's jobs."""
        check_identity(self.scheduler, self.folder)
        name = f"{self.inventory.name}/{self.scheduler.identity()}"
        return Scope(provider=self.inventory.scheduler, kind=CLUSTER_ID, name=name)

    async def _cancel(self, job_id: str) -> None:
        await asyncio.to_thread(check_identity, self.scheduler, self.folder)
        await asyncio.to_thread(self.scheduler.cancel, job_id, self.inventory)

    async def _check_free(self, document: PlanDocument) -> None:
        own = self._current.state.hosts if self._current is not None else {}
        short, offers = [], []
        for group in groups_of(document):
            free = set(await asyncio.to_thread(self.scheduler.free, group.name, self.inventory, frozenset(self._avoid)))
            if self._current is not None:
                mine = {node for one in self._current.job.groups if one.name == group.name for node in one.nodes}
                free |= {host for node, host in own.items() if node in mine and host not in self._avoid}
            if len(free) < len(group.nodes):
                short.append(f"{len(group.nodes)} x {group.name}, of which {len(free)} could start now")
                offers += [one.offer.id for one in placed_nodes(document) if one.offer.zone == group.name]
        if short:
            raise StockoutError(f"no {' and no '.join(short)}", tuple(sorted(set(offers))))

    async def connect(self, nodes: Sequence[ReachableNode]) -> list[Link]:
        if self._queued:
            self._queued, state = False, await self.state()
            if state is not None and state.phase is not JobPhase.ENDED:
                await self._wait_until_running()
        return [JobLink(fleet=self, node=node) for node in nodes]

    async def reachable_nodes(self, document: PlanDocument) -> tuple[ReachableNode, ...]:
        await self._resumed()
        there = without_address(document, workdir=str(self.home), now=self.clock.now())
        return tuple(node for name, node in there.items() if name in self._known and name not in self._lost)

    async def running(self, document: PlanDocument) -> frozenset[str]:
        await self.state()
        return frozenset(node.id for node in await self.reachable_nodes(document))

    async def all_running(self) -> frozenset[str]:
        return frozenset(self._known - self._lost)

    async def retire(self, nodes: Sequence[str]) -> None:
        if not nodes:
            return
        members = set() if self._current is None else {n for g in self._current.job.groups for n in g.nodes}
        if members & set(nodes):
            await self._end_job()
        journal, ledger = Journal.of(self.folder, self.clock), Ledger.of(self.folder, self.clock)
        for node in nodes:
            self._known.discard(node)
            if node not in self._lost:
                # Only a later query can confirm the end of a node on a lost machine, once that answers again.
                journal.append(Event.GONE, resource=NODE, key=node, confirmed_by=teardown.SWEEP)
            ledger.close_item(ledger_key(node), at=self.clock.now())

    async def destroy(
        self, on_progress: Listener, before_data: Callable[[], None] | None = None
    ) -> teardown.TeardownResult:
        with suppress(ProvisionError):
            # Teardown cancels again and reports errors.
            await self._end_job()
        return await asyncio.to_thread(
            teardown.destroy, self.folder, clock=self.clock, on_progress=on_progress, before_data=before_data
        )

    async def in_background(self, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        return await asyncio.to_thread(work, *arguments, **options)

    # Submit the job of a generation.

    async def start(self, node: str, spec: str, generation: int, members: Sequence[str]) -> None:
        """Submit the generation's job after all its nodes got this call, and wait until it runs.

        Raises UnreachableError if it ends before it runs, LaunchError if it never will run.
        """
        self._wanted[node] = spec
        if not set(members) <= self._wanted.keys():
            return
        self._wanted = {}
        await self._await_end_state()
        self.check_cancelled()
        await self._end_job()
        document = self._document
        assert document is not None, "nodes are created before they are started"
        groups = groups_of(document)
        now, expires_at, told = self.clock.now(), self._expires_at, read_spec(spec)
        job = ClusterJob(
            run_id=self.folder.run_id,
            generation=generation,
            owner=document.job.cloud.owner or "unknown",
            seconds=(expires_at - now).total_seconds() if expires_at else 3600.0,
            expires_at=expires_at,
            inventory=self.inventory,
            groups=groups,
            artefact=artefact(told, groups, master_of(document), secrets.token_hex(16)),
            home=str(self.home),
            runtime=await asyncio.to_thread(self._runtime) if self.scheduler.shares_folders else None,
            checkpoints=told.checkpoint.directory,
            paths=node_paths(told),
            avoid=frozenset(self._avoid),
        )
        job_id = await asyncio.to_thread(self.scheduler.submit, job, self.home)
        Journal.of(self.folder, self.clock).append(Event.JOB_SUBMITTED, generation=generation, job_id=job_id)
        self._current = _Current(
            id=job_id, job=job, document=document, state=JobState(phase=JobPhase.QUEUED), asked_s=-self.ask_s
        )
        self.say(f"submitted job {job_id} of {self.inventory.name}: " + ", ".join(_group(group) for group in groups))
        await self._wait_until_running()

    async def _wait_until_running(self) -> None:
        reported, current = "", self._current
        assert current is not None
        while True:
            state = await self.state()
            assert state is not None
            if state.phase is JobPhase.RUNNING:
                break
            if state.phase is JobPhase.ENDED:
                self.check_cancelled()
                raise UnreachableError(f"job {current.id} ended before it ran: {state.why}")
            if state.cannot_start:
                await self._end_job()
                raise LaunchError(
                    f"job {current.id} can't start: {state.why}; compare partition, constraint, gres, max_time and "
                    f"account of the inventory with the cluster's own, or write it again with 'sailor-cloud import'"
                )
            if state.why != reported:
                reported = state.why
                self.say(f"job {current.id} is queued: {reported}")
            await asyncio.sleep(min(self.ask_s, 1.0))
        now, journal, ledger = self.clock.now(), Journal.of(self.folder, self.clock), Ledger.of(self.folder, self.clock)
        rows = {row.key: row for row in fold(journal.entries()).resources if row.resource == NODE}
        for group in current.job.groups:
            for node in group.nodes:
                host = {"host": current.state.hosts[node]} if node in current.state.hosts else {}
                journal.append(Event.CREATED, resource=NODE, key=node, cloud_id=current.id, **host)
                if rows[node].created_at is None:
                    open_node(ledger, node, rows[node].data, since=now)
                self._price(ledger, node, rows[node].data["usd_per_hour"])

    async def _await_end_state(self) -> None:
        """Wait briefly until the last job's end is known: a job that somebody cancelled has no successor.

        Do not wait for a job that has lost a machine, since its scheduler may wait for that machine.
        """
        current, until = self._current, time.monotonic() + _SETTLES_S
        while current is not None and time.monotonic() < until:
            if any(node in self._lost for group in current.job.groups for node in group.nodes):
                return
            found = await asyncio.to_thread(self.scheduler.state, current.id, current.job)
            current.state = replace(found, hosts=found.hosts or current.state.hosts)
            self._note(current)
            if found.phase is JobPhase.ENDED and not found.ending:
                return
            await asyncio.sleep(0.2)

    async def state(self) -> JobState | None:
        """Return the scheduler's state of the newest job; queries are rate-limited."""
        await self._resumed()
        current = self._current
        if current is None:
            return None
        async with self._asking:
            now = time.monotonic()
            if _over(current.state) or now - current.asked_s < self.ask_s:
                return current.state
            found = await asyncio.to_thread(self.scheduler.state, current.id, current.job)
            if found.phase is JobPhase.ENDED:
                # Another cluster does not know the job, which may still be running.
                await asyncio.to_thread(check_identity, self.scheduler, self.folder)
            current.asked_s = time.monotonic()
            # The scheduler may no longer report the hosts of a job that has ended.
            current.state = replace(found, hosts=found.hosts or current.state.hosts)
            self._note(current)
        return current.state

    def _note(self, current: _Current) -> None:
        """Record nodes on hosts that are down; all nodes if the job was preempted or ended without a reason."""
        state = current.state
        for node in state.lost_nodes:
            self.lose(node)
        if state.phase is not JobPhase.ENDED:
            current.seen = True
            return
        members = [node for group in current.job.groups for node in group.nodes]
        if state.preempted:
            self._lost.update(members)
        ledger = Ledger.of(self.folder, self.clock)
        for node in members:
            self._price(ledger, node, 0.0)

    def _price(self, ledger: Ledger, node: str, usd_per_hour: float) -> None:
        """Charge a node's price while a job has it, and nothing between two jobs."""
        now = self.clock.now()
        ledger.reprice(
            ledger_key(node), usd_per_hour=usd_per_hour, at=now, price_source="cluster.yaml", price_as_of=now.date()
        )

    def check_cancelled(self) -> None:
        """Raise LaunchError if somebody else ended the job: they did not want another one."""
        current = self._current
        if current is None or current.cancelled:
            return
        if current.state.cancelled or (current.state.missing and current.seen):
            raise LaunchError(f"job {current.id} was cancelled outside of this run: {current.state.why}")

    def lose(self, node: str, *, broken: bool = True) -> None:
        """Count a node as lost, and avoid its machine if that is broken."""
        current = self._current
        if node in self._lost or current is None:
            return
        self._lost.add(node)
        host = current.state.hosts.get(node)
        if host and broken:
            self._avoid.add(host)

    def is_lost(self, node: str) -> bool:
        return node in self._lost

    async def stop(self) -> None:
        """Ask the scheduler to end the job; its agents then save and end."""
        if self._current is not None and not self._current.cancelled:
            self._current.cancelled = True
            await self._cancel(self._current.id)

    async def _end_job(self) -> None:
        await self._resumed()
        current = self._current
        ended = current is not None and _over(current.state)
        if current is None or (ended and current.cancelled):
            return
        # A scheduler may still list a job that has ended.
        current.cancelled = True
        await self._cancel(current.id)
        if ended:
            return
        until = time.monotonic() + _ENDS_WITHIN_S
        pause_s = 0.1
        while time.monotonic() < until:
            current.asked_s = -self.ask_s
            state = await self.state()
            if state is None or _over(state) or (state.phase is JobPhase.ENDED and self.scheduler.shares_folders):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)
        raise ProvisionError(f"job {current.id} has not ended {_ENDS_WITHIN_S:.0f} s after it was cancelled")

    def _runtime(self) -> str:
        """Return a folder with the runtime, which is unpacked once."""
        bundle = pack_runtime()
        folder = self.home / "runtime" / bundle.sha256
        if not folder.is_dir():
            _unpack(bundle.content, folder)
        return str(folder)

    async def events(self, node: str, offset: int) -> tuple[bytes, int]:
        """Return what an agent has written since an offset, and the next offset."""
        if self.scheduler.shares_folders:
            content = await asyncio.to_thread(_read_from, self.node_home(node) / EVENTS_FILE, offset)
            return content, offset + len(content)
        current = self._current
        if current is None:
            return b"", offset
        return await asyncio.to_thread(self.scheduler.events, current.id, current.job, node, offset)

    @property
    def generation(self) -> int:
        return self._current.job.generation if self._current is not None else 0

    @property
    def job_id(self) -> str:
        return self._current.id if self._current is not None else ""

    async def _resumed(self) -> None:
        """Take over the job that a dead controller's journal names."""
        if self._current is not None or self._known:
            return
        entries = read(self.folder.journal_file)
        rows = {row.key: row for row in fold(entries).resources if row.resource == NODE}
        number = max(generations(self.folder), default=0)
        if number == 0:
            return
        document = read_plan(self.folder, number)
        assert document.plan is not None
        ids = {str(rows[n.id].data.get("cloud_id", "")) for n in document.plan.nodes if n.id in rows} - {""}
        groups = groups_of(document)
        job = ClusterJob(
            run_id=self.folder.run_id,
            generation=number,
            owner="",
            seconds=0.0,
            expires_at=None,
            inventory=self.inventory,
            groups=groups,
            artefact="",
            home=str(self.home),
        )
        submitted = [
            str(entry.data["job_id"])
            for entry in entries
            if entry.event is Event.JOB_SUBMITTED and entry.data["generation"] == number
        ]
        job_id = submitted[-1] if submitted else None
        if job_id is None:
            await asyncio.to_thread(check_identity, self.scheduler, self.folder)
            job_id = await asyncio.to_thread(self.scheduler.find, job) or max(ids, key=_number, default=None)
        # If the job was still queued when its controller died, the journal lists no created nodes.
        self._queued = job_id is not None and job_id not in ids
        self._lost = {
            name for entry in entries if entry.event is Event.NODES_LOST for name in entry.data.get("nodes", ())
        }
        self._known = {key for key, row in rows.items() if row.live} - self._lost
        self._document = document
        state = fold(read(self.folder.journal_file))
        self._expires_at = state.expires_at
        if job_id is not None:
            self._current = _Current(
                id=job_id,
                job=job,
                document=document,
                state=JobState(phase=JobPhase.QUEUED),
                asked_s=-self.ask_s,
            )


@dataclass(slots=True, kw_only=True)
class JobLink:
    """The controller's end of one agent of a job; see `fleet.Link`."""

    fleet: JobFleet
    node: ReachableNode
    offset: int = 0
    _job: str = ""
    _torn: bytes = b""
    _specs: dict[str, bytes] = field(default_factory=dict)
    _orders: int = 0
    _stopped: set[int] = field(default_factory=set)

    async def ensure_agent(self) -> None:
        """Do nothing: agents start with their job."""
        if self.fleet.is_lost(self.node.id):
            raise UnreachableError(f"the machine of node {self.node.id} is lost")
        if self.fleet.scheduler.shares_folders:
            home, logs = private_dir(self.fleet.node_home(self.node.id)), self.fleet.folder.logs_dir / self.node.id
            private_dir(home / "logs")
            if not logs.exists():
                # `logs` reads them there, during the job and afterwards.
                logs.symlink_to(home / "logs", target_is_directory=True)

    async def upload_code(self, code: Code) -> None:
        assert self.fleet.scheduler.shares_folders, "check_job refuses what pods can't be given"
        folder = self.fleet.node_home(self.node.id) / "code" / code.sha256
        if not folder.is_dir():
            await asyncio.to_thread(_unpack, code.content, folder)

    async def free_port(self, first_choice: int) -> int:
        """Return 0: the agents choose a port when they meet."""
        return 0

    async def write(self, path: str, content: bytes) -> None:
        self._specs[path] = content

    async def command(self, name: str, *, generation: int, plan_hash: str, **details: Any) -> None:
        if name == "start":
            spec = self._specs.pop(details["spec"]).decode()
            members = [node.id for node in read_spec(spec).nodes]
            await self.fleet.start(self.node.id, spec, generation, members)
            return
        self._orders += 1
        if not self.fleet.scheduler.shares_folders:
            await self.fleet.stop()
            return
        body = {"command": name, "generation": generation, "plan_hash": plan_hash, **details}
        inbox = self.fleet.node_home(self.node.id) / "inbox"
        target = inbox / f"{generation:04d}-{self._orders:06d}-{name}.json"
        staged = target.with_suffix(".new")
        try:
            inbox.mkdir(exist_ok=True)
            staged.write_text(json.dumps(body))
            staged.rename(target)
        except OSError as error:
            raise LaunchError(of_system(error)) from error

    async def new_events(self) -> list[AgentEvent]:
        state = await self.fleet.state()
        self.fleet.check_cancelled()
        if self._job != self.fleet.job_id and not self.fleet.scheduler.shares_folders:
            # The pods of another job start from offset 0.
            self.offset, self._torn = 0, b""
        self._job = self.fleet.job_id
        before = self.offset
        data, self.offset = await self.fleet.events(self.node.id, before)
        if self.offset < before:
            self._torn = b""
        *lines, self._torn = (self._torn + data).split(b"\n")
        reported = self._parsed(lines)
        if not self.fleet.scheduler.shares_folders:
            self._keep(reported)
        events = [event for _, event in reported if event["event"] != _LOG]
        for event in events:
            if event["event"] == "stopped" and isinstance(event.get("generation"), int):
                self._stopped.add(event["generation"])
            elif event["event"] == "neighbours_lost":
                for node in event.get("nodes", ()):
                    self.fleet.lose(str(node))
        if not reported and (self.fleet.is_lost(self.node.id) or self._cut_off(state)):
            raise UnreachableError(f"node {self.node.id} is gone: {state.why if state else 'no job'}")
        return events

    def _parsed(self, lines: Sequence[bytes]) -> list[tuple[bytes, AgentEvent]]:
        parsed = ((line, parse_line(line, node=self.node.id)) for line in lines if line.strip())
        return [(line, event) for line, event in parsed if event is not None]

    def _keep(self, parsed: Sequence[tuple[bytes, AgentEvent]], *, logs_alone: bool = False) -> None:
        """Store an agent's output and the logs that it sends; they exist nowhere else."""
        folder = private_dir(self.fleet.folder.logs_dir / self.node.id)
        kept = [line + b"\n" for line, event in parsed if event["event"] != _LOG]
        if kept and not logs_alone:
            with (folder / "agent.log").open("ab") as file:
                file.writelines(kept)
        for _, event in parsed:
            log, offset, text = (event.get(name) for name in ("log", "offset", "text"))
            if event["event"] != _LOG or not isinstance(log, str) or not _RANK_LOG.fullmatch(log):
                continue
            if isinstance(text, str) and isinstance(offset, int) and 0 <= offset <= MOST_LOG_BYTES:
                _write_at(folder / log, offset, text.encode(errors="replace"))

    def _cut_off(self, state: JobState | None) -> bool:
        """Whether the job ended without the agent's `stopped` event."""
        over = state is not None and state.phase is JobPhase.ENDED
        return over and self.fleet.generation not in self._stopped

    async def health(self) -> Health:
        state = await self.fleet.state()
        if self.fleet.is_lost(self.node.id):
            return Health.UNREACHABLE
        if state is not None and state.phase is JobPhase.ENDED:
            return Health.AGENT_DEAD
        return Health.WELL

    async def fetch_logs(self, target: Path) -> None:
        """Store the logs that pods have sent since the last read; `new_events` still gets them."""
        if self.fleet.scheduler.shares_folders or self._job != self.fleet.job_id:
            return
        try:
            data, after = await self.fleet.events(self.node.id, self.offset)
        except ProvisionError as error:
            raise LaunchError(str(error)) from error
        torn = self._torn if after >= self.offset else b""
        self._keep(self._parsed((torn + data).split(b"\n")[:-1]), logs_alone=True)

    async def close(self) -> None:
        pass


def _over(state: JobState) -> bool:
    return state.phase is JobPhase.ENDED and not state.ending


def _group(group: Any) -> str:
    return f"{len(group.nodes)} x {group.name}"


def _number(job_id: str) -> tuple[int, str]:
    return (int(job_id) if job_id.isdigit() else 0, job_id)


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UnreachableError(of_system(error)) from error


def _write_at(path: Path, offset: int, text: bytes) -> None:
    """Write text at its offset in a log; a gap before it is text lost in transit."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        missing = offset - file.seek(0, 2)
        if missing > 0:
            file.write(b"[lost]\n".rjust(missing, b"\n")[:missing])
        file.seek(offset)
        file.write(text)


def _unpack(content: bytes, folder: Path) -> None:
    """Unpack a gzipped tar atomically."""
    partial_folder = folder.with_name(f"{folder.name}.partial")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(partial_folder, filter="data")
    with suppress(OSError):
        partial_folder.rename(folder)
