"""The ledger of a run: what was used, for how long, at which fixed price."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.offer import MINIMUM_BILLED_S
from sailor_cloud.run.appended import AppendedFile, append_line, close_torn_line
from sailor_cloud.run.folder import RunFolder

_US_PER_HOUR = 3_600_000_000
# No price, time or quantity of a run is larger; sums of larger ones overflow.
_MOST = 1e12
# Journal and ledger are written one after the other, on a slow disk with a pause.
_SLACK = timedelta(minutes=1)


class _Record(StrEnum):
    OPENED = "opened"
    REPRICED = "repriced"
    CLOSED = "closed"
    CHARGED = "charged"
    # Replaces first price, start and end of an item; written if the journal shows that it cost more.
    CORRECTED = "corrected"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One thing that was paid for until some time; `open` while it still costs.

    `part` names the line of a plan's bill that foresees it; empty if there is none.
    """

    kind: CostKind
    key: str
    what: str
    quantity: float
    unit: str
    usd_per_unit: float
    usd: float
    price_source: str
    price_as_of: date
    open: bool
    part: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Price:
    """The hourly price from some time on."""

    since: datetime
    usd_per_hour: float
    source: str
    as_of: date


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """Something paid by time, from the first price until `until`."""

    kind: CostKind
    key: str
    what: str
    minimum_s: float
    prices: tuple[_Price, ...]
    until: datetime | None
    part: str

    def billed(self, now: datetime) -> list[tuple[_Price, int]]:
        """Return each price with the microseconds billed at it, which may be 0."""
        since = self.prices[0].since
        used = (now if self.until is None else self.until) - since
        total = max(_microseconds(used), _microseconds(timedelta(seconds=self.minimum_s)))
        if len(self.prices) == 1:
            return [(self.prices[0], total)]
        begun = (max(0, _microseconds(price.since - since)) for price in self.prices)
        # Prices apply in the order of their records, even if the clock jumped.
        starts = [min(total, start) for start in itertools.accumulate(begun, max)]
        spans = (end - start for start, end in zip(starts, [*starts[1:], total], strict=True))
        return list(zip(self.prices, spans, strict=True))

    def usd(self, now: datetime) -> Fraction:
        spans = self.billed(now)
        return sum((_exact(price.usd_per_hour) * span for price, span in spans), Fraction(0)) / _US_PER_HOUR

    def lines(self, now: datetime) -> list[LedgerLine]:
        """Return a line for each price at which anything was billed, and always one for the newest."""
        newest = self.prices[-1]
        return [
            LedgerLine(
                kind=self.kind,
                key=self.key,
                what=self.what,
                quantity=float(Fraction(span, _US_PER_HOUR)),
                unit="h",
                usd_per_unit=price.usd_per_hour,
                usd=float(_exact(price.usd_per_hour) * span / _US_PER_HOUR),
                price_source=price.source,
                price_as_of=price.as_of,
                open=self.until is None and price is newest,
                part=self.part,
            )
            for price, span in self.billed(now)
            if span or price is newest
        ]


