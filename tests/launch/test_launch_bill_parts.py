"""A receipt sets every part of the bill beside what was planned for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from factories.documents import document
from sailor_cloud.launch.bill_parts import bill_parts
from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.run.ledger import LedgerLine


def planned(kind: CostKind, usd: float, unit: str = "hour") -> CostLine:
    return CostLine(
        kind=kind,
        what="something",
        quantity=1.0,
        unit=unit,
        usd_per_unit=usd,
        usd=usd,
        worst_usd=usd,
        price_source="test",
        price_as_of=date(2026, 11, 1),
        stale=False,
    )


def paid(kind: CostKind, usd: float) -> LedgerLine:
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
    )


def test_time_on_nodes_is_one_part_whatever_it_was_spent_on() -> None:
    lines = (
        planned(CostKind.COMPUTE, 10.0),
        planned(CostKind.STARTUP, 1.0),
        planned(CostKind.TEARDOWN, 0.5),
        planned(CostKind.RECOVERY, 0.25),
        planned(CostKind.CHECKPOINT, 0.125),
        planned(CostKind.CHECKPOINT, 4.0, unit="GiB-month"),
        planned(CostKind.EGRESS, 2.0, unit="GB"),
    )
    base = document()
    assert base.cost is not None
    found = bill_parts(
        replace(base.cost, lines=lines),
        (paid(CostKind.COMPUTE, 9.0), paid(CostKind.DISK, 0.1), paid(CostKind.EGRESS, 3.0)),
        0.5,
    )
    assert [(row.what, row.estimate, pytest.approx(row.actual)) for row in found] == [
        ("nodes", pytest.approx(11.875 / 2), 9.0),
        ("disks", 0.0, 0.1),
        ("traffic", 1.0, 3.0),
        ("checkpoints", 2.0, 0.0),
    ]


def test_without_an_estimate_what_was_paid_is_still_told() -> None:
    assert [(row.what, row.estimate, row.actual) for row in bill_parts(None, (paid(CostKind.COMPUTE, 9.0),), 1.0)] == [
        ("nodes", None, 9.0)
    ]
