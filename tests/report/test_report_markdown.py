from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from markdown_it import MarkdownIt

from factories.documents import document
from factories.priced_documents import gcp_document
from sailor_cloud.model.document import Rejected
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.tables import cell


def test_the_report_looks_as_reviewed(golden: Callable[[str, str], str]) -> None:
    shown = plan_as_markdown(document())
    assert shown == golden("plan.md", shown)


def test_every_table_parses_with_as_many_cells_as_headings() -> None:
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(plan_as_markdown(gcp_document()))
    kinds = [token.type for token in tokens]
    assert kinds.count("table_open") == 8
    rows = "".join("|" if kind == "tr_open" else "." if kind in ("td_open", "th_open") else "" for kind in kinds)
    assert min(len(row) for row in rows.split("|")[1:]) >= 2


def test_names_from_elsewhere_cant_break_out_of_a_cell() -> None:
    evil = replace(document(), rejected=(Rejected(what="a|b", why="<img src=x> [x](y) `z`\nnext"),))
    shown = plan_as_markdown(evil)
    assert "a\\|b" in shown
    assert "<img" not in shown
    assert cell("a\nb") == "a b"


def test_every_cost_line_is_there_with_its_source() -> None:
    priced = gcp_document()
    assert priced.cost is not None
    shown = plan_as_markdown(priced)
    for line in priced.cost.lines:
        assert cell(line.what) in shown
        assert cell(line.price_source) in shown


def test_a_smaller_space_without_a_plan_is_shown_next_to_the_alternatives() -> None:
    shown = plan_as_markdown(gcp_document())
    why = "does not fit in memory: equal stages need 20 V100-16, and the quota is 16"
    assert f"| all V100-16 |  |  |  |  |  | {why} |" in shown
    assert shown.count("all V100-16") == 1
