"""Prints on stdout or stderr; whatever a text has come from, it can't steer the terminal."""

from __future__ import annotations

import click

from sailor_cloud.errors import printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text with control characters as their escapes."""
    click.echo(printable(text), nl=nl, err=err)
