"""Monthly budgets of owners and projects over all their runs: `budgets.yaml`, and the reservations of runs.

Reservations are one JSON object per month. One is in this user's folder of runs, for all runs of this machine. Another
is next to the Terraform states if jobs keep those in a bucket, for all runs that do so. Two `up`s can't both take the
last dollar: the bucket's object is written only if it is unchanged since it was read, the file under a lock.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import DataError, Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, StateBackend
from sailor_cloud.model.job_file import read_yaml
from sailor_cloud.model.untrusted import MOST_JOB_VALUES, check_values, read_at_most
from sailor_cloud.run.folder import private_dir, run_ids
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

FILE = "budgets.yaml"
EVERY_MONTH = "*"
_MOST_BYTES = 2**20
# A month's reservations of a large company are well below this.
_MOST_BYTES_IN_BUCKET = 16 * 2**20
_MOST_TRIES = 20
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])|\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """USD that an owner's or a project's runs may cost in a month, by the month in which they begin."""

    owner: str | None
    project: str | None
    month: str
    usd: float

    def holds_for(self, owner: str | None, project: str | None, month: str) -> bool:
        named = self.owner == owner if self.owner is not None else self.project == project
        return named and self.month in (EVERY_MONTH, month)

    @property
    def whose(self) -> str:
        return f"owner {self.owner}" if self.owner is not None else f"project {self.project}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The most that a run may cost or, once its receipt is written, its actual cost."""

    run_id: str
    owner: str | None
    project: str | None
    month: str
    reserved_usd: float
    spent_usd: float | None = None

    @property
    def counted_usd(self) -> float:
        return self.reserved_usd if self.spent_usd is None else self.spent_usd


Entries = tuple[Reservation, ...]


class Book(Protocol):
    """The store of a month's reservations. `shared`: other machines see them."""

    shared: bool

    def name(self, month: str) -> str:
        """Return the file or object with a month's reservations."""

    def change(self, month: str, update: Callable[[Entries], Entries]) -> None:
        """Replace the entries by the result of `update`, atomically."""


def read_allowances(path: Path) -> tuple[Allowance, ...]:
    """Return the budgets of a file; empty without a file. Raises RequestError with every fault and its place."""
    try:
        text = read_at_most(path, _MOST_BYTES)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise RequestError(f"can't read {path}: {error.strerror}") from error
    return parse_allowances(text, origin=str(path))


def parse_allowances(text: bytes, *, origin: str) -> tuple[Allowance, ...]:
    """Return the budgets of a text: a list of `{owner or project, month: 2026-11 or "*", usd}`."""
    try:
        rows = read_yaml(text.decode(), origin=origin)
    except UnicodeDecodeError as error:
        raise RequestError(f"{origin} is not UTF-8 text: {error}") from error
    check_values(rows, origin=origin, most=MOST_JOB_VALUES)
    if not isinstance(rows, list):
        example = '- {owner: me@example.org, month: "*", usd: 5000}'
        raise RequestError(f"{origin} must be a list of budgets, such as {example}")
    problems: list[Problem] = []
    found = [_allowance(row, f"{origin}: {number}", problems) for number, row in enumerate(rows)]
    if problems:
        raise RequestError(problems)
    return tuple(allowance for allowance in found if allowance is not None)


def _allowance(row: Any, path: str, problems: list[Problem]) -> Allowance | None:
    if not isinstance(row, dict) or set(row) - {"owner", "project", "month", "usd"}:
        problems.append(Problem(path=path, message=f"holds owner or project, month and usd, not {row!r}"))
        return None
    owner, project, month, usd = row.get("owner"), row.get("project"), row.get("month"), row.get("usd")
    faults = []
    if (owner is None) == (project is None) or not isinstance(owner or project, str):
        faults.append("needs either an owner or a project")
    if not isinstance(month, str) or not _MONTH.fullmatch(month):
        faults.append(f"month must be as in '2026-11', or '*' for every month, not {month!r}")
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < math.inf:
        faults.append(f"usd must be an amount of money, not {usd!r}")
    if faults:
        problems += [Problem(path=path, message=message) for message in faults]
        return None
    return Allowance(owner=owner, project=project, month=str(month), usd=float(str(usd)))


@dataclass(slots=True, kw_only=True)
class LocalBook:
    """Reservations in this user's folder of runs, for all runs of this machine."""

    folder: Path
    shared: bool = False

    def name(self, month: str) -> str:
        return str(self.folder / f"{month}.json")

    def change(self, month: str, update: Callable[[Entries], Entries]) -> None:
        private_dir(self.folder)
        file = Path(self.name(month))
        handle = os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            before = _entries(file.read_bytes(), str(file)) if file.exists() else ()
            if (after := update(before)) != before:
                write_atomically(file, _text(after))
        finally:
            os.close(handle)


