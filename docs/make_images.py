"""Makes the pictures of README and docs from the program itself: python docs/make_images.py [FOLDER] [NAME ...].

A NAME is `gcp` (first screen, difference and HTML report), `aws` or `llama` (first screen, as a picture and as text);
without one all are made. Needs chromium for the HTML report. Prices are judged as of a fixed day, so that the pictures
change only with the program and its data.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, RenderableType

from sailor_cloud import catalog, plan, simulate
from sailor_cloud.catalog.providers import of
from sailor_cloud.clock import DatedClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.provider import Provider
from sailor_cloud.report.comparison.difference import difference, difference_report
from sailor_cloud.report.decision.decision_rows import decision_report
from sailor_cloud.report.files.job_template import job_text
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.tables import rendered

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "gcp-a100-v100.yaml"
LLAMA = ROOT / "examples" / "llama3-8b-two-clouds.yaml"
DAY = datetime(2026, 11, 21, tzinfo=UTC)
COLUMNS = 110
PIXELS = "1200,2000"
SCHEMES = {"report.png": 1, "report-dark.png": 0}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[2:] or ["gcp", "aws", "llama"]
    if "aws" in wanted:
        preset = of(Provider("aws")).example
        assert preset is not None, "init writes a job for AWS"
        first_screen(job_text(Provider("aws"), preset, schema=None), "sailor-cloud plan job.yaml", folder / "aws.svg")
    if "llama" in wanted:
        first_screen(
            LLAMA.read_text(encoding="utf-8"), f"sailor-cloud plan examples/{LLAMA.name}", folder / "llama.svg"
        )
    if "gcp" in wanted:
        pictures_of_gcp(folder)


def first_screen(text: str, title: str, path: Path) -> None:
    report = decision_of(planned(text))
    draw(report, title, path)
    path.with_suffix(".txt").write_text(rendered(report, width=COLUMNS), encoding="utf-8")


def decision_of(document: PlanDocument) -> RenderableType:
    assert document.decision is not None, "the examples have plans"
    return decision_report(document.job, document.decision, width=COLUMNS)


def pictures_of_gcp(folder: Path) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    document = planned(text)
    longer = planned(re.sub(r" steps: (\d+)", lambda found: f" steps: {int(found[1]) * 6 // 5}", text))
    draw(decision_of(document), "sailor-cloud plan examples/gcp-a100-v100.yaml", folder / "plan.svg")
    draw(difference_report(difference(document, longer)), "sailor-cloud diff base.json head.json", folder / "diff.svg")
    timeline = simulate(document, timeline=True).timeline
    photograph(plan_as_html(document, timeline=timeline, regions=catalog.load().regions()), folder)


def planned(text: str) -> PlanDocument:
    return plan(parse_job(text), clock=DatedClock(DAY))


def draw(report: RenderableType, title: str, path: Path) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(report)
    console.save_svg(str(path), title=title, unique_id=path.stem)


def photograph(page: str, folder: Path) -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("no chromium on PATH, so the pictures of the HTML report stay as they are")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        report = Path(profile) / "report.html"
        report.write_text(page, encoding="utf-8")
        for name, scheme in SCHEMES.items():
            command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--user-data-dir={profile}/data", f"--window-size={PIXELS}"]
            command += [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={folder / name}"]
            subprocess.run([*command, report.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
