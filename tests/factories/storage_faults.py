"""Damages the folder of a run that was bought on a fake cloud, runs a command on it, and judges what it claims."""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from factories.cloud_runs import CloudRun, cloud_run, small_document
from sailor_cloud.cli.main import cli
from sailor_cloud.errors import SailorError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.run import appended, journal
from sailor_cloud.run.folder import resource_name
from sailor_cloud.run.journal import Event
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.object_store import ObjectStore, serve_objects
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve

# What the user can name where the run's own files say nothing: a place of each cloud.
NAMED = ("--project", "my-project", "--region", "us-east-1")
_BUCKETS = ("google_storage_bucket", "aws_s3_bucket")


class Damage(StrEnum):
    MISSING = "missing"
    EMPTY = "empty"
    CUT = "cut in the middle"
    GARBAGE = "garbage"
    ZEROS = "NUL-filled"


class Verdict(StrEnum):
    """What a command did with a damaged folder, the good ones first."""

    GONE = "all gone, and said so"
    UNSURE = "not confirmed, and said so; gone after the user named the place"
    NAMELESS = "nothing was ever bought; not confirmed, since nothing in the folder names its run"
    REFUSED = "refused with one error; 'down' removed all"
    WENT_ON = "reached the end, and all gone"
    LIVE = "left alone, since somebody else's"
    FALSE_GONE = "FALSE GONE"
    TRACEBACK = "TRACEBACK"
    LEAK = "LEAK"
    LOST = "RESULTS LOST"
    TAKEN = "TAKEN FROM SOMEBODY ELSE"
    WRONG = "WRONG TIMES OR AMOUNTS"

    @property
    def good(self) -> bool:
        return self in (
            Verdict.GONE,
            Verdict.UNSURE,
            Verdict.NAMELESS,
            Verdict.REFUSED,
            Verdict.WENT_ON,
            Verdict.LIVE,
        )


