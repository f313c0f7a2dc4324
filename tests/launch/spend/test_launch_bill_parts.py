"""A receipt sets every line of the bill beside what was planned for it."""

from __future__ import annotations

import json
from datetime import date

import pytest

from factories.documents import costing, document
from sailor_cloud.launch.spend.bill_parts import bill_parts
from sailor_cloud.model.document import Cost, CostKind, CostLine, PlanDocument
from sailor_cloud.run.ledger import LedgerLine


def planned(kind: CostKind, what: str, usd: float, *, part: str = "") -> CostLine:
    return CostLine(
        kind=kind,
        what=what,
        quantity=1.0,
        unit="hour",
        usd_per_unit=usd,
        usd=usd,
        worst_usd=usd,
        price_source="test",
        price_as_of=date(2026, 11, 1),
        stale=False,
        part=part,
    )


def paid(kind: CostKind, part: str, usd: float) -> LedgerLine:
    return LedgerLine(
        kind=kind,
        key="k",
        what="something",
        quantity=1.0,
        unit="h",
        usd_per_unit=usd,
        usd=usd,
        price_source="test",
        price_as_of=date(2026, 11, 1),
        open=False,
        part=part,
    )


def test_each_line_of_the_plan_is_shown_next_to_its_actual_cost() -> None:
    # The texts are as they please: only the names say what belongs together.
    kind, disk, traffic = "eight A100s", "a disk", "a to b"
    lines = (
        planned(CostKind.COMPUTE, "2 x eight A100s, training", 10.0, part=kind),
        planned(CostKind.DISK, "two disks", 0.5, part=disk),
        planned(CostKind.EGRESS, "from a, to b, whoever pays", 2.0, part=traffic),
        planned(CostKind.CHECKPOINT, "stalled for checkpoints", 0.125, part=kind),
        planned(CostKind.CHECKPOINT, "writing", 4.0, part="writing checkpoints"),
        planned(CostKind.STARTUP, "start-up", 1.0, part=kind),
        planned(CostKind.TEARDOWN, "teardown", 0.5, part=kind),
        planned(CostKind.RECOVERY, "lost to preemption", 0.25, part=kind),
    )
    found = bill_parts(
        _bill(*lines),
        (
            *(paid(CostKind.COMPUTE, kind, usd) for usd in (4.0, 5.0)),
            paid(CostKind.COMPUTE, "n1-standard-8 spot in us-central1-b", 0.75),
            paid(CostKind.DISK, disk, 0.1),
            paid(CostKind.EGRESS, traffic, 3.0),
        ),
        0.5,
    )
    assert [(row.what, row.estimate, pytest.approx(row.actual)) for row in found] == [
        (kind, pytest.approx(10.375 / 2 + 1.5), 9.0),
        (disk, 0.25, 0.1),
        (traffic, 1.0, 3.0),
        ("writing checkpoints", 2.0, 0.0),
        ("n1-standard-8 spot in us-central1-b", 0.0, 0.75),
    ]


def test_a_plan_without_names_of_parts_keeps_its_lines_and_omits_unknown_figures() -> None:
    raw = costing(
        document(), planned(CostKind.COMPUTE, "2 x nodes, training", 2.0), planned(CostKind.EGRESS, "a to b", 4.0)
    )
    told = raw.to_dict()
    for line in told["cost"]["lines"]:
        del line["part"]
    old = PlanDocument.from_json(json.dumps(told))
    found = bill_parts(old.cost, (paid(CostKind.COMPUTE, "nodes", 9.0), paid(CostKind.EGRESS, "a to b", 3.0)), 0.5)
    assert [(row.what, row.estimate, row.actual) for row in found] == [
        ("2 x nodes, training", 1.0, None),
        ("a to b", 2.0, 3.0),
        ("nodes", None, 9.0),
    ]


def test_without_an_estimate_the_actual_cost_is_still_shown() -> None:
    lines = (paid(CostKind.COMPUTE, "nodes", 9.0),)
    assert [(row.what, row.estimate, row.actual) for row in bill_parts(None, lines, 1.0)] == [("nodes", None, 9.0)]


def _bill(*lines: CostLine) -> Cost:
    found = costing(document(), *lines).cost
    assert found is not None
    return found
