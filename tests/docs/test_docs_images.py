from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from factories.browser import CHROMIUM, WHY_NOT
from factories.commands import ROOT

IMAGES = ROOT / "docs" / "images"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_the_script_makes_every_picture_that_pages_show(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "make_images.py"), str(tmp_path), "gcp"]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    made = {path.name for path in tmp_path.iterdir()}
    shown = set()
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        shown |= set(re.findall(r"\]\((?:docs/)?images/([\w.-]+)\)", page.read_text()))
    # AWS and Llama take searches of many seconds; how they are drawn is how the others are.
    slow = {"architecture.svg", "aws.svg", "aws.txt", "llama.svg", "llama.txt"}
    assert shown - slow <= made
    assert all((IMAGES / name).exists() for name in shown)
    assert "opt-350m" in (tmp_path / "plan.svg").read_text()
    for name in ("report.png", "report-dark.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / name).stat().st_size > 50_000
