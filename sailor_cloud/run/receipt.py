"""The receipt of a run: what it used, when each resource was confirmed as deleted, and its cost."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import date, datetime
from functools import cache
from typing import TYPE_CHECKING

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.run.ledger import LedgerLine

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptResource:
    """A resource of the run. `gone_at` is when `confirmed_by` confirmed its deletion, None if nobody has.

    `found`: the last search still found it; otherwise it may or may not exist.
    """

    provider: str
    region: str
    zone: str
    type: str
    name: str
    created_at: datetime | None
    gone_at: datetime | None
    confirmed_by: str
    found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPlace:
    """A place that was searched for one kind just before the receipt was written, and when.

    `problem`: why it did not answer or, without a time, why it could not be asked.
    """

    provider: str
    place: str
    kind: str
    asked_at: datetime | None
    problem: str = ""

    @property
    def answered(self) -> bool:
        return self.asked_at is not None and not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResource:
    """A resource kept on purpose, its cost, and how to delete it.

    `ends_at`: it can't be deleted, is paid for, and ends by itself.
    """

    type: str
    name: str
    usd_per_month: float
    delete_command: str
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An estimate and its actual value; None if unknown."""

    what: str
    unit: str
    estimate: float | None
    actual: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The complete record of a run. `problems` lists errors of the teardown."""

    run_id: str
    job: str
    outcome: str
    written_at: datetime
    resources: tuple[ReceiptResource, ...]
    kept: tuple[KeptResource, ...]
    lines: tuple[LedgerLine, ...]
    spent_usd: float
    budget_usd: float | None
    comparisons: tuple[Comparison, ...]
    problems: tuple[str, ...]
    asked: tuple[AskedPlace, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def left(self) -> tuple[ReceiptResource, ...]:
        """Resources without a confirmed deletion."""
        return tuple(resource for resource in self.resources if resource.gone_at is None)

    @property
    def unanswered(self) -> tuple[AskedPlace, ...]:
        """Places that may have resources, as far as known."""
        return tuple(place for place in self.asked if not place.answered)

    @property
    def clean(self) -> bool:
        """Whether, apart from kept resources, all deletions are confirmed and every place has answered."""
        return not self.left and not self.unanswered

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, default=_plain) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str = "receipt") -> Receipt:
        """Return the receipt in a text. Raises RequestError with every fault and its place."""
        from pydantic import ValidationError

        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            faults = ((".".join(str(part) for part in fault["loc"]), fault["msg"]) for fault in error.errors())
            raise RequestError([Problem(path=f"{origin}: {place}", message=why) for place, why in faults]) from error


@cache
def _adapter() -> TypeAdapter[Receipt]:
    from pydantic import TypeAdapter

    return TypeAdapter(Receipt)


def _plain(value: object) -> str:
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} does not belong in a receipt")