@dataclass(slots=True, kw_only=True)
class BucketBook:
    """Reservations in a bucket of S3 or Cloud Storage; a write replaces only the version that was read."""

    store: ObjectStore
    prefix: str
    shared: bool = True

    def name(self, month: str) -> str:
        return f"{self.prefix}/budgets/{month}.json"

    def change(self, month: str, update: Callable[[Entries], Entries]) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        name = self.name(month)
        for _ in range(_MOST_TRIES):
            mode: Any = "create"
            before: Entries = ()
            try:
                with suppress(FileNotFoundError):
                    held = obstore.get(self.store, name)
                    tag, version = held.meta["e_tag"], held.meta["version"]
                    mode = {key: value for key, value in (("e_tag", tag), ("version", version)) if value is not None}
                    before = _entries(_content(held, name), name)
                if (after := update(before)) == before:
                    return
                with suppress(AlreadyExistsError, PreconditionError):
                    obstore.put(self.store, name, _text(after).encode(), mode=mode)
                    return
            except BaseError as error:
                raise DataError(f"{name} can't be read or written: {_brief(error)}") from error
        raise DataError(f"{name} was changed by others {_MOST_TRIES} times in a row; start 'sailor-cloud up' again")

    def budgets_file(self) -> tuple[str, bytes]:
        """Return the name and the text of the budgets in the bucket itself. Raises DataError."""
        import obstore
        from obstore.exceptions import BaseError

        name = f"{self.prefix}/{FILE}"
        try:
            return name, _content(obstore.get(self.store, name), name)
        except FileNotFoundError:
            return name, b"[]"
        except BaseError as error:
            raise DataError(f"{name} can't be read: {_brief(error)}") from error


def bucket_book(state: StateBackend) -> BucketBook:
    """Return the book next to shared Terraform states.

    Raises RequestError if obstore is not installed, DataError if credentials can't be read.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise RequestError(
            f"budgets in {state.bucket} need the package obstore; run pip install 'sailor-cloud[stores]'"
        ) from error
    plain = any(os.environ.get(name, "").startswith("http://") for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))
    options: Any = {"client_options": {"allow_http": plain, "timeout": "20s"}, "retry_config": _RETRY}
    if state.region is not None:
        options["region"] = state.region
        with suppress(ImportError, ValueError):
            # Adds profiles and SSO, which obstore itself does not support.
            from botocore.exceptions import BotoCoreError
            from obstore.auth.boto3 import Boto3CredentialProvider

            try:
                options["credential_provider"] = Boto3CredentialProvider()
            except BotoCoreError as error:
                raise DataError(f"the credentials for {state.bucket} can't be read: {_brief(error)}") from error
    try:
        return BucketBook(store=from_url(state.bucket, **options), prefix=state.prefix)
    except BaseError as error:
        raise DataError(f"{state.bucket} can't be opened: {_brief(error)}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The books of reservations, each with the budgets that apply to it; the last one knows the most runs.

    `unread`: why a bucket's budgets are unknown.
    """

    books: tuple[tuple[Book, tuple[Allowance, ...]], ...]
    owner: str | None
    project: str | None
    unread: str = ""

    def reserve(self, run_id: str, usd: float, now: datetime, *, only_ask: bool = False) -> tuple[str, ...]:
        """Reserve money for a run, and return a note for each budget. Raises RequestError if one has too little left.

        With `only_ask` nothing is reserved. Without an applicable budget nothing happens.
        """
        month = f"{now:%Y-%m}"
        wanted = Reservation(run_id=run_id, owner=self.owner, project=self.project, month=month, reserved_usd=usd)
        notes: dict[Allowance, str] = {}
        with ExitStack() as undone:
            for book, allowances in self.books:
                holding = [one for one in allowances if one.holds_for(self.owner, self.project, month)]
                if holding:
                    notes |= self._reserved(book, holding, wanted, only_ask)
                    undone.callback(book.change, month, partial(_closed, run_id=run_id, spent_usd=None))
            undone.pop_all()
        return tuple(notes.values())

    def _reserved(
        self, book: Book, holding: list[Allowance], wanted: Reservation, only_ask: bool
    ) -> dict[Allowance, str]:
        notes: dict[Allowance, str] = {}

        def update(before: Entries) -> Entries:
            # An earlier attempt of this run may have succeeded without an answer.
            others = tuple(one for one in before if one.run_id != wanted.run_id)
            notes.update((one, self._note(book, one, others, wanted)) for one in holding)
            return before if only_ask else (*others, wanted)

        book.change(wanted.month, update)
        return notes

    def _note(self, book: Book, allowance: Allowance, before: Entries, wanted: Reservation) -> str:
        same = [one for one in before if allowance.holds_for(one.owner, one.project, one.month)]
        spent = math.fsum(one.counted_usd for one in same if one.spent_usd is not None)
        reserved = math.fsum(one.counted_usd for one in same if one.spent_usd is None)
        left = allowance.usd - spent - reserved
        of = f"of {usd_text(allowance.usd)} USD"
        state = f"{wanted.month} {allowance.whose}: {usd_text(spent)} spent and {usd_text(reserved)} reserved {of}"
        if wanted.reserved_usd > left + 1e-9:
            running = sorted({one.run_id for one in same if one.spent_usd is None})
            ends = f", or end one of {', '.join(running)}" if running else ""
            # `up` was killed before it made the folder, or the run is of another machine.
            if lost := [run_id for run_id in running if run_id not in run_ids()]:
                ends += f"; no folder here is of {', '.join(lost)}: if it runs nowhere else, delete its entry in "
                ends += book.name(wanted.month)
            raise RequestError(
                f"the budget has too little left: {state}, so {usd_text(max(0.0, left))} USD, and this run may cost "
                f"{usd_text(wanted.reserved_usd)}; give a lower --budget, raise it in {FILE}{ends}"
            )
        others = "" if book.shared else " (runs of other machines are not counted: the job has no cloud.state)"
        return f"budget {state}; this run may cost {usd_text(wanted.reserved_usd)}{others}"


