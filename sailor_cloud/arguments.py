"""Checks of the public functions' arguments. A wrong one raises RequestError with its name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sailor_cloud.clock import Clock, SystemClock
from sailor_cloud.errors import RequestError

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.run.progress import Observer

_Choice = TypeVar("_Choice", bound=StrEnum)


def path_of(name: str, given: Path | str) -> Path:
    """Return a path that may be given as text."""
    if not isinstance(given, str | os.PathLike):
        raise RequestError(f"{name} is a path, not {type(given).__name__}")
    return Path(given)


def names_of(name: str, given: Iterable[str] | str) -> tuple[str, ...]:
    """Return names; a single one may be given without a list."""
    if isinstance(given, str):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise RequestError(f"{name} holds {wrong[0]!r}; it must be a list of names")
    return found


def choice_of(kind: type[_Choice], name: str, given: str) -> _Choice:
    """Return a choice that may be given by its name."""
    try:
        return kind(given)
    except ValueError:
        raise RequestError(f"{name} is {given!r}; it may be {', '.join(kind)}") from None


def check_amount(name: str, given: float | None) -> None:
    """Refuse everything except None and numbers above 0."""
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if given is not None and not (number and isfinite(given) and given > 0):
        raise RequestError(f"{name} is {given!r}; it must be a number above 0")


def check_count(name: str, given: int) -> None:
    """Refuse everything except whole numbers from 0."""
    if not isinstance(given, int) or given < 0:
        raise RequestError(f"{name} is {given!r}; it must be a whole number from 0")


def clock_of(given: Clock | None) -> Clock:
    """Return the clock; None is the machine's own."""
    if given is not None and not hasattr(given, "monotonic_s"):
        raise RequestError(f"clock is {type(given).__name__}; write FixedClock(TIME) for a fixed time")
    return given or SystemClock()


def check_plan(given: PlanDocument) -> None:
    """Refuse everything except a plan document, whose file only some functions read."""
    from sailor_cloud.model.document import PlanDocument

    if not isinstance(given, PlanDocument):
        how = "plan(job) makes one and read_plan(path) reads one"
        raise RequestError(f"a plan is a PlanDocument, not {type(given).__name__}; {how}")


def check_observer(given: Observer) -> None:
    """Refuse an observer without the methods that a run calls."""
    missing = [name for name in ("note", "resource", "progress", "step", "close") if not hasattr(given, name)]
    if missing:
        raise RequestError(
            f"observer is {type(given).__name__}, which lacks {', '.join(missing)}; "
            "sailor_cloud.report.run.live.PlainLines is one"
        )
