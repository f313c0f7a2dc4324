"""The command line. A command is imported only when it is called, so that `--help` stays quick."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with a line and a code, even while modules are being imported."""
    try:
        from sailor_cloud.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()