class Ledger:
    """Records use and adds it up. Sums are exact; they become floats only in results."""

    def __init__(self, path: Path, clock: Clock, *, or_keep: bool = False, read_only: bool = False) -> None:
        """`read_only`: what is added counts for this object alone and is never written."""
        self.path = path
        # The number of lines that this object has added.
        self.added = 0
        self._clock = clock
        self._or_keep = or_keep
        self._unwritten: list[bytes] | None = [] if read_only else None
        self._mutex = threading.RLock()
        self._file = AppendedFile(path)
        self._known: dict[_Record, dict[str, list[dict[str, Any]]]] = {kind: {} for kind in _Record}
        self._items: dict[str, list[_Item]] = {}
        self._charges: list[LedgerLine] = []
        self._unread = 0
        # The spend on closed items; None if it must be computed again.
        self._settled: Fraction | None = Fraction(0)
        # Lines that wait for one common write.
        self._waiting: dict[tuple[_Record, str], list[str]] | None = None
        if not read_only:
            close_torn_line(path, or_keep=or_keep)

    @classmethod
    def of(cls, folder: RunFolder, clock: Clock, *, or_keep: bool = False, read_only: bool = False) -> Ledger:
        """Return a run's ledger. `or_keep`: in a teardown, which continues even if nothing can be written."""
        return cls(folder.ledger_file, clock, or_keep=or_keep, read_only=read_only)

    def open_item(
        self,
        key: str,
        *,
        kind: CostKind,
        what: str,
        usd_per_hour: float,
        since: datetime,
        price_source: str,
        price_as_of: date,
        minimum_s: float = MINIMUM_BILLED_S,
        part: str = "",
    ) -> None:
        """Start to charge for something by time; a repeated key changes nothing.

        A key KEY/ANYTHING is something that belongs to KEY and ends with it.
        """
        raw = {"kind": kind.value, "what": what, "part": part, "usd_per_hour": usd_per_hour, "minimum_s": minimum_s}
        prices = {"price_source": price_source, "price_as_of": price_as_of.isoformat()}
        self._append_once(_Record.OPENED, key, {**raw, "since": since.isoformat(), **prices})

    def reprice(self, key: str, *, usd_per_hour: float, at: datetime, price_source: str, price_as_of: date) -> bool:
        """Charge a new price for an open item from some time on; return whether the price changed."""
        with self._mutex:
            item = next((item for item in self._newest().get(key, ()) if item.until is None), None)
            if item is None or item.prices[-1].usd_per_hour == usd_per_hour:
                return False
            raw = {"usd_per_hour": usd_per_hour, "at": at.isoformat()}
            prices = {"price_source": price_source, "price_as_of": price_as_of.isoformat()}
            self._append(_Record.REPRICED, key, {**raw, **prices})
            return True

    def close_item(self, key: str, *, at: datetime) -> None:
        """Stop charging for something and what belongs to it.

        A repeated call, or an unknown key, changes nothing.
        """
        for known in self.paid_by_time():
            if known == key or known.startswith(f"{key}/"):
                self._append_once(_Record.CLOSED, known, {"at": at.isoformat()})

    def charge_at_least(
        self, key: str, *, usd_per_hour: float, since: datetime, created_at: datetime, until: datetime | None
    ) -> bool:
        """Correct an item with a lower first price, a later start or an earlier end; return whether it had one.

        `since` is the request of what was created at `created_at`; `until` is None while it may exist.
        """
        with self._mutex:
            items = self._newest().get(key, ())
            if not items:
                return False
            first, ends = items[0].prices[0], [item.until for item in items if item.until is not None]
            end = max(ends) if len(ends) == len(items) else None
            early = end is not None and (until is None or end < until - _SLACK)
            late = first.since > created_at + _SLACK
            if _amount(usd_per_hour) <= first.usd_per_hour and not (early or late):
                return False
            end = until if early else end
            raw = {
                "usd_per_hour": max(usd_per_hour, first.usd_per_hour),
                "since": (since if late else first.since).isoformat(),
                "until": None if end is None else end.isoformat(),
            }
            self._append(_Record.CORRECTED, key, raw)
            return True

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Write everything opened, closed or charged inside with one wait for the disk."""
        with self._mutex:
            if self._waiting is not None:
                yield
                return
            waiting = self._waiting = {}
            try:
                yield
            finally:
                self._waiting = None
                if waiting:
                    self._write("\n".join(line for mine in waiting.values() for line in mine))

    def charge(
        self,
        key: str,
        *,
        kind: CostKind,
        what: str,
        quantity: float,
        unit: str,
        usd_per_unit: float,
        price_source: str,
        price_as_of: date,
        at: datetime,
        part: str = "",
    ) -> None:
        """Charge once for a quantity; a repeated key changes nothing."""
        raw = {"kind": kind.value, "what": what, "part": part, "quantity": quantity}
        raw |= {"unit": unit, "usd_per_unit": usd_per_unit}
        prices = {"price_source": price_source, "price_as_of": price_as_of.isoformat()}
        self._append_once(_Record.CHARGED, key, {**raw, "at": at.isoformat(), **prices})

    def paid_by_time(self) -> tuple[str, ...]:
        """Return the keys of everything that is, or was, paid by time."""
        return tuple(self._newest())

    def damage(self) -> tuple[str, ...]:
        """Return a problem if lines can't be read: more may have been spent than recorded."""
        self._newest()
        unread = self._unread + bool(self._file.torn)
        if not unread:
            return ()
        return (f"{unread} lines of {self.path} can't be read: more may have been spent than the ledger says",)

    def spent_usd(self, now: datetime | None = None) -> float:
        """Return the spend until now, open items included."""
        return float(self._spent(self._clock.now() if now is None else now))

    def used_usd(self, until: datetime, *, counted: Callable[[str], bool] = lambda key: True) -> float:
        """Return the cost until some time of everything paid by time, without traffic and requests.

        `counted` decides by key what belongs to the sum.
        """
        begun = [item for item in self._every() if item.prices[0].since < until and counted(item.key)]
        return float(sum(replace(item, until=min(item.until or until, until)).usd(until) for item in begun))

    def projected_usd(self, until: datetime) -> float:
        """Return the spend at some time if everything open stays open until then and nothing else is charged."""
        return float(self._spent(until))

    def usd_per_hour(self, *, counted: Callable[[str], bool] = lambda key: True) -> float:
        """Return the hourly rate of everything open that `counted` accepts by key."""
        rates = (item.prices[-1].usd_per_hour for item in self._every() if item.until is None and counted(item.key))
        return float(sum((_exact(rate) for rate in rates), Fraction(0)))

    def lines(self, now: datetime | None = None) -> tuple[LedgerLine, ...]:
        """Return one line per thing and price: what is paid by time first, then what was charged by quantity."""
        instant = self._clock.now() if now is None else now
        return (*(line for item in self._every() for line in item.lines(instant)), *self._charges)

    def _spent(self, at: datetime) -> Fraction:
        # Sum by price, of which there are few: sums of fractions are slow, and displays ask often.
        billed_us: dict[float, int] = {}
        with self._mutex:
            for item in self._every():
                if item.until is None:
                    for price, span in item.billed(at):
                        billed_us[price.usd_per_hour] = billed_us.get(price.usd_per_hour, 0) + span
            settled = self._settled_usd()
        return sum((_exact(price) * span / _US_PER_HOUR for price, span in billed_us.items()), settled)

    def _settled_usd(self) -> Fraction:
        if self._settled is None:
            closed = (item.usd(item.until) for item in self._every() if item.until is not None)
            charged = (_exact(line.quantity) * _exact(line.usd_per_unit) for line in self._charges)
            self._settled = sum(closed, Fraction(0)) + sum(charged, Fraction(0))
        return self._settled

    def _every(self) -> list[_Item]:
        return [item for items in self._newest().values() for item in items]

    def _newest(self) -> dict[str, list[_Item]]:
        """Read what any process appended since the last call, and return what is paid by time, by key.

        Displays ask several times a second, so only the items of new lines are computed again.
        """
        with self._mutex:
            lines, rewritten = self._file.new_lines()
            if self._unwritten:
                lines, self._unwritten = [*lines, *self._unwritten], []
            if rewritten:
                self._known, self._items = {kind: {} for kind in _Record}, {}
                self._charges, self._unread = [], 0
            records = list(_records(lines))
            self._unread += len(lines) - len(records)
            if records or rewritten:
                self._settled = None
            for raw in records:
                if raw["record"] == _Record.CORRECTED:
                    self._correct(raw)
                    continue
                self._known[_Record(raw["record"])].setdefault(raw["key"], []).append(raw)
                if raw["record"] == _Record.CHARGED:
                    self._charges.append(_charge(raw))
            opened, repriced, closed = (
                self._known[kind] for kind in (_Record.OPENED, _Record.REPRICED, _Record.CLOSED)
            )
            for key in dict.fromkeys(raw["key"] for raw in records if raw["key"] in opened):
                until = _instant(closed[key][-1]["at"]) if key in closed else None
                prices = [_price(raw, raw["at"]) for raw in repriced.get(key, ())]
                self._items[key] = [_item(raw, prices, until) for raw in opened[key]]
            return self._items

    def _correct(self, raw: dict[str, Any]) -> None:
        """Replace what is known of an item's opening and end; without an opening there is nothing to correct."""
        key, until = raw["key"], raw["until"]
        if key not in self._known[_Record.OPENED]:
            return
        opened = self._known[_Record.OPENED][key][0]
        self._known[_Record.OPENED][key] = [{**opened, "usd_per_hour": raw["usd_per_hour"], "since": raw["since"]}]
        self._known[_Record.CLOSED].pop(key, None)
        if until is not None:
            self._known[_Record.CLOSED][key] = [{"at": until}]

    def _append_once(self, kind: _Record, key: str, raw: dict[str, Any]) -> None:
        with self._mutex:
            self._newest()
            if key not in self._known[kind] and (self._waiting is None or (kind, key) not in self._waiting):
                self._append(kind, key, raw)

    def _append(self, kind: _Record, key: str, raw: dict[str, Any]) -> None:
        line = json.dumps({"record": kind.value, "key": key, **raw}, ensure_ascii=False)
        self.added += 1
        if self._waiting is None:
            self._write(line)
        else:
            self._waiting.setdefault((kind, key), []).append(line)

    def _write(self, lines: str) -> None:
        if self._unwritten is None:
            append_line(self.path, lines, or_keep=self._or_keep)
        else:
            self._unwritten += lines.encode().splitlines()


