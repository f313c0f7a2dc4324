"""The dashboard in a real browser, over snapshots of a run that continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from factories.browser import CHROMIUM, WHY_NOT, Browser
from sailor_cloud.report.run.dashboard import Dashboard

STEPS_AT_ONCE = 40


class AdvancingRuns:
    """A stand-in for runs: each look finds them further."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.step = 0

    def rows(self) -> list[dict[str, Any]]:
        self.step += STEPS_AT_ONCE
        return [
            {
                "run_id": name,
                "abandoned": False,
                "state": {"phase": "training"},
                "step": self.step,
                "steps": 400,
                "loss": 3.0,
                "iteration_s": 0.5,
                "spent_usd": 0.5,
                "budget_usd": 2.0,
            }
            for name in self.names
        ]

    def snapshot(self, run: str) -> dict[str, Any]:
        taken = [{"step": step, "loss": 5.0 - step / 100, "iteration_s": 0.5} for step in range(1, self.step + 1)]
        return {
            "run": run,
            "phase": "training",
            "outcome": None,
            "controller": True,
            "now": "2026-11-21T00:00:00+00:00",
            "expires_at": "2026-11-21T01:00:00+00:00",
            "step": self.step,
            "steps": 400,
            "tokens_per_s": 1000.0,
            "loss": taken[-1]["loss"],
            "unigram_entropy": 3.2,
            "spent_usd": 0.5,
            "budget_usd": 2.0,
            "projected_usd": 1.0,
            "usd_per_hour": 3.0,
            "measured_iteration_s": 0.5,
            "planned_iteration_s": 0.4,
            "steps_of": taken,
            "nodes": [],
            "timeline": [],
        }


@contextmanager
def _served(*runs: str) -> Iterator[Dashboard]:
    dashboard = Dashboard(AdvancingRuns(*runs))
    threading.Thread(target=dashboard.serve_forever, daemon=True).start()
    yield dashboard
    dashboard.shutdown()
    dashboard.server_close()


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_charts_grow_while_a_run_continues(width: int, dark: bool) -> None:
    with _served("demo-1") as served, Browser() as browser:
        browser.look(width=width, dark=dark)
        browser.open(served.url)
        points = "echarts.getInstanceByDom(losses)?.getOption().series[0].data.length ?? 0"
        seen = _until(browser, points, at_least=STEPS_AT_ONCE)
        note = "getComputedStyle(losses, '::after').content"
        assert browser.run(note) == "none"
        browser.run("sailorCharts.clear(losses)")
        assert "from the second step on" in browser.run(note)
        assert browser.run("echarts.getInstanceByDom(paces).getOption().series.map(each => each.name)") == [
            "measured",
            "predicted",
        ]
        assert browser.run("losses.getBoundingClientRect().height") > 150
        browser.run("look()")
        assert _until(browser, points, at_least=seen + 1) > seen
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.complaints == []


@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_several_runs_stand_in_a_list_and_their_curves_over_one_another() -> None:
    with _served("second", "<first>") as served, Browser() as browser:
        browser.look(width=400, dark=False)
        browser.open(served.url)
        lines = "echarts.getInstanceByDom(losses)?.getOption().series.map(each => each.name).join() ?? ''"
        _until(browser, f"({lines}).length", at_least=1)
        assert browser.run(lines) == "loss"
        assert browser.run("[...document.querySelectorAll('#rows button')].map(each => each.textContent).join()") == (
            "second,<first>"
        )
        browser.run("document.querySelectorAll('#rows input')[1].click()")
        _until(browser, f"({lines}).length", at_least=len("second,<first>"))
        assert browser.run(lines) == "second,<first>"
        browser.run("document.querySelectorAll('#rows button')[1].click()")
        _until(browser, "Number(run.textContent === '<first>')", at_least=1)
        assert browser.run(lines) == "loss"
        assert browser.run("document.documentElement.scrollWidth") <= 400
        assert browser.complaints == []


def _until(browser: Browser, expression: str, *, at_least: int) -> int:
    until = time.monotonic() + 20.0
    while (found := int(browser.run(expression))) < at_least:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return found


def test_the_page_without_its_token_says_where_the_token_is() -> None:
    server = Dashboard(AdvancingRuns("a"))
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    with server, pytest.raises(HTTPError) as refused:
        urlopen(server.url.partition("?")[0])
    thread.join()
    assert refused.value.code == 403
    assert b"the whole address that 'sailor-cloud dashboard' printed" in refused.value.read()
