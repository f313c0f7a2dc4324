"""The folder of one run: its paths, its lock and its atomic files."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog import clusters
from sailor_cloud.clock import Clock
from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import Problem, RequestError, SailorError, of_system
from sailor_cloud.model.document import PlanDocument

_STAMP = "%Y%m%d-%H%M%S"
# A teardown writes its journal, its receipt and Terraform's states; 256 nodes need less than 2 MiB.
_RESERVE, _RESERVE_BYTES = "reserve", 4 * 2**20
# Folders for nodes, jobs and Terraform's own plugins; they contain no files of the run itself.
_FOREIGN = frozenset({"nodes", "results", "checkpoints", ".terraform"})
_LEADS_OUT = "is a link that leads out of the run's folder"
# No file that a command reads as a whole is larger; logs grow as long as the ranks write.
_MOST_BYTES = 2**30
# The faults of a damaged plan that a message names; a plan of another version has hundreds.
_MOST_SHOWN = 3
# The prefix of all cloud resources' names, for every run.
FIRST_OF_NAMES = "sc-"


class RunLockedError(SailorError):
    """Another process works on the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The process that works on a run."""

    pid: int
    command: str
    since: datetime


def new_run_id(job_name: str, *, clock: Clock, suffix: str | None = None) -> str:
    """Return an id such as `opt-350m-20261121-051313-a1b2`: job, UTC time and a random suffix."""
    return f"{job_name}-{clock.now().astimezone(UTC):{_STAMP}}-{suffix or secrets.token_hex(2)}"


def start_time_of(run_id: str) -> datetime | None:
    """Return the time in a run's id, None if it has none."""
    try:
        return datetime.strptime(_stamp(run_id), _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


def resource_prefix(run_id: str) -> str:
    """Return the prefix of a run's cloud resources; the same run always gives the same names.

    A hash keeps the names of long job names within the 63 characters that clouds allow.
    """
    return f"{FIRST_OF_NAMES}{hashlib.sha256(run_id.encode()).hexdigest()[:10]}"


def resource_name(run_id: str, part: str) -> str:
    """Return the name of one cloud resource of a run."""
    return f"{resource_prefix(run_id)}-{part}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A run's folder; every directory in it has mode 0700 and every file 0600."""

    run_id: str
    path: Path

    @classmethod
    def create(cls, run_id: str, *, root: Path | None = None) -> RunFolder:
        """Make the folder of a new run. Raises RequestError if the run exists."""
        folder = cls(run_id=run_id, path=runs_root(root) / run_id)
        try:
            folder.path.mkdir(mode=0o700, parents=True)
        except FileExistsError as error:
            raise RequestError(f"run {run_id!r} exists already in {folder.path}") from error
        except OSError as error:
            raise RequestError(
                f"can't make {folder.path}: {error.strerror}; SAILOR_CLOUD_HOME names the folder that keeps runs"
            ) from error
        for directory in (folder.logs_dir, folder.results_dir, folder.checkpoints_dir, folder.nodes_dir):
            directory.mkdir(mode=0o700)
        return folder

    @classmethod
    def open(cls, run_id: str, *, root: Path | None = None, unfinished: bool = False) -> RunFolder:
        """Return the folder of a run by its id or a prefix, which fits one (`unfinished`) run. Raises RequestError."""
        known = run_ids(root)
        fitting = [name for name in known if run_id and name.startswith(run_id)]
        if unfinished:
            under_way = [n for n in fitting if not cls(run_id=n, path=runs_root(root) / n).receipt_file.is_file()]
            fitting = under_way or fitting
        if run_id not in known and len(fitting) != 1:
            raise RequestError([_unknown_run(run_id, fitting, known, runs_root(root))])
        name = run_id if run_id in known else fitting[0]
        folder = cls(run_id=name, path=runs_root(root) / name)
        folder.check()
        return folder

    @classmethod
    def list(cls, *, root: Path | None = None, checked: bool = True) -> tuple[RunFolder, ...]:
        """Return all runs, oldest first. Raises RequestError if one can't be read, unless the caller checks each."""
        found = tuple(cls(run_id=name, path=runs_root(root) / name) for name in run_ids(root))
        for folder in found if checked else ():
            folder.check()
        return found

    def check(self) -> None:
        """Raise RequestError if the folder has a file that no command can use safely.

        A FIFO, socket or device would block readers, a huge file would fill the memory. Through a link that leads out
        of the folder, commands would overwrite a file that is not the run's.
        """
        for place, folders, files in os.walk(self.path):
            # Of a cluster's node only its events are the run's; code, packages and logs below are the job's own.
            of_node = Path(place).parent == self.cluster_dir
            folders[:] = [] if of_node else [name for name in folders if name not in _FOREIGN]
            for file in (Path(place, name) for name in files):
                with contextlib.suppress(OSError):
                    if why := self._unusable(file):
                        then = f"then 'sailor-cloud down {self.run_id}' and the other commands work again"
                        raise RequestError(f"{file} {why}; delete it, {then}")

    def _unusable(self, file: Path) -> str:
        """Return why a file can't be the run's; empty if it can. Raises OSError."""
        # Logs grow without a limit, may be links to a cluster's shared folder, and are only read.
        is_log = self.logs_dir in file.parents and file != self.events_file
        # Unlike `resolve`, this takes a link to itself.
        leads_out = file.is_symlink() and not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(self.path))
        if leads_out and not is_log and not file.exists():
            return _LEADS_OUT
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a file but a FIFO, a socket or a device"
        if is_log:
            return ""
        if leads_out:
            return _LEADS_OUT
        return f"is larger than {_MOST_BYTES // 2**30} GiB" if found.st_size > _MOST_BYTES else ""

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def journal_file(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def ledger_file(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def receipt_file(self) -> Path:
        return self.path / "receipt.json"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def ssh_key_file(self) -> Path:
        """The run's private SSH key."""
        return self.path / "ssh_key"

    @property
    def public_key_file(self) -> Path:
        """The public key in OpenSSH's form; its comment is the run's id."""
        return self.path / "ssh_key.pub"

    @property
    def terraform_config_file(self) -> Path:
        return self.path / "terraform" / "cli.tfrc"

    @property
    def logs_dir(self) -> Path:
        return self.path / "logs"

    @property
    def events_file(self) -> Path:
        """The agents' events, as far as a controller has read them."""
        return self.logs_dir / "events.jsonl"

    @property
    def results_dir(self) -> Path:
        return self.path / "results"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def nodes_dir(self) -> Path:
        return self.path / "nodes"

    @property
    def cluster_dir(self) -> Path:
        """The scripts of a scheduler's jobs, and a folder for each of its nodes."""
        return self.path / "cluster"

    def node_dir(self, node_id: str) -> Path:
        return self.nodes_dir / node_id

    def terraform_dir(self, provider: str, region: str) -> Path:
        """Return the root of one provider and region, which has its own state."""
        return self.path / "terraform" / f"{provider}-{region}"

    def terraform_dirs(self) -> tuple[Path, ...]:
        """Return the existing roots."""
        base = self.path / "terraform"
        return tuple(sorted(entry for entry in base.iterdir() if entry.is_dir())) if base.is_dir() else ()

    def write_text(self, name: str, text: str) -> Path:
        """Write a file of the run atomically: a reader sees the old text or the new one."""
        target = self.path / name
        private_dir(target.parent)
        write_atomically(target, text)
        return target

    def write_document(self, document: PlanDocument) -> None:
        self.write_text(self.plan_file.name, document.to_json())

    def read_document(self, path: Path | None = None) -> PlanDocument:
        """Return the run's plan, or a later one in `path`. Raises RequestError if it is missing or damaged."""
        path = path or self.plan_file
        down = f"'sailor-cloud down {self.run_id}' removes what it may have bought"
        if not path.is_file():
            raise RequestError(f"run {self.run_id} has no plan in {path}; {down}")
        try:
            document = PlanDocument.from_json(path.read_bytes(), origin=str(path))
        except RequestError as error:
            # Its hints are about plans that users write.
            why = "; ".join(str(replace(problem, hint="")) for problem in error.problems[:_MOST_SHOWN])
            raise RequestError(f"run {self.run_id}: {why}; {down}") from error
        except OSError as error:
            raise RequestError(f"run {self.run_id}: {of_system(error)}; {down}") from error
        clusters.register_inventory(document.job)
        return document

    def keep_reserve(self) -> None:
        """Reserve disk space for a teardown's own files, in case the disk is full by then."""
        handle = os.open(self.path / _RESERVE, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, _RESERVE_BYTES)
        finally:
            os.close(handle)

    def release_reserve(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).unlink()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run exclusively. Raises RunLockedError with the process that holds it.

        Both the folder and the file in it are locked. The file may be deleted, or can't be made on a full disk; some
        network file systems can't lock a folder.
        """
        with contextlib.ExitStack() as held:
            locked = [self._flocked(held, path, flags) for path, flags in self._lockable]
            if not any(locked):
                raise RequestError(f"run {self.run_id} can't be locked: {self.path} can't be opened")
            with contextlib.suppress(OSError):
                me = {"pid": os.getpid(), "command": " ".join(sys.argv), "since": datetime.now(UTC).isoformat()}
                self.lock_file.write_text(json.dumps(me))
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.truncate(self.lock_file, 0)

    def lock_holder(self) -> LockHolder | None:
        """Return the process that holds the run, or None if it is free."""
        for path in (self.path, self.lock_file):
            with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                handle = os.open(path, os.O_RDONLY)
                held.callback(os.close, handle)
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return self._holder()
        return None

    @property
    def _lockable(self) -> tuple[tuple[Path, int], ...]:
        return (self.path, os.O_RDONLY), (self.lock_file, os.O_RDWR | os.O_CREAT)

    def _flocked(self, held: contextlib.ExitStack, path: Path, flags: int) -> bool:
        """Lock a file or folder until `held` is closed; False if it can't be locked at all."""
        try:
            handle = os.open(path, flags, 0o600)
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunLockedError(self.locked_message()) from None
        except OSError:
            return False
        return True

    def _holder(self) -> LockHolder:
        try:
            return _read_holder(self.lock_file.read_text(errors="replace"))
        except OSError:
            return _read_holder("")

    def locked_message(self) -> str:
        """Return which process holds the run, and how to end that."""
        holder = self._holder()
        if holder.pid <= 1:
            return f"run {self.run_id} is held by a process that its lock file does not name; try again soon"
        held = f"run {self.run_id} is held by process {holder.pid} ({holder.command}) since {holder.since:%H:%M:%S} UTC"
        if _is_stopped(holder.pid):
            # Signals wait until it continues.
            ends = f"'kill -INT {holder.pid}; kill -CONT {holder.pid}' ends its run"
            return f"{held}, and it is stopped, as by Ctrl-Z; 'kill -CONT {holder.pid}' continues it, {ends}"
        return f"{held}; wait for it or interrupt it with 'kill -INT {holder.pid}'"


def private_dir(path: Path) -> Path:
    """Make a directory with mode 0700, with its parents; an existing one stays as it is."""
    for parent in (*reversed(path.parents), path):
        parent.mkdir(mode=0o700, exist_ok=True)
    return path


def run_ids(root: Path | None = None) -> list[str]:
    """Return the ids of all runs, oldest first."""
    base = runs_root(root)
    names = [entry.name for entry in base.iterdir() if entry.is_dir()] if base.is_dir() else []
    return sorted(names, key=_age_key)


def runs_root(root: Path | None = None) -> Path:
    """Return the folder of all runs."""
    return root if root is not None else resources.home() / "runs"


def _age_key(run_id: str) -> tuple[str, str]:
    return _stamp(run_id), run_id


def _stamp(run_id: str) -> str:
    return "-".join(run_id.split("-")[-3:-1])


def _is_stopped(pid: int) -> bool:
    """Whether a process of this machine is stopped; False where nothing tells."""
    with contextlib.suppress(OSError):
        # The state follows the name in brackets.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:1] == ["T"]
    return False


def _read_holder(text: str) -> LockHolder:
    """Return the holder; its name may briefly be missing, because it is written just after locking."""
    try:
        raw = json.loads(text)
        return LockHolder(pid=int(raw["pid"]), command=str(raw["command"]), since=datetime.fromisoformat(raw["since"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return LockHolder(pid=0, command="unknown", since=datetime.now(UTC))


def _unknown_run(run_id: str, fitting: list[str], known: list[str], root: Path) -> Problem:
    if fitting:
        return Problem(path="", message=f"{run_id!r} begins the names of {len(fitting)} runs", hint=", ".join(fitting))
    if not known:
        return Problem(path="", message=f"there is no run {run_id!r}; {root} holds none")
    close = difflib.get_close_matches(run_id, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the newest runs are {', '.join(known[-3:])}"
    return Problem(path="", message=f"there is no run {run_id!r}", hint=hint)
