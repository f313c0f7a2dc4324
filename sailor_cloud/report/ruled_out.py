"""What was ruled out, in few lines: zones and markets in which the same thing is out for the same reason together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.model.document import PlanDocument

_OFFER = re.compile(
    r"[a-z]+/(?P<zone>[^/]+)/(?P<type>[^/]+)/(?P<count>\d+)x(?P<accelerator>[^/]+)/(?P<market>spot|on-demand)"
)
_ACCELERATOR = re.compile(r"(?P<accelerator>\S+) in (?P<zone>[^\s,]+), (?P<market>spot|on-demand)")
# Stands for the zone in a reason that names it.
_HERE = "\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOutLine:
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class _Row:
    subject: str
    reason: str
    zone: str
    market: str


def ruled_out(document: PlanDocument) -> tuple[RuledOutLine, ...]:
    """Return what may not be bought or used, each with the reason."""
    return grouped((row.what, row.why) for row in document.rejected if not row.restrictions)


def grouped(rows: Iterable[tuple[str, str]]) -> tuple[RuledOutLine, ...]:
    """Return pairs of what and why in the order in which each first comes."""
    markets: dict[tuple[str, str, str], list[str]] = {}
    for row in (_row(what, why) for what, why in rows):
        markets.setdefault((row.subject, row.reason, row.zone), []).append(row.market)
    zones: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (subject, reason, zone), found in markets.items():
        zones.setdefault((subject, reason, tuple(found)), []).append(zone)
    return tuple(_line(*key, places) for key, places in zones.items())


def _row(what: str, why: str) -> _Row:
    if offer := _OFFER.fullmatch(what):
        subject = f"{offer['type']} ({offer['count']} {offer['accelerator']})"
        return _Row(subject, _elsewhere(why, offer["zone"]), offer["zone"], offer["market"])
    if named := _ACCELERATOR.fullmatch(what):
        return _Row(named["accelerator"], _elsewhere(why, named["zone"]), named["zone"], named["market"])
    return _Row(what, why, "", "")


def _elsewhere(why: str, zone: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(zone)}(?![\w-])", _HERE, why)


def _line(subject: str, reason: str, markets: tuple[str, ...], zones: list[str]) -> RuledOutLine:
    if not zones[0]:
        return RuledOutLine(what=subject, why=reason)
    return RuledOutLine(
        what=f"{subject} {', '.join(markets)} in {', '.join(zones)}",
        why=reason.replace(_HERE, zones[0] if len(zones) == 1 else "each"),
    )