def budgets_of(cloud: Cloud, home: Path) -> Budgets:
    """Return the budgets for an owner's and a project's runs: those of `budgets.yaml` in `home` and in the bucket."""
    allowances = read_allowances(home / FILE)
    books: list[tuple[Book, tuple[Allowance, ...]]] = [(LocalBook(folder=home / "budgets"), allowances)]
    unread = ""
    if cloud.state is not None:
        try:
            shared = bucket_book(cloud.state)
            name, text = shared.budgets_file()
        except (RequestError, DataError) as error:
            # Without a budget of the user's own, the bucket may have none either, so this is no reason to stop.
            if allowances:
                raise
            unread = f"budgets in {cloud.state.bucket} are not known: {error}"
        else:
            # Existing but damaged budgets stop every run.
            theirs = parse_allowances(text, origin=f"{cloud.state.bucket}/{name}")
            books.append((shared, (*allowances, *theirs)))
    return Budgets(
        books=tuple(books),
        owner=cloud.owner,
        project=cloud.gcp.project if cloud.gcp is not None else None,
        unread=unread,
    )


def most_usd(document: PlanDocument) -> float | None:
    """Return the highest cost of a plan's run: its budget, else its worst case; None if unknown."""
    if document.constraints.budget_usd is not None:
        return document.constraints.budget_usd
    cost = document.cost
    return None if cost is None else cost.worst_case_usd or cost.total_usd


def release(state: StateBackend | None, home: Path, run_id: str, month: str, spent_usd: float | None) -> None:
    """Replace a run's reservation by its actual cost; None: it never began.

    Raises DataError, OSError, or ValueError for an invalid month.
    """
    if not _MONTH.fullmatch(month):
        raise ValueError(f"{month!r} is not a month")
    update = partial(_closed, run_id=run_id, spent_usd=spent_usd)
    LocalBook(folder=home / "budgets").change(month, update)
    if state is not None:
        bucket_book(state).change(month, update)


def _closed(before: Entries, *, run_id: str, spent_usd: float | None) -> Entries:
    if spent_usd is None:
        return tuple(one for one in before if one.run_id != run_id)
    return tuple(replace(one, spent_usd=spent_usd) if one.run_id == run_id else one for one in before)


def _content(held: GetResult, name: str) -> bytes:
    if held.meta["size"] > _MOST_BYTES_IN_BUCKET:
        most = f"{_MOST_BYTES_IN_BUCKET:,}"
        raise DataError(f"{name} has {held.meta['size']:,} bytes, and no such file has more than {most}")
    return bytes(held.bytes())


def _brief(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:300]


def _entries(text: bytes, origin: str) -> Entries:
    try:
        rows = json.loads(text)["reservations"]
        found = tuple(Reservation(**row) for row in rows)
        for amount in (usd for one in found for usd in (one.reserved_usd, one.counted_usd)):
            if not 0 <= amount < math.inf:
                raise ValueError(f"{amount} is not an amount of money")
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{origin} is damaged, so what is reserved is unknown: {error}; repair or delete it") from error


def _text(entries: Entries) -> str:
    return json.dumps({"schema_version": 1, "reservations": [asdict(one) for one in entries]}, indent=2) + "\n"
