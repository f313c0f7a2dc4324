"""Nodes that exist for less than a minute are charged for one, in the ledger and in the plan."""

from __future__ import annotations

import re

import pytest

import sailor_cloud as sc
from factories.commands import ROOT
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job_file import parse_job


def short(budget: str, *, command: bool) -> PlanDocument:
    """Return the plan of one step on a node of this machine."""
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    text = re.sub(r" steps: \d+", " steps: 1", text).replace("budget_usd: 1.00, deadline: 10m", budget)
    text = re.sub(r"(?s)  - provider: local\n.*?per zone\n", "", text)
    if command:
        text = re.sub(r"(?s)\nmodel:.*?\ntraining:", "\nrun: python train.py\nthroughput: 10.0\ntraining:", text)
        text = re.sub(r"(?m)^  (sequence|learning|schedule|warmup|gradient|precision|seed).*\n", "", text)
    return sc.plan(parse_job(text))


@pytest.mark.parametrize("command", [False, True])
def test_a_run_shorter_than_a_minute_is_planned_at_the_minimum_charge(command: bool) -> None:
    document = short("deadline: 10m", command=command)
    assert document.plan is not None
    assert document.cost is not None
    nodes = len(document.plan.nodes)
    unused = [line for line in document.cost.lines if line.unit == "unused hour"]
    assert unused
    paid_h = sum(line.quantity for line in document.cost.lines if line.unit in ("hour", "unused hour"))
    assert paid_h == pytest.approx(nodes / 60.0)


@pytest.mark.parametrize("command", [False, True])
def test_a_budget_below_the_minimum_charge_is_infeasible(command: bool) -> None:
    document = short("budget_usd: 0.0001", command=command)
    assert document.status is Status.INFEASIBLE
    assert document.infeasibility is not None
    assert document.infeasibility.constraint == "budget_usd"
