"""Plans, buys, runs and tears down heterogeneous GPU training under a budget."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sailor_cloud.api import (
        choose,
        compare,
        explain,
        offers,
        plan,
        read_job,
        read_plan,
        resume,
        simulate,
        simulate_layout,
        up,
    )
    from sailor_cloud.errors import RequestError, SailorError
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Job
    from sailor_cloud.resources import data_folders

__all__ = [
    "Job",
    "PlanDocument",
    "RequestError",
    "SailorError",
    "choose",
    "compare",
    "data_folders",
    "explain",
    "offers",
    "plan",
    "read_job",
    "read_plan",
    "resume",
    "simulate",
    "simulate_layout",
    "up",
]
_ELSEWHERE = {
    "Job": "model.job",
    "PlanDocument": "model.document",
    "RequestError": "errors",
    "SailorError": "errors",
    "data_folders": "resources",
}


def __getattr__(name: str) -> Any:
    # Lazy imports keep the command line fast.
    if name == "__version__":
        from importlib.metadata import version

        return version("sailor-cloud")
    if name in __all__:
        return getattr(import_module(f"sailor_cloud.{_ELSEWHERE.get(name, 'api')}"), name)
    raise AttributeError(f"module 'sailor_cloud' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", *(name for name in globals() if name.startswith("__"))]
