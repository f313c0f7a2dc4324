"""The receipt of a run: what it used, when each thing was confirmed gone, and what it cost."""

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
    """A resource of the run. `gone_at` is the time at which `confirmed_by` found it gone, None where nobody has.

    `found`: the last look still found it; without that, it may be gone or not.
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
    """A place that was asked, just before the receipt was written, for resources of one kind, and when.

    `problem`: why it did not answer. Without a time, it says why nobody could be asked.
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
    """Something left on purpose, what it costs and how to delete it.

    `ends_at`: nobody can delete it, it is paid for, and it ends by itself.
    """

    type: str
    name: str
    usd_per_month: float
    delete_command: str
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An estimate beside what came of it; None where one of them is unknown."""

    what: str
    unit: str
    estimate: float | None
    actual: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The whole account of a run. `problems` lists what went wrong in the teardown."""

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
        """Resources that nobody has confirmed gone."""
        return tuple(resource for resource in self.resources if resource.gone_at is None)

    @property
    def unanswered(self) -> tuple[AskedPlace, ...]:
        """Places that may have something, as far as anybody knows."""
        return tuple(place for place in self.asked if not place.answered)

    @property
    def clean(self) -> bool:
        """Whether everything is confirmed gone, and every place has answered, apart from what is kept on purpose."""
        return not self.left and not self.unanswered

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, default=_plain) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, origin: str = "receipt") -> Receipt:
        """Read a receipt back. Raises RequestError with every fault and its place."""
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
