"""The price of a byte that leaves a zone, and who pays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from sailor_cloud.errors import MissingPriceError
from sailor_cloud.model.offer import Confidence, Provider
from sailor_cloud.network.estimates import Scope, ZoneInfo, scope_of
from sailor_cloud.units import GB, GIB


class Payer(StrEnum):
    SENDER = "sender"
    RECEIVER = "receiver"


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRow:
    """One line of the price file; `src` and `dst` are names in the scopes, `*` means any."""

    provider: Provider
    src_scope: str
    src: str
    dst_scope: str
    dst: str
    payer: Payer
    usd_per_unit: float
    unit: str
    tier: str
    as_of_from: date
    as_of_to: date
    source: str
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressPrice:
    """What one side pays per 10**9 bytes, at the most expensive tier, without volume discounts."""

    usd_per_gb: float
    payer: Payer
    payer_zone: str
    scope: Scope
    as_of_from: date
    as_of_to: date
    source: str
    confidence: Confidence


def egress_key(provider: str, src_scope: str, src: str, dst_scope: str, dst: str) -> tuple[str, ...]:
    """Return the key of a route's prices; all destinations on the internet share one."""
    return (provider, src_scope, src, dst_scope, "" if dst_scope == "internet" else dst)


class EgressTable:
    """Egress prices by `egress_key`, looked up from the narrowest scope that has one."""

    def __init__(self, rows: Mapping[tuple[str, ...], Sequence[EgressRow]]) -> None:
        self._rows = rows

    def prices(self, src: ZoneInfo, dst: ZoneInfo) -> tuple[EgressPrice, ...]:
        """Return one price per payer, sender first. Raises MissingPriceError."""
        scope = scope_of(src, dst)
        rows = self._find(src, dst, scope)
        if not rows:
            raise MissingPriceError(
                f"no egress price from {src.name} ({src.provider} {src.region}) to {dst.name} "
                f"({dst.provider} {dst.region}); leave one of the zones out of the job's resources"
            )
        highest: dict[Payer, EgressRow] = {}
        for row in rows:
            if row.payer not in highest or row.usd_per_unit > highest[row.payer].usd_per_unit:
                highest[row.payer] = row
        return tuple(
            EgressPrice(
                usd_per_gb=row.usd_per_unit * (GB / GIB if row.unit == "GiB" else 1.0),
                payer=payer,
                payer_zone=src.name if payer is Payer.SENDER else dst.name,
                scope=scope,
                as_of_from=row.as_of_from,
                as_of_to=row.as_of_to,
                source=row.source,
                confidence=row.confidence,
            )
            for payer, row in sorted(highest.items(), key=lambda item: item[0] is Payer.RECEIVER)
        )

    def _find(self, src: ZoneInfo, dst: ZoneInfo, scope: Scope) -> Sequence[EgressRow]:
        region = (src.provider, "region", src.region)
        if scope in (Scope.SAME_ZONE, Scope.OTHER_ZONE):
            keys = [egress_key(src.provider, scope, "*", scope, "*")]
        elif scope is Scope.OTHER_REGION:
            group = (src.provider, "egress-group", src.egress_group)
            keys = [
                egress_key(*region, "region", dst.region),
                egress_key(*group, "egress-group", dst.egress_group),
            ]
        else:
            keys = [egress_key(*region, f"{dst.provider}-region", dst.region), egress_key(*region, "internet", "")]
        return next((self._rows[key] for key in keys if key in self._rows), [])
