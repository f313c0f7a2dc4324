"""What goes from one process of a search to the other by the thousand, and so is carried as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

_Class = TypeVar("_Class")


def carried(cls: type[_Class]) -> type[_Class]:
    """Let objects of a frozen dataclass with slots be sent by the values of their fields.

    What dataclasses do of themselves looks up the fields of every object again. Two fields at least.
    """
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    setters: list[Callable[[Any, Any], None]] = [getattr(cls, name).__set__ for name in names]

    def restore(self: _Class, values: Sequence[object]) -> None:
        for put, value in zip(setters, values, strict=True):
            put(self, value)

    values_of = attrgetter(*names)
    cls.__getstate__ = lambda self: values_of(self)  # type: ignore[method-assign]
    cls.__setstate__ = restore  # type: ignore[attr-defined]
    return cls