def harm(path: Path, damage: Damage) -> None:
    """Damage a file, or each file in a folder; a folder that is missing is gone with all that is in it."""
    forget()
    if path.is_dir():
        if damage is Damage.MISSING:
            shutil.rmtree(path)
        else:
            for file in sorted(path.rglob("*")):
                if file.is_file() and not file.is_symlink():
                    harm(file, damage)
        return
    if damage is Damage.MISSING:
        path.unlink(missing_ok=True)
        return
    content = path.read_bytes() if path.is_file() else b""
    noise = random.Random(f"{path.name}{len(content)}").randbytes(max(64, len(content)))
    path.write_bytes(
        {
            Damage.EMPTY: b"",
            Damage.CUT: content[: len(content) // 2],
            Damage.GARBAGE: noise,
            Damage.ZEROS: bytes(max(64, len(content))),
        }[damage]
    )


def forget() -> None:
    """Forget what this process has read and not written, as if another one came."""
    journal._READ.clear()
    appended._KEPT.clear()


@dataclass(slots=True, kw_only=True)
class Bought:
    """A run that was bought and trained a little, as its controller left it; `again` brings it back for a next fault.

    Its own bucket holds a checkpoint that nobody has fetched.
    """

    run: CloudRun
    store: ObjectStore
    _folder: Path
    _cloud: dict[tuple[str, str], dict[str, Any]]
    _objects: dict[tuple[str, str], bytes]

    def again(self) -> None:
        path = self.run.run.folder.path
        shutil.rmtree(path)
        shutil.copytree(self._folder, path, symlinks=True)
        self.run.cloud.resources = copy.deepcopy(self._cloud)
        self.run.cloud.failures.clear()
        self.store.objects = dict(self._objects)
        forget()

    @property
    def path(self) -> Path:
        return self.run.run.folder.path

    def left(self) -> tuple[tuple[str, str], ...]:
        """Return what the cloud still has of the run, without the bucket that is kept for its results."""
        return tuple(key for key in self.run.cloud.owned_by(self.run.run.run_id) if key[0] not in _BUCKETS)

    def untouched(self) -> bool:
        """Tell whether the cloud has never made anything for the run."""
        made = {tuple(key) for what, *key in self.run.cloud.history if what == "created"}
        return made <= self.run.foreign

    def results(self) -> tuple[dict[tuple[str, str], bytes], bool]:
        """Return the objects that nobody has fetched, and whether their bucket is there: it goes with all in it."""
        buckets = {bucket for bucket, _ in self.store.objects}
        return dict(self.store.objects), buckets <= {
            str(state.get("name") or state.get("bucket"))
            for (kind, _), state in self.run.cloud.resources.items()
            if kind in _BUCKETS
        }

    def files(self) -> list[str]:
        """Return the files of the folder that a command reads or writes, one for each sort of Terraform's."""
        found = [file.relative_to(self.path) for file in sorted(self.path.rglob("*")) if file.is_file()]
        plain = [str(file) for file in found if ".terraform/" not in f"{file}/" and "modules/" not in str(file)]
        return [name for name in plain if not name.startswith("logs/terraform")]


def with_bucket(provider: Provider) -> PlanDocument:
    base = small_document(provider)
    checkpoint = base.job.checkpoint.model_copy(update={"to": None})
    return replace(base, job=base.job.model_copy(update={"checkpoint": checkpoint}))


@contextmanager
def bought(provider: Provider, root: Path, *, apply: bool = True) -> Iterator[Bought]:
    """A bought run on a cloud of its own, in the environment of this process; without `apply` it is to be bought."""
    with ExitStack() as stack:
        cloud, store = FakeCloud(), ObjectStore()
        _ours(cloud, provider)
        objects = stack.enter_context(serve_objects(store))
        served = stack.enter_context(serve(cloud))
        # The other cloud answers, too, where the user names it.
        for api, of in ((serve_compute, Provider("gcp")), (serve_ec2, Provider("aws"))):
            served |= stack.enter_context(api(cloud, store=store if of == provider else None))
        if provider is Provider("aws"):
            served["AWS_ENDPOINT_URL_S3"] = objects
        home = root / "home"
        stack.enter_context(in_environment({**served, "SAILOR_CLOUD_HOME": str(home)}))
        runs = stack.enter_context(cloud_run(provider, home / "runs", document=with_bucket(provider), cloud=cloud))
        if apply:
            applied_or_raise(runs.apply())
        name = resource_name(runs.run.run_id, "data")
        scheme = "gs" if provider is Provider("gcp") else "s3"
        if apply:
            runs.journal().append(Event.CHECKPOINT_SAVED, path=f"{scheme}://{name}/checkpoints/step-10", step=10)
            store.objects[name, "checkpoints/step-10/weights"] = b"weights"
        runs.run.folder.keep_reserve()
        (runs.run.folder.path / "lock").write_text("")
        kept = root / "as-it-was"
        shutil.copytree(runs.run.folder.path, kept, symlinks=True)
        yield Bought(
            run=runs,
            store=store,
            _folder=kept,
            _cloud=copy.deepcopy(cloud.resources),
            _objects=dict(store.objects),
        )


def _ours(cloud: FakeCloud, provider: Provider) -> None:
    from factories.cloud_runs import _add_foreign

    _add_foreign(cloud, provider)


@dataclass(slots=True, kw_only=True)
class Answer:
    """What a command said; `broken` holds the traceback that a user would see."""

    code: int
    text: str
    broken: str = ""


def called(*arguments: str) -> Answer:
    """Run a command in this process, as `main` does in one of its own."""
    forget()
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    error = done.exception
    text = done.output + (f"error: {error}" if error else "")
    if error is None:
        return Answer(code=done.return_value if isinstance(done.return_value, int) else 0, text=text)
    if isinstance(error, SailorError | click.ClickException):
        return Answer(code=error.exit_code, text=text)
    if isinstance(error, OSError):
        return Answer(code=1, text=text)
    return Answer(code=1, text=text, broken="".join(traceback.format_exception(error)))


@dataclass(slots=True, kw_only=True)
class Case:
    """One fault and what came of it."""

    cloud: str
    command: str
    fault: str
    verdict: Verdict
    text: str = field(default="", repr=False)


def judged(bought: Bought, command: str, fault: str) -> Case:
    """Run `down` or `reap` on the folder as it is now, and then what its answer tells the user to do."""
    run_id = bought.run.run.run_id
    arguments = ("down", run_id) if command == "down" else ("reap", "--yes", *NAMED)
    kept = bought.results()
    answer = called(*arguments)

    def case(verdict: Verdict) -> Case:
        return Case(cloud=bought.run.provider, command=command, fault=fault, verdict=verdict, text=answer.text)

    if answer.broken:
        answer.text += answer.broken
        return case(Verdict.TRACEBACK)
    if answer.code == 0 and bought.left():
        return case(Verdict.FALSE_GONE)
    if kept != bought.results():
        return case(Verdict.LOST)
    if answer.code == 0:
        return case(Verdict.GONE)
    again = called("down", run_id, *NAMED)
    answer.text += f"\n--- down {' '.join(NAMED)}: {again.code}\n{again.text}"
    if again.broken:
        return case(Verdict.TRACEBACK)
    if bought.left():
        return case(Verdict.LEAK if again.code else Verdict.FALSE_GONE)
    if kept != bought.results():
        return case(Verdict.LOST)
    if again.code == 0:
        return case(Verdict.UNSURE)
    nameless = bought.untouched() and "names its run" in " ".join(again.text.split())
    return case(Verdict.NAMELESS if nameless else Verdict.LEAK)


@dataclass(slots=True)
class Writes:
    """How often something below a folder was opened for writing, or made."""

    count: int = 0


@contextmanager
def counted(path: Path, at: Callable[[int, str], None]) -> Iterator[Writes]:
    """Call `at` with number and place before each write of this process below a folder; it may raise OSError."""
    real: dict[str, Callable[..., Any]] = {"open": os.open, "mkdir": os.mkdir}
    writes, flags = Writes(), os.O_CREAT | os.O_WRONLY | os.O_RDWR

    def watched(name: str) -> Callable[..., Any]:
        def call(where: Any, *details: Any, **options: Any) -> Any:
            writing = not os.path.isdir(where) if name == "mkdir" else details[0] & flags
            if writing and str(where).startswith(str(path)):
                writes.count += 1
                at(writes.count, str(where))
            return real[name](where, *details, **options)

        return call

    for name in real:
        setattr(os, name, watched(name))
    try:
        yield writes
    finally:
        for name, call in real.items():
            setattr(os, name, call)


@contextmanager
def unwritable(path: Path, number: int = errno.ENOSPC, *, after: int = 0) -> Iterator[Writes]:
    """Have each write of this process below a folder fail, but for the first ones; a stand-in for a full disk."""

    def fail(count: int, where: str) -> None:
        if count > after:
            raise OSError(number, os.strerror(number), where)

    with counted(path, fail) as writes:
        yield writes


@contextmanager
def without_waiting() -> Iterator[None]:
    """Have a teardown not wait for what a dead controller may have asked for a moment ago."""
    settle = teardown._SETTLE_S
    teardown._SETTLE_S = 0.0
    try:
        yield
    finally:
        teardown._SETTLE_S = settle
