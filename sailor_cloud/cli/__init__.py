"""The command line. A command is imported only when it is called, so that `--help` stays fast."""

from sailor_cloud.cli.main import main

__all__ = ["main"]
