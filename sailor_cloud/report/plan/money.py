"""A plan's cost lines as a tree, and the prices behind them with their age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from sailor_cloud.catalog import providers
from sailor_cloud.model.document import Cost, CostKind, CostLine, PlanDocument
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.units import SECONDS_PER_HOUR, usd_decimals, usd_parts

# Smaller differences come from the order of sums.
_ROUNDING = 1e-9
# More decimals than any amount is shown with.
_FINEST = 12
TITLES = {
    CostKind.COMPUTE: "compute",
    CostKind.DISK: "disks",
    CostKind.ADDRESS: "addresses and NAT",
    CostKind.EGRESS: "egress",
    CostKind.CHECKPOINT: "checkpoints",
    CostKind.STARTUP: "start-up",
    CostKind.TEARDOWN: "teardown",
    CostKind.RECOVERY: "recovery reserve",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBranch:
    """All lines of one kind with their sums.

    `shown_usd` and `shown_worst_usd` are rounded so that branches add up to the shown total; `shown` are the two
    figures of each line, which add up to those of the branch.
    """

    kind: CostKind
    lines: tuple[CostLine, ...]
    shown_usd: float
    shown_worst_usd: float
    shown: tuple[tuple[float, float], ...]

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    @property
    def worst_usd(self) -> float:
        return sum(line.worst_usd for line in self.lines)

    @property
    def stale(self) -> bool:
        return any(line.stale for line in self.lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """One price behind the plan. `as_of_from` is the older end if only a range of dates is known."""

    what: str
    usd: float
    unit: str
    as_of_from: date
    as_of_to: date
    age_days: int
    stale: bool
    source: str
    confidence: str

    @property
    def provenance(self) -> str:
        """The source of the price and, for an offer, its confidence."""
        distinct = self.confidence not in ("", self.source)
        return f"{self.source} ({self.confidence})" if distinct else self.source


def cost_tree(cost: Cost) -> tuple[CostBranch, ...]:
    """Return the cost lines by kind, in the order of CostKind; kinds without lines are left out."""
    kinds = [(kind, [line for line in cost.lines if line.kind is kind]) for kind in CostKind]
    found = [(kind, lines) for kind, lines in kinds if lines]
    decimals = usd_decimals(expected_usd(cost))
    expected = [[line.usd for line in lines] for _, lines in found]
    worst = [[line.worst_usd for line in lines] for _, lines in found]
    usd = usd_parts([sum(each) for each in expected], expected_usd(cost), decimals)
    worst_parts = _at_least(usd, usd_parts([sum(each) for each in worst], worst_usd(cost), decimals))
    shown = [usd_parts(each, usd[place], decimals) for place, each in enumerate(expected)]
    shown_worst = [
        _at_least(shown[place], usd_parts(each, worst_parts[place], decimals)) for place, each in enumerate(worst)
    ]
    return tuple(
        CostBranch(
            kind=kind,
            lines=tuple(lines),
            shown_usd=usd[place],
            shown_worst_usd=worst_parts[place],
            shown=tuple(zip(shown[place], shown_worst[place], strict=True)),
        )
        for place, (kind, lines) in enumerate(found)
    )


def _at_least(expected: Sequence[float], worst: Sequence[float]) -> tuple[float, ...]:
    """Return worst cases of which none is below the expected cost, with the same sum.

    Both are rounded to the same sums as their totals, so that one could be a cent below the other. The part with the
    largest difference yields that cent.
    """
    raised = [max(pair) for pair in zip(expected, worst, strict=True)]
    for missing in (one - other for one, other in zip(raised, worst, strict=True) if one > other):
        most = max(range(len(raised)), key=lambda place: raised[place] - expected[place])
        raised[most] = round(max(expected[most], raised[most] - missing), _FINEST)
    return tuple(raised)


def expected_usd(cost: Cost) -> float:
    """Return the sum of all lines: the whole run, or one hour of it if the job has no number of steps."""
    return sum(line.usd for line in cost.lines)


def worst_usd(cost: Cost) -> float:
    return sum(line.worst_usd for line in cost.lines)


def age_days(document: PlanDocument, day: date) -> int:
    return (document.as_of.date() - day).days


def price_rows(document: PlanDocument) -> tuple[PriceRow, ...]:
    """Return every price in a cost line, once: instances first, then services and traffic."""
    if document.cost is None:
        return ()
    stale_dates = {(line.price_source, line.price_as_of) for line in document.cost.lines if line.stale}
    used = {node.offer for node in document.plan.nodes} if document.plan else set()
    rows = [
        _offer_row(document, offer, stale_dates)
        for name, offer in sorted(document.inputs.offers_by_id().items())
        if name in used
    ]
    known = {(row.usd, row.source, row.as_of_from) for row in rows}
    for line in document.cost.lines:
        key = (line.usd_per_unit, line.price_source, line.price_as_of)
        if key in known:
            continue
        known.add(key)
        rows.append(_line_row(document, line))
    return tuple(rows)


def _offer_row(document: PlanDocument, offer: Offer, stale_dates: set[tuple[str, date]]) -> PriceRow:
    return PriceRow(
        what=f"{offer.instance_type} {offer.market.value} in {offer.zone}",
        usd=offer.usd_per_hour,
        unit="hour",
        as_of_from=offer.as_of_from,
        as_of_to=offer.as_of_to,
        age_days=age_days(document, offer.as_of_from),
        stale=(offer.source, offer.as_of_from) in stale_dates,
        source=offer.source,
        confidence=offer.confidence.value if offer.listed is None else "doubtful",
    )


def _line_row(document: PlanDocument, line: CostLine) -> PriceRow:
    return PriceRow(
        what=line.what,
        usd=line.usd_per_unit,
        unit=line.unit,
        as_of_from=line.price_as_of,
        as_of_to=line.price_as_of,
        age_days=age_days(document, line.price_as_of),
        stale=line.stale,
        source=line.price_source,
        confidence="",
    )


def until_shutdown_usd(document: PlanDocument) -> float | None:
    """Return the cost of the nodes at worst prices until they shut themselves down; None if nothing ends them.

    If every spot node has a price cap, the budget covers it: the caps are set for that.
    """
    budget, cost, plan = document.constraints.budget_usd, document.cost, document.plan
    if document.ttl_s is None or cost is None or plan is None:
        return None
    usd = cost.worst_case_usd_per_hour * document.ttl_s / SECONDS_PER_HOUR
    offers = document.inputs.offers_by_id()
    spot = {offers[node.offer].provider for node in plan.nodes if offers[node.offer].market is Market.SPOT}
    capped = bool(spot) and all(providers.of(provider).caps_spot_prices for provider in spot)
    return min(usd, budget) if capped and budget is not None else usd


def unlimited_usd(document: PlanDocument) -> float | None:
    """Return `until_shutdown_usd` if that is more than the budget, else None."""
    budget, usd = document.constraints.budget_usd, until_shutdown_usd(document)
    return usd if usd is not None and budget is not None and usd > budget * (1.0 + _ROUNDING) else None
