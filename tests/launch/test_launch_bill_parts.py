"""A receipt sets every line of the bill beside what was planned for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from factories.documents import document
from sailor_cloud.launch.bill_parts import bill_parts
from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.run.ledger import LedgerLine


def planned(kind: CostKind, what: str, usd: float, unit: str = "hour") -> CostLine:
    return CostLine(
        kind=kind,
        what=what,
        quantity=1.0,
        unit=unit,
        usd_per_unit=usd,
        usd=usd,
        worst_usd=usd,
        price_source="test",
        price_as_of=date(2026, 11, 1),
        stale=False,
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


def test_each_line_of_the_plan_stands_beside_what_was_paid_for_it() -> None:
    node = "2 x a2-highgpu-8g spot in us-central1-a"
    lines = (
        planned(CostKind.COMPUTE, f"{node}, training", 10.0),
        planned(CostKind.DISK, "2 x disk-balanced of 100 GiB", 0.5),
        planned(CostKind.EGRESS, "a to b, paid by a", 2.0, unit="GB"),
        planned(CostKind.CHECKPOINT, f"{node}, standing still for checkpoints", 0.125),
        planned(CostKind.CHECKPOINT, "writing checkpoints", 4.0, unit="1000 requests"),
        planned(CostKind.STARTUP, f"{node}, start-up", 1.0),
        planned(CostKind.TEARDOWN, f"{node}, teardown", 0.5),
        planned(CostKind.RECOVERY, f"{node}, lost to preemption (checkpoint every 600 s, best 90 s)", 0.25),
    )
    base = document()
    assert base.cost is not None
    kind = "a2-highgpu-8g spot in us-central1-a"
    found = bill_parts(
        replace(base.cost, lines=lines),
        (
            *(paid(CostKind.COMPUTE, kind, usd) for usd in (4.0, 5.0)),
            paid(CostKind.COMPUTE, "n1-standard-8 spot in us-central1-b", 0.75),
            paid(CostKind.DISK, "disk-balanced of 100 GiB", 0.1),
            paid(CostKind.EGRESS, "a to b, paid by a", 3.0),
        ),
        0.5,
    )
    assert [(row.what, row.estimate, pytest.approx(row.actual)) for row in found] == [
        (kind, pytest.approx(10.375 / 2 + 1.5), 9.0),
        ("disk-balanced of 100 GiB", 0.25, 0.1),
        ("a to b, paid by a", 1.0, 3.0),
        ("writing checkpoints", 2.0, 0.0),
        ("n1-standard-8 spot in us-central1-b", 0.0, 0.75),
    ]


def test_without_an_estimate_what_was_paid_is_still_told() -> None:
    lines = (paid(CostKind.COMPUTE, "nodes", 9.0),)
    assert [(row.what, row.estimate, row.actual) for row in bill_parts(None, lines, 1.0)] == [("nodes", None, 9.0)]
