"""The `sailor-cloud` command, whose runs have ranks that need no torch."""

from __future__ import annotations

from factories.quick_runs import EXTRA_PATHS, RANKS
from sailor_cloud.cli.main import main as command_line
from sailor_cloud.launch.fleet import agents


def main() -> None:
    agents.RANK_MODULE, agents.EXTRA_PATHS = RANKS, EXTRA_PATHS
    command_line()