_READERS: dict[_Record, Callable[[dict[str, Any]], object]] = {
    _Record.OPENED: lambda raw: _item(raw, [], None),
    _Record.REPRICED: lambda raw: _price(raw, raw["at"]),
    _Record.CLOSED: lambda raw: _instant(raw["at"]),
    _Record.CHARGED: lambda raw: _charge(raw),
    _Record.CORRECTED: lambda raw: _correction(raw),
}


def _records(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger's lines, without damaged ones."""
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            raw = json.loads(line)
            _READERS[_Record(raw["record"])](raw)
            if isinstance(raw["key"], str):
                yield raw


def _item(raw: dict[str, Any], later: list[_Price], until: datetime | None) -> _Item:
    return _Item(
        kind=CostKind(raw["kind"]),
        key=raw["key"],
        what=_checked_text(raw["what"]),
        minimum_s=_amount(raw["minimum_s"]),
        prices=(_price(raw, raw["since"]), *later),
        until=until,
        part=_checked_text(raw.get("part", "")),
    )


def _correction(raw: dict[str, Any]) -> tuple[float, datetime, datetime | None]:
    until = raw["until"]
    return _amount(raw["usd_per_hour"]), _instant(raw["since"]), None if until is None else _instant(until)


def _price(raw: dict[str, Any], since: str) -> _Price:
    return _Price(
        since=_instant(since),
        usd_per_hour=_amount(raw["usd_per_hour"]),
        source=_checked_text(raw["price_source"]),
        as_of=date.fromisoformat(raw["price_as_of"]),
    )


def _charge(raw: dict[str, Any]) -> LedgerLine:
    return LedgerLine(
        kind=CostKind(raw["kind"]),
        key=raw["key"],
        what=_checked_text(raw["what"]),
        quantity=_amount(raw["quantity"]),
        unit=_checked_text(raw["unit"]),
        usd_per_unit=_amount(raw["usd_per_unit"]),
        usd=float(_exact(raw["quantity"]) * _exact(raw["usd_per_unit"])),
        price_source=_checked_text(raw["price_source"]),
        price_as_of=date.fromisoformat(raw["price_as_of"]),
        open=False,
        part=_checked_text(raw.get("part", "")),
    )


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return found


def _amount(number: float) -> float:
    if isinstance(number, bool) or not 0.0 <= number <= _MOST:
        raise ValueError(f"{number} is not a number from 0 to {_MOST:g}")
    return number


def _checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is not text")
    return text


@lru_cache(maxsize=4096)
def _exact(number: float) -> Fraction:
    """Return the decimal number as written, 0.1 for 0.1, not its binary approximation."""
    return Fraction(Decimal(str(number)))


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
