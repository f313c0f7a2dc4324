from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = "sailor-cloud up examples/quickstart.yaml --yes"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_output", ROOT / "docs" / "readme_output.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readme_output"] = module
    spec.loader.exec_module(module)
    return module


readme_output = load()
SHOWN = readme_output.blocks((ROOT / "docs" / "demo.md").read_text(encoding="utf-8"))
PLANS = sorted(command for command in SHOWN if " plan " in command)


def without_search_time(output: str) -> str:
    return re.sub(r"searched .*", "searched", output)


def after_make(log: str) -> str:
    """Return what `make demo` printed after the command that it showed."""
    shown, _, output = log.partition(f"{DEMO}\n")
    assert output, f"make demo never came to run the demo:\n{shown}"
    return output


@pytest.mark.parametrize("command", PLANS)
def test_the_page_shows_what_a_plan_prints(command: str) -> None:
    assert without_search_time(readme_output.output_of(command)) == without_search_time(SHOWN[command])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("lifecycle")
def test_the_page_shows_what_the_demo_prints() -> None:
    log = os.environ.get("SAILOR_CLOUD_DEMO_LOG")
    # CI has run the demo already and hands its output over.
    output = after_make(Path(log).read_text(encoding="utf-8")) if log else readme_output.output_of(DEMO)
    here, there = readme_output.cores(output), readme_output.cores(SHOWN[DEMO])
    if here != there:
        pytest.skip(f"the best plan depends on the cores: there are {here} here, the shown demo ran on {there}")
    assert readme_output.skeleton(output) == readme_output.skeleton(SHOWN[DEMO])


def test_the_tutorial_shows_the_end_of_the_demo() -> None:
    shown = readme_output.ends((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert shown == {DEMO: readme_output.end_of(SHOWN[DEMO])}


def test_a_skeleton_drops_numbers_but_not_words() -> None:
    first = "step 1/9\nstep 2/9, loss 3.1\n4 nodes up in 1.5 s\nTTL in 19 min 5 s\nrun a-20261121-060000-12ab in /x/y"
    again = "step 1/9\n4 nodes up in 22 s\nTTL in 7 s\nrun b-20270101-000000-ffff in /other"
    assert readme_output.skeleton(first) == readme_output.skeleton(again)
    assert readme_output.skeleton(first) != readme_output.skeleton(again.replace("nodes", "machines"))


def test_the_cores_of_a_plan_are_read_from_its_output() -> None:
    assert readme_output.cores(SHOWN[DEMO]) == 2
    assert readme_output.cores("goal  x\nmachine      1 core for all local nodes, each 0.95 times as fast") == 1
