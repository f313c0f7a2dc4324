"""The error for what a rank can't do."""

from __future__ import annotations


class RefusedError(Exception):
    """The spec asks for something this runtime can't do, or the parts of it contradict each other."""
