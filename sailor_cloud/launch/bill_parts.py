"""The bill line by line: what each was to cost, and what it did."""

from __future__ import annotations

import re
from collections import defaultdict

from sailor_cloud.model.document import Cost, CostKind, CostLine
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import Comparison

# A plan tells apart what nodes are paid for from start-up to teardown; their clocks do not.
_NODES = (CostKind.COMPUTE, CostKind.STARTUP, CostKind.TEARDOWN, CostKind.RECOVERY)
# What is paid for however many steps are done.
_ONCE = (CostKind.STARTUP, CostKind.TEARDOWN)
_COUNTED = re.compile(r"\d+ x (?P<thing>.*)")


def bill_parts(cost: Cost | None, lines: tuple[LedgerLine, ...], share: float) -> tuple[Comparison, ...]:
    """Return what each line of the bill was to cost for the share of the steps that was done, and what it did.

    In the plan's order; what the plan does not foresee comes last. Start-up and teardown are whole whatever was done.
    """
    estimates: dict[str, float] = {}
    for planned in cost.lines if cost else ():
        part = part_of(planned)
        estimates[part] = estimates.get(part, 0.0) + planned.usd * (1.0 if planned.kind in _ONCE else share)
    actuals: dict[str, float] = defaultdict(float)
    for line in lines:
        actuals[line.part or line.what] += line.usd
    return tuple(
        Comparison(what=part, unit="USD", estimate=estimates.get(part, 0.0) if cost else None, actual=actuals[part])
        for part in dict.fromkeys([*estimates, *actuals])
        if estimates.get(part) or actuals[part]
    )


def part_of(line: CostLine) -> str:
    """Return the name under which a ledger charges for what a line of a plan's bill is for; see simulator.bill."""
    counted = _COUNTED.fullmatch(line.what)
    thing = counted["thing"] if counted else line.what
    on_nodes = line.kind in _NODES or (line.kind is CostKind.CHECKPOINT and line.unit == "hour")
    return thing.partition(",")[0] if on_nodes else thing
