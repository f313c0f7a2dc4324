from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from factories.browser import CHROMIUM, WHY_NOT, Browser
from factories.documents import cost_line, costing, decided, document, infeasible
from factories.machine_speed import slowdown
from factories.priced_documents import gcp_document, gcp_timeline
from sailor_cloud import catalog
from sailor_cloud.model.document import CostKind, FrontierPoint, Rejected
from sailor_cloud.report import text
from sailor_cloud.report.html.charts import money_chart
from sailor_cloud.report.html.maps import region_map
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.money import cost_tree
from sailor_cloud.units import GIB

CHARTS = (
    "Cost by kind, expected and worst case",
    "Cost against time of the chosen plan and its alternatives",
    "Schedule of one iteration",
    "Memory of each stage against its limit",
    "Zones of the plan and the traffic between them",
    "Map of the regions and the traffic between them",
)
LARGEST = 3 * 10**6

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("html") / "report.html"
    path.write_text(
        plan_as_html(gcp_document(), timeline=gcp_timeline(), regions=catalog.load().regions()), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def test_the_file_needs_no_network(report: Path) -> None:
    content = without_library(report.read_text(encoding="utf-8"))
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", content)
    assert "http" not in content.replace("http-equiv", "")
    assert "@import" not in content


def test_a_smaller_space_without_a_plan_is_shown_next_to_the_alternatives(report: Path) -> None:
    content = report.read_text(encoding="utf-8")
    beside = content.partition('id="cost-against-time"')[2].partition("</section>")[0]
    assert "does not fit in memory: equal stages need 20 V100-16, and the quota is 16" in beside
    assert content.count("all V100-16") == 1


def test_every_cost_line_alternative_and_price_date_is_in_the_file(report: Path) -> None:
    content, made = report.read_text(), gcp_document()
    assert made.cost is not None
    for line in made.cost.lines:
        assert line.what in content
        assert line.price_source in content
        assert line.price_as_of.isoformat() in content
    assert made.alternatives[0].label in content


def test_a_map_needs_two_regions_whose_places_are_known() -> None:
    regions = catalog.load().regions()
    assert 'id="land"' in region_map(gcp_document(), regions)
    assert region_map(document(), regions) == ""
    nowhere = [replace(region, latitude=None) if region.name == "us-west1" else region for region in regions]
    assert region_map(gcp_document(), nowhere) == ""
    assert region_map(gcp_document(), ()) == ""


def test_regions_lie_on_the_map_as_on_earth() -> None:
    drawn = region_map(gcp_document(), catalog.load().regions())
    pins = json.loads(html.unescape(re.findall(r'data-option="([^"]*)"', drawn)[0]))["series"][-1]["data"]
    west, east = (
        pin["value"] for name in ("us-west1", "us-central1") for pin in pins if pin["name"].startswith(f"{name}\n")
    )
    # Oregon lies west and north of Iowa.
    assert west[0] < east[0]
    assert west[1] > east[1]


def test_names_from_elsewhere_stay_text() -> None:
    evil = "<script>alert(1)</script>\"'&"
    content = plan_as_html(replace(gcp_document(), rejected=(Rejected(what=evil, why=evil),)), timeline=())
    assert "<script>alert" not in content
    assert "&lt;script&gt;alert(1)" in content


def test_a_large_schedule_stays_under_three_megabytes() -> None:
    made, spans = gcp_document(), gcp_timeline()
    many = tuple(
        replace(span, start_s=span.start_s + chunk, end_s=span.end_s + chunk) for chunk in range(40) for span in spans
    )
    assert len(many) > 12_000
    assert len(plan_as_html(made, timeline=many).encode()) < LARGEST


def test_the_bundled_library_is_the_file_that_its_page_names() -> None:
    vendor = files("sailor_cloud.report.html.vendor")
    named = re.search(r"`([0-9a-f]{64})`", vendor.joinpath("README.md").read_text(encoding="utf-8"))
    assert named is not None
    assert hashlib.sha256(vendor.joinpath("echarts.min.js").read_bytes()).hexdigest() == named[1]
    assert "Apache License" in vendor.joinpath("LICENSE").read_text(encoding="utf-8")


def test_bars_are_not_labelled_with_what_rounds_to_nothing() -> None:
    lines = [
        cost_line(CostKind.COMPUTE, "node", quantity=1, usd_per_unit=24.84),
        cost_line(CostKind.DISK, "disk", quantity=1, usd_per_unit=0.01),
        replace(cost_line(CostKind.RECOVERY, "lost", quantity=1, usd_per_unit=0.001), worst_usd=0.03),
    ]
    chart = money_chart(costing(document(), *lines))
    (option,) = (json.loads(html.unescape(found)) for found in re.findall(r'data-option="([^"]*)"', chart))
    _, *labels = [bar["name"] for bar in option["series"][-1]["data"]]
    assert labels == ["0.01", "at worst 0.03"]


def test_a_schedule_of_many_microbatches_says_how_to_look_closer() -> None:
    made, spans = gcp_document(), gcp_timeline()
    assert made.plan is not None
    few, many = (
        replace(
            made, plan=replace(made.plan, pipelines=tuple(replace(one, microbatches=n) for one in made.plan.pipelines))
        )
        for n in (4, 64)
    )
    assert "64 microbatches are too many to see one by one" in plan_as_html(many, timeline=spans)
    assert "too many to see" not in plan_as_html(many, timeline=())
    assert "too many to see" not in plan_as_html(few, timeline=spans)


@needs_chromium
def test_a_narrow_page_shows_whole_legends_amounts_and_the_memory_used(browser: Browser, report: Path) -> None:
    for width in (400, 1200):
        browser.look(width=width)
        browser.open(report)
        texts = browser.run(f"[...{_chart(CHARTS[3])}.querySelectorAll('text')].map(each => each.textContent)")
        assert {"weights", "limit"} <= set(texts), width
        assert any("%" in each for each in texts), width
        money = browser.run(f"{_chart(CHARTS[0])}.querySelector('svg').textContent")
        assert text.usd(cost_tree(gcp_document().cost)[0].shown_worst_usd) in money, width
        below = browser.run(f"(box => box.clientHeight - parseFloat(box.dataset.height))({_chart(CHARTS[3])})")
        assert (below > 0) is (width == 400)


def test_one_plan_alone_makes_no_chart_of_cost_against_time() -> None:
    alone = replace(gcp_document(), alternatives=(), frontier=())
    assert CHARTS[1] not in plan_as_html(alone, timeline=())
    assert CHARTS[1] in plan_as_html(gcp_document(), timeline=())


@needs_chromium
def test_where_scripts_are_blocked_the_tables_stand_alone(browser: Browser, report: Path, tmp_path: Path) -> None:
    path = tmp_path / "blocked.html"
    blocked = '<meta http-equiv="Content-Security-Policy" content="script-src \'none\'">'
    path.write_text(report.read_text(encoding="utf-8").replace("<head>", f"<head>{blocked}"), encoding="utf-8")
    browser.look(width=800)
    browser.open(path)
    shown = browser.run("[...document.querySelectorAll('.echart')].map(box => box.getBoundingClientRect().height)")
    assert shown == [0] * len(CHARTS)
    shown = browser.run("document.body.innerText")
    assert "A100-40 only" in shown
    assert "pipelines / stage" in shown
    browser.open(report)
    assert "pipelines / stage" not in browser.run("document.body.innerText")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_charts_are_drawn_without_a_complaint(
    browser: Browser, report: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    browser.complaints.clear()
    browser.requested.clear()
    browser.look(width=width, dark=dark)
    browser.open(report)
    for name in CHARTS:
        box = browser.run(f"(({{width, height}}) => [width, height])({_chart(name)}.getBoundingClientRect())")
        assert box[0] >= 390 - 24
        assert box[1] > 60
        assert browser.run(f"{_chart(name)}.querySelectorAll('path, canvas').length") >= 1
    assert browser.run("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert browser.run(wide) == 0
    assert browser.complaints == []
    assert {url.split("/")[0] for url in browser.requested} <= {"file:", "data:"}
    picture = tmp_path / "page.png"
    browser.screenshot(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_chromium
def test_dark_and_light_differ_and_both_can_be_read(browser: Browser, report: Path) -> None:
    shades = []
    for dark in (False, True):
        browser.look(width=1200, dark=dark)
        browser.open(report)
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        ink = browser.run("getComputedStyle(document.querySelector('dd')).color")
        assert _contrast(paper, ink) >= 7
        muted = browser.run(f"getComputedStyle({_chart(CHARTS[0])}.querySelector('text')).fill")
        assert _contrast(paper, muted) >= 4.5
        shades.append(paper)
    assert shades[0] != shades[1]


@needs_chromium
def test_bars_and_spans_add_up_to_what_the_document_says(browser: Browser, report: Path) -> None:
    """Lengths on the screen are in proportion to the figures."""
    made, spans = gcp_document(), gcp_timeline()
    browser.look(width=1200)
    browser.open(report)
    drawn = browser.run(
        f"echarts.getInstanceByDom({_chart(CHARTS[3])}).getOption().series"
        ".map(series => [series.name, series.data.map(point => point.value)])"
    )
    assert made.prediction is not None
    stages = list({(row.pipeline, row.stage): row for row in made.prediction.memory}.values())
    (limits,) = [values for name, values in drawn if name == "limit"]
    used = [sum(values[place] for name, values in drawn if name != "limit") for place in range(len(limits))]
    assert [limit[0] for limit in limits] == [stage.limit_bytes / GIB for stage in stages]
    assert used == pytest.approx([sum(stage.parts.values()) / GIB for stage in stages])
    kinds = browser.run(
        f"echarts.getInstanceByDom({_chart(CHARTS[2])}).getOption().series.map(each => [each.name, each.data.length])"
    )
    assert sum(count for name, count in kinds if name != "bubble") == len(spans)


@needs_chromium
def test_pointing_at_an_alternative_shows_its_machines_and_verdict(browser: Browser, report: Path) -> None:
    browser.look(width=1200)
    browser.open(report)
    at = (
        f"(box => {{ box.scrollIntoView({{block: 'center'}}); const chart = echarts.getInstanceByDom(box);"
        "const series = chart.getOption().series.find(each => each.name === 'alternative');"
        "const [x, y] = chart.convertToPixel({seriesName: 'alternative'}, series.data[0].value);"
        f"const edge = box.getBoundingClientRect(); return [edge.x + x, edge.y + y]; }})({_chart(CHARTS[1])})"
    )
    x, y = browser.run(at)
    browser.move(x, y)
    shown = browser.run(f"{_chart(CHARTS[1])}.innerText")
    assert "A100-40 only" in shown
    assert "2 x a2-highgpu-1g on-demand in us-central1-a" in shown
    assert "keeps all limits" in shown


@needs_chromium
def test_pointing_into_the_schedule_shows_the_operation_under_the_pointer(browser: Browser, report: Path) -> None:
    spans = gcp_timeline()
    wanted = next(span for span in spans if (span.pipeline, span.stage, span.what) == (0, 0, "backward"))
    browser.look(width=1200)
    browser.open(report)
    chart = _chart(CHARTS[2])
    middle = (wanted.start_s + wanted.end_s) / 2
    at = (
        f"(box => {{ box.scrollIntoView({{block: 'center'}}); const edge = box.getBoundingClientRect();"
        f"const [x, y] = echarts.getInstanceByDom(box).convertToPixel('grid', [{middle}, 0]);"
        f"return [edge.x + x, edge.y + y]; }})({chart})"
    )
    x, y = browser.run(at)
    browser.move(x, y)
    shown = browser.run(f"{chart}.innerText")
    assert shown.startswith(f"backward of microbatch {wanted.microbatch}\n")
    assert float(shown.split()[-2]) == pytest.approx(wanted.end_s, rel=1e-3)
    zoomed = browser.run(f"echarts.getInstanceByDom({chart}).getOption().series[0].data[0].tip")
    assert zoomed.startswith("waiting: ")


@needs_chromium
def test_the_report_is_a_page_of_few_parts_whatever_the_schedule_holds(browser: Browser, tmp_path: Path) -> None:
    """The time that a page takes to open grows with its elements; that of the schedule's operations does not count."""
    path = tmp_path / "report.html"
    path.write_text(plan_as_html(gcp_document(), timeline=gcp_timeline() * 20), encoding="utf-8")
    browser.look(width=1200)
    browser.open(path)
    assert browser.run("document.querySelectorAll('*').length") < 1200


@needs_chromium
def test_the_report_opens_in_under_two_seconds_and_prints(browser: Browser, report: Path) -> None:
    browser.look(width=1200)
    # Processor time: other tests run on the same cores, and a page that needs no network waits for nothing else.
    assert 0 < min(browser.open(report) for _ in range(2)) < 2 * slowdown()
    printed = browser.print_pdf()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) in range(2, 12)
    browser.look(width=1200, dark=True, media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


@needs_chromium
@pytest.mark.parametrize("kind", ["infeasible", "local", "no steps"])
def test_other_documents_open_without_a_complaint(browser: Browser, kind: str, tmp_path: Path) -> None:
    made = {"infeasible": infeasible(), "local": document(), "no steps": document(steps=None)}[kind]
    path = tmp_path / "report.html"
    path.write_text(plan_as_html(made, timeline=()), encoding="utf-8")
    browser.complaints.clear()
    browser.look(width=800)
    browser.open(path)
    assert browser.complaints == []
    assert browser.run("document.querySelector('h1').textContent") == "tiny"
    assert ("budget 1 USD is below" in browser.run("document.body.innerText")) == (kind == "infeasible")


def test_the_page_without_a_plan_lists_what_is_short_and_what_would_do() -> None:
    short = replace(
        infeasible().infeasibility,
        message="budget 1 USD can't be met; 2 USD would do; by 9 h (or instead: a quota of 8)",
        reason="budget 1 USD can't be met",
        remedies=("2 USD would do; by 9 h", "a quota of 8"),
    )
    page = plan_as_html(replace(infeasible(), infeasibility=short), timeline=())
    assert '<p class="outcome bad">budget 1 USD can\'t be met</p>' in page
    assert "<ul><li>2 USD would do; by 9 h</li><li>a quota of 8</li></ul>" in page
    assert "infeasible; searched" in page
    assert "V100-16" in page


def test_the_page_of_a_command_without_a_model_has_its_cost_and_no_iteration() -> None:
    page = plan_as_html(replace(document(), prediction=None, totals=None), timeline=())
    titles = ("Cost", "Prices", "One iteration", "Memory", "Cost against time")
    assert [title for title in titles if f">{title}<" in page] == ["Cost", "Prices"]


def without_library(content: str) -> str:
    return content.replace(files("sailor_cloud.report.html.vendor").joinpath("echarts.min.js").read_text("utf-8"), "")


def _chart(name: str) -> str:
    return f"document.querySelector('[aria-label=\"{name}\"]')"


def _contrast(one: str, other: str) -> float:
    """Contrast ratio of two CSS colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        linear = []
        for value in re.findall(r"\d+", colour)[:3]:
            share = int(value) / 255
            linear.append(share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4)
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Where each name of a point is, where the points are, and where the frontier runs; all in pixels of the chart.
DRAWN = """
(box => {
  const chart = echarts.getInstanceByDom(box), frame = box.getBoundingClientRect(), { series } = chart.getOption();
  const at = value => chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, value);
  const named = series.flatMap(each => each.data.filter(one => one.name).map(one => [one.name, at(one.value)]));
  const line = series.find(each => each.type === "line").data.map(one => at(one.value));
  const texts = [...box.querySelectorAll("text")].map(each => [each.textContent, each.getBoundingClientRect()])
    .map(([name, each]) => [name, each.x - frame.x, each.y - frame.y, each.width, each.height]);
  return [named, line, texts, frame.width];
})
"""


@needs_chromium
@pytest.mark.parametrize("width", [400, 1400])
def test_names_of_choices_are_beside_their_points_and_off_the_frontier(
    browser: Browser, width: int, tmp_path: Path
) -> None:
    made = replace(gcp_document(), decision=decided().decision)
    assert made.prediction is not None
    assert made.prediction.duration_s is not None
    assert made.decision is not None
    assert made.cost is not None
    assert made.cost.total_usd is not None
    usual, usd = made.prediction.duration_s, made.cost.total_usd
    choices = [
        each if each.chosen else replace(each, duration_s=1.05 * usual, total_usd=0.5 * usd)
        for each in made.decision.choices
    ]
    falling = ((0.95, 1.2), (1.0, 1.0), (1.02, 0.8), (1.05, 0.5), (1.2, 0.47), (1.3, 0.45))
    points = [
        FrontierPoint(
            iteration_s=usual * time / 1000.0,
            throughput_iterations_per_s=1.0,
            usd_per_hour=1.0,
            usd_per_iteration=0.01,
            total_usd=usd * money,
            devices={"A100-40": 8},
            zones=("us-central1-a",),
            nodes_usd_per_hour=1.0,
            cheapest=True,
            duration_s=usual * time,
        )
        for time, money in falling
    ]
    made = replace(made, decision=replace(made.decision, choices=tuple(choices)), frontier=tuple(points))
    path = tmp_path / "report.html"
    path.write_text(plan_as_html(made, timeline=()), encoding="utf-8")
    browser.look(width=width)
    browser.open(path)
    named, line, texts, whole = browser.run(f"{DRAWN}({_chart(CHARTS[1])})")
    names = {name: at for name, at in named if name not in {each.label for each in made.alternatives}}
    assert len(names) >= 2
    corners = [(b[0], a[1]) for a, b in pairwise(line)]
    steps = [*zip(line, corners, strict=False), *zip(corners, line[1:], strict=True)]
    for name, own in names.items():
        ((left, top, wide, high),) = [each[1:] for each in texts if each[0] == name]
        assert left >= 0
        assert left + wide <= whole
        for (x, y), (to_x, to_y) in steps:
            assert max(x, to_x) < left or min(x, to_x) > left + wide or max(y, to_y) < top + 2 or y > top + high - 2
        away = {
            other: math.hypot(max(left - x, 0.0, x - left - wide), max(top - y, 0.0, y - top - high))
            for other, (x, y) in names.items()
        }
        assert min(away, key=lambda other: away[other]) == name, away
        assert away[name] < 40, own


def test_no_worst_case_is_shown_below_the_expected_cost() -> None:
    """Rounded apart, egress was 298.15 USD, and 298.14 USD at worst."""
    for cents in range(40):
        egress = 298.145 + cents / 1000.0
        lines = [
            replace(cost_line(kind, "part", quantity=1.0, usd_per_unit=usd), worst_usd=worst)
            for kind, usd, worst in (
                (CostKind.COMPUTE, 124.2249, 269.204),
                (CostKind.COMPUTE, 0.0149, 0.0149),
                (CostKind.EGRESS, egress, egress),
                (CostKind.EGRESS, 0.0051, 0.0051),
                (CostKind.STARTUP, 27.9349, 60.5751),
            )
        ]
        cost = costing(document(), *lines).cost
        assert cost is not None
        branches = cost_tree(cost)
        for branch in branches:
            assert branch.shown_worst_usd >= branch.shown_usd
            assert all(worst >= usd for usd, worst in branch.shown)
            assert sum(worst for _, worst in branch.shown) == pytest.approx(branch.shown_worst_usd)
        shown = sum(branch.shown_worst_usd for branch in branches)
        assert shown == pytest.approx(round(sum(line.worst_usd for line in lines), 2))


def test_equal_lines_of_a_bill_show_equal_amounts() -> None:
    lines = [cost_line(CostKind.STARTUP, f"start in {zone}", quantity=1, usd_per_unit=0.0146) for zone in "ab"]
    nodes = cost_line(CostKind.COMPUTE, "nodes", quantity=1, usd_per_unit=1.26)
    shown = plan_as_html(costing(document(), nodes, *lines), timeline=())
    rows = [row for row in re.findall(r"<tr>.*?</tr>", shown) if "start in" in row]
    assert [re.findall(r"<td[^>]*>([^<]*)</td>", row)[3] for row in rows[:2]] == ["0.01", "0.01"]
