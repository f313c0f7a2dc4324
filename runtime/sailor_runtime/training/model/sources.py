"""The files that define a user's module."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from torch import nn

_INSTALLED = {"site-packages", "dist-packages"}


def source_files(root: nn.Module, place: str) -> dict[str, str]:
    """Return the start of the SHA-256 of each file that defines a layer or holds the function at `place`, by module.

    Leaves out installed packages and files that these import.
    """
    names = {place.partition(":")[0], *(type(part).__module__ for part in root.modules())}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in sorted(names)}
    return {
        name: hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]
        for name, file in files.items()
        if file is not None and _INSTALLED.isdisjoint(Path(file).parts)
    }
