"""The bill line by line: planned and actual cost."""

from __future__ import annotations

from collections import defaultdict

from sailor_cloud.model.document import Cost, CostKind
from sailor_cloud.model.parts import part_of
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import Comparison

# Costs that don't depend on the number of steps.
_ONCE = (CostKind.STARTUP, CostKind.TEARDOWN)


def bill_parts(cost: Cost | None, lines: tuple[LedgerLine, ...], share: float) -> tuple[Comparison, ...]:
    """Return planned and actual cost of each line of the bill, for the share of the steps that was done.

    The order is the plan's; unplanned lines come last. Start-up and teardown always count in full. If the plan is too
    old to name its parts, lines can't be matched: the other side is None.
    """
    estimates: dict[str, float] = {}
    for planned in cost.lines if cost else ():
        part = part_of(planned)
        estimates[part] = estimates.get(part, 0.0) + planned.usd * (1.0 if planned.kind in _ONCE else share)
    actuals: dict[str, float] = defaultdict(float)
    for line in lines:
        actuals[line.part or line.what] += line.usd
    other_side = 0.0 if cost and all(line.part for line in cost.lines) else None
    return tuple(
        Comparison(
            what=part, unit="USD", estimate=estimates.get(part, other_side), actual=actuals.get(part, other_side)
        )
        for part in dict.fromkeys([*estimates, *actuals])
        if estimates.get(part) or actuals.get(part)
    )
