from __future__ import annotations

import html
import pickle
import subprocess
import sys
from dataclasses import replace

import sailor_cloud as sc
from factories.documents import decided
from factories.priced_documents import gcp_document
from sailor_cloud.model.document import FrontierPoint
from sailor_cloud.model.shown import Rows

POINT = FrontierPoint(
    iteration_s=2.0,
    throughput_iterations_per_s=0.5,
    usd_per_hour=10.0,
    usd_per_iteration=0.01,
    total_usd=None,
    devices={"A100-40": 8},
    zones=("a", "b"),
)


def test_a_document_has_a_repr_of_one_line() -> None:
    document = replace(sc.PlanDocument.from_json(gcp_document().to_json()), decision=decided().decision)
    parts = (document.plan, document.prediction, document.decision, document.totals, document.inputs)
    assert None not in parts
    assert document.decision is not None
    bought = (document.cost, document.inputs.offers, document.alternatives, document.decision.left_out)
    records = (document.plan.pipelines, document.prediction.memory, document.totals.quantiles)
    for shown in (document, document.job, *parts, *bought, *records, *document.decision.choices):
        text = repr(shown)
        assert len(text) < 200
        assert "\n" not in text
    assert document.job.name in repr(document)
    assert str(len(document.cost.lines)) in repr(document.cost.lines)


def test_a_notebook_shows_tables_with_texts_escaped() -> None:
    document = gcp_document()
    told = replace(document, alternatives=Rows(replace(one, label="<b>") for one in document.alternatives))
    page = told._repr_html_()
    assert document.job.name in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "no rows" in Rows()._repr_html_()


def test_counts_by_name_are_columns_of_a_frame_and_absent_ones_are_zero() -> None:
    frame = Rows((POINT, replace(POINT, devices={"V100-16": 4}))).to_frame()
    assert list(frame["devices.A100-40"]) == [8, 0]
    assert list(frame["devices.V100-16"]) == [0, 4]
    assert list(frame.usd_per_hour) == [10.0, 10.0]


def test_a_decision_is_a_frame_with_a_row_per_choice() -> None:
    decision = decided().decision
    assert decision is not None
    frame = decision.to_frame()
    assert len(frame) == len(decision.choices)
    assert list(frame.total_usd) == [choice.total_usd for choice in decision.choices]
    assert list(frame.hours) == [choice.duration_s / 3600 for choice in decision.choices]
    assert frame.chosen.sum() == 1
    assert frame.runs_on[0] == decision.choices[0].runs_on


def test_a_bill_as_a_frame_adds_up_to_its_total() -> None:
    cost = gcp_document().cost
    assert abs(cost.to_frame().usd.sum() - cost.total_usd) < 1e-9


def test_rows_stay_rows_through_json_and_pickle() -> None:
    document = gcp_document()
    again = sc.PlanDocument.from_json(document.to_json())
    assert isinstance(again.cost.lines, Rows)
    assert isinstance(pickle.loads(pickle.dumps(again.inputs)).offers, Rows)


def test_importing_the_package_loads_neither_pandas_nor_the_planner() -> None:
    program = (
        "import sys, sailor_cloud as sc; dir(sc); print(sorted(set(sys.modules) & {'pandas', 'numpy', 'pydantic'}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"
    assert set(sc.__all__) <= set(dir(sc))
    assert all(getattr(sc, name) is not None for name in sc.__all__)


def test_a_notebook_begins_with_the_decision_in_words_and_figures_of_reports() -> None:
    document = decided()
    assert document.decision is not None
    page = document._repr_html_()
    names = ["choose", "fastest", "why not", "insisting on it", "status"]
    assert sorted(names, key=page.index) == names
    for raw in ("duration_s", "within_limits", "False", "None"):
        assert raw not in page
    for choice in document.decision.choices:
        assert html.escape(choice.why) in page
        assert choice.runs_on in page
    assert "97.4 %" in page
    assert "15.0 s" in page
    assert all(html.escape(row.why) in page for row in document.decision.left_out)
    assert page.count("chosen") == 1
