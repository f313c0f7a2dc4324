"""What all tests share: shipped data, golden files (`pytest --update-golden` rewrites them), steady cases, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The same cases in every run, and none that fails because the machine is busy.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
# Plans for local nodes are those of one machine, with a core for each of them.
os.environ["SAILOR_CLOUD_MACHINE"] = "64 cores at 1.0"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite golden files with what tests see.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the group of a test into its id, where pytest-xdist's loadgroup looks for it; order groups and files.

    pytest-xdist 3.8 does so through an attribute that pytest 9.2 no longer reads, so that the tests of a group were
    spread over all workers, and each worker made what they share again.
    """
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        groups = sorted({str(mark.args[0]) for mark in item.iter_markers("xdist_group")})
        if groups and "@" not in item.nodeid.rpartition("]")[2]:
            item._id = type(item._id).parse(f"{item.nodeid}@{'_'.join(groups)}")  # type: ignore[attr-defined]
    # What takes longest comes first, so that no worker waits for another one at the end.
    slow = {_scope(item.nodeid) for item in items if item.get_closest_marker("slow")}
    sizes = Counter(_scope(item.nodeid) for item in items)
    items.sort(key=lambda item: (_scope(item.nodeid) not in slow, -sizes[_scope(item.nodeid)]))


def _scope(nodeid: str) -> str:
    """Return the group of a test, or its file."""
    return nodeid.rpartition("@")[2] if "@" in nodeid.rpartition("]")[2] else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Let one worker run all tests of a file without a group, so that what they share is made once."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class ByGroupOrFile(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    config.option.loadscopereorder = False
    return ByGroupOrFile(config, log)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    # A shell starts background jobs with SIGINT ignored; tests of Ctrl-C and their processes would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _data_is_read_once() -> Iterator[None]:
    from factories.shipped_data import read_once

    with read_once():
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_cluster_of_other_tests() -> Iterator[None]:
    """A process knows one inventory at a time: what one module's tests have read is none of the next one's business."""
    yield
    known = sys.modules.get("sailor_cloud.catalog.clusters")
    if known is not None:
        known._known.clear()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    """Return what a file in the golden folder beside the test holds; --update-golden writes the text there before."""

    def expected(name: str, shown: str) -> str:
        path = Path(request.path).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(shown, encoding="utf-8")
        return path.read_text(encoding="utf-8")

    return expected
