"""The error for a spec that a rank can't carry out."""

from __future__ import annotations


class RefusedError(Exception):
    """The spec asks for something that this runtime can't do, or its parts contradict each other."""
