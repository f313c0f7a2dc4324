"""The bill in parts: what each was to cost, and what it did."""

from __future__ import annotations

from collections import defaultdict

from sailor_cloud.model.document import Cost, CostKind
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.receipt import Comparison

# Parts of the bill, as plan and ledger both have them: nodes are paid for from start-up to teardown.
_NODES = "nodes"
_OTHERS = {
    CostKind.DISK: "disks",
    CostKind.ADDRESS: "addresses and NAT",
    CostKind.EGRESS: "traffic",
    CostKind.CHECKPOINT: "checkpoints",
}
_PARTS = (_NODES, *_OTHERS.values())


def bill_parts(cost: Cost | None, lines: tuple[LedgerLine, ...], share: float) -> tuple[Comparison, ...]:
    """Return what each part of the bill was to cost for the share of the steps that was done, and what it did."""
    estimates: dict[str, float] = defaultdict(float)
    actuals: dict[str, float] = defaultdict(float)
    for planned in cost.lines if cost else ():
        estimates[_part(planned.kind, planned.unit)] += planned.usd * share
    for line in lines:
        actuals[_part(line.kind, line.unit)] += line.usd
    return tuple(
        Comparison(what=part, unit="USD", estimate=estimates[part] if cost else None, actual=actuals[part])
        for part in _PARTS
        if estimates[part] or actuals[part]
    )


def _part(kind: CostKind, unit: str) -> str:
    """Return the part of the bill that a line belongs to; what stands still for a checkpoint is nodes."""
    if kind is CostKind.CHECKPOINT and unit == "hour":
        return _NODES
    return _OTHERS.get(kind, _NODES)
