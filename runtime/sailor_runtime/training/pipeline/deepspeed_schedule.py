"""DeepSpeed's pipeline schedules without the rest of DeepSpeed."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

_ALONE = "sailor_runtime._deepspeed_pipe"


def load() -> Any:
    """Return DeepSpeed's module of pipeline schedules without the package around it.

    The package imports its engines, kernels and models, half a second of processor time per rank; the module needs one
    function for printing. If its file is not in the expected place, the whole package is imported.
    """
    found = importlib.util.find_spec("deepspeed")
    origin = None if found is None else found.origin
    file = None if origin is None else Path(origin).parent / "runtime" / "pipe" / "schedule.py"
    if file is None or not file.is_file() or "deepspeed" in sys.modules:
        from deepspeed.runtime.pipe import schedule

        return schedule
    name = f"{_ALONE}.pipe.schedule"
    if name in sys.modules:
        return sys.modules[name]
    utils = types.ModuleType(f"{_ALONE}.utils")
    utils.__dict__["call_to_str"] = lambda base, *args, **kwargs: f"{base}{args}{kwargs}"
    for package in (_ALONE, f"{_ALONE}.pipe"):
        sys.modules[package] = types.ModuleType(package)
    sys.modules[utils.__name__] = utils
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
