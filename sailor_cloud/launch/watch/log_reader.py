"""Reads the logs of a run: from its nodes while they live, later from the run folder."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from sailor_cloud.errors import LaunchError, RequestError
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.launch.fleet.ssh import NodeConnection, left_out
from sailor_cloud.launch.telemetry.generation_log import generations, read_plan
from sailor_cloud.launch.watch.event_text import event_text
from sailor_cloud.provision.access.nodes import ReachableNode, reachable_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.state import Phase, fold

_RANK_LOG = re.compile(r"g(\d+)-rank(\d+)\.log")

# Of each log at once; ranks may write many GB.
MOST_SHOWN_BYTES = 8 * 2**20

# Arguments: node, log name, and a line without its end.
Show = Callable[[str, str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The wanted logs; None means all."""

    node: str | None = None
    rank: int | None = None

    def has(self, node: str, log: str) -> bool:
        if self.node is not None and node != self.node:
            return False
        match = _RANK_LOG.fullmatch(log)
        return self.rank is None or (match is not None and int(match[2]) == self.rank)


@dataclass(slots=True)
class _Tail:
    """The read position in one log."""

    offset: int = 0
    torn: bytes = b""

    def lines(self, data: bytes) -> list[str]:
        self.offset += len(data)
        *whole, self.torn = (self.torn + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def live_nodes(folder: RunFolder) -> tuple[ReachableNode, ...]:
    """Return the running nodes of the newest generation."""
    document = read_plan(folder, max(generations(folder), default=1))
    return reachable_nodes(folder, document)


def node_of(folder: RunFolder, name: str | None) -> ReachableNode:
    """Return a running node by name, or the first one. Raises RequestError."""
    found = live_nodes(folder)
    if not found:
        raise RequestError(f"no node of run {folder.run_id} runs now; its logs are in {folder.logs_dir}")
    if name is None:
        return found[0]
    for node in found:
        if node.id == name:
            return node
    raise RequestError(f"run {folder.run_id} has no node {name!r}; nodes: {', '.join(node.id for node in found)}")


async def show_logs(
    folder: RunFolder, selection: Selection, show: Show, *, follow: bool, interval_s: float = 0.5
) -> None:
    """Show logs, node by node; with `follow`, continue until the run has ended.

    Raises RequestError if no log fits the selection.
    """
    reader = _Reader(folder, selection, show)
    try:
        while True:
            await reader.once()
            if not reader.shown and selection == Selection():
                reader.show_events()
            over = fold(read(folder.journal_file)).phase is Phase.GONE
            if not follow or over:
                if over:
                    await reader.once()
                break
            await asyncio.sleep(interval_s)
    finally:
        await reader.close()
    if reader.tails and not reader.shown and not reader.entries_shown:
        empty = ", ".join(f"{node}/{log}" for node, log in reader.tails)
        raise RequestError(f"the matching logs of run {folder.run_id} are empty: {empty}")
    if not reader.tails and not reader.entries_shown:
        raise RequestError(_nothing_found(reader))


def _nothing_found(reader: _Reader) -> str:
    """Return why no log was found: the nodes and ranks that have logs, or where logs would be."""
    folder = reader.folder
    if not reader.known:
        status = f"'sailor-cloud status {folder.run_id}' shows its state"
        return reader.plan_fault or f"run {folder.run_id} has no logs in {folder.logs_dir}; {status}"
    nodes = sorted({node for node, _ in reader.known})
    ranks = sorted({int(match[2]) for _, log in reader.known if (match := _RANK_LOG.fullmatch(log))})
    have = f"nodes {', '.join(nodes)}" + (f", ranks {', '.join(map(str, ranks))}" if ranks else "")
    return f"run {folder.run_id} has no matching logs; it has those of {have}"


@dataclass(slots=True)
class _Reader:
    folder: RunFolder
    selection: Selection
    show: Show
    tails: dict[tuple[str, str], _Tail] = field(default_factory=dict)
    connections: dict[str, NodeConnection] = field(default_factory=dict)
    # Whether a log line was shown; until then, the number of journal entries shown.
    shown: bool = False
    entries_shown: int = 0
    # All logs by node and name, chosen or not; why the nodes are unknown.
    known: set[tuple[str, str]] = field(default_factory=set)
    plan_fault: str = ""

    def show_events(self) -> None:
        """Show new journal entries: the only output before the first rank starts."""
        entries = read(self.folder.journal_file)
        for entry in entries[self.entries_shown :]:
            self.show("run", "controller.log", event_text(entry))
        self.entries_shown = len(entries)

    async def once(self) -> None:
        try:
            live = {node.id: node for node in live_nodes(self.folder)}
        except RequestError as error:
            # Only nodes that live are in the plan.
            live, self.plan_fault = {}, str(error)
        for node in live.values():
            try:
                await self._from_node(node)
            except UnreachableError:
                continue
            except LaunchError:
                # The node is ending; the folder has what was fetched before.
                continue
        for directory in sorted(entry for entry in self.folder.logs_dir.glob("*") if entry.is_dir()):
            if directory.name not in live:
                self._from_folder(directory.name)

    async def close(self) -> None:
        for connection in self.connections.values():
            await connection.close()

    async def _from_node(self, node: ReachableNode) -> None:
        connection = self.connections.setdefault(node.id, NodeConnection(node, self.folder.ssh_key_file))
        for path in await connection.list_files("logs/*.log"):
            name = path.rpartition("/")[2]
            self.known.add((node.id, name))
            if self.selection.has(node.id, name):
                tail = self.tails.setdefault((node.id, name), _Tail())
                read = await connection.read_tail(f"logs/{name}", tail.offset, MOST_SHOWN_BYTES)
                self._pass_on(node.id, name, tail, *read)

    def _from_folder(self, node: str) -> None:
        for path in sorted((self.folder.logs_dir / node).glob("*.log")):
            self.known.add((node, path.name))
            if self.selection.has(node, path.name):
                tail = self.tails.setdefault((node, path.name), _Tail())
                with path.open("rb") as file:
                    start = max(tail.offset, file.seek(0, os.SEEK_END) - MOST_SHOWN_BYTES)
                    file.seek(start)
                    self._pass_on(node, path.name, tail, start, file.read(MOST_SHOWN_BYTES))

    def _pass_on(self, node: str, name: str, tail: _Tail, start: int, data: bytes) -> None:
        if start > tail.offset:
            self.show(node, name, left_out(start - tail.offset))
            tail.offset, tail.torn = start, b""
        for line in tail.lines(data):
            self.shown = True
            self.show(node, name, line)
