"""The functions that delete an overdue run from within its account, as modules of this process."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from sailor_cloud.resources import data_root


def watchdog_of(stack: str) -> ModuleType:
    file = data_root() / "terraform" / "stacks" / stack / "watchdog.py"
    spec = importlib.util.spec_from_file_location(f"watchdog_{stack[:3]}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PAUSE_S = 0
    return module
