from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from factories.commands import ROOT

DOCS = ROOT / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'sailor-cloud[docs]'")
    answer = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "schemas" / "job-v1.schema.json").exists()


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert set(listed) == {path.name for path in DOCS.glob("*.md")}


def test_every_room_is_in_the_design() -> None:
    page = (DOCS / "design.md").read_text()
    layout = page[page.index("## Layout") : page.index("## PlanDocument")]
    missing = []
    for package in (ROOT / "sailor_cloud", ROOT / "runtime" / "sailor_runtime"):
        for file in package.rglob("*/__init__.py"):
            room = file.parent.relative_to(package)
            # Providers have a folder each, of one form.
            if "providers" not in room.parts[:-1] and f"{room}/" not in layout:
                missing.append(str(room))
    assert missing == []
