"""The names of providers and their packages: built-in ones, and those of an entry point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

ENTRY_POINTS = "sailor_cloud.providers"
# Schedulers of existing machines, which an inventory describes.
CLUSTERS = ("slurm", "kubernetes")
_BUILT_IN = ("gcp", "aws", "local", *CLUSTERS)
_registered: dict[str, str] = {}


class Provider(str):
    """The name of a provider; equal names are one object. Raises ValueError for an unregistered name.

    An external package adds a provider by an entry point of the group `sailor_cloud.providers`: its name is the
    provider's, its value a package with a module `catalog` and a module `provision`, each with a `PROVIDER`.
    """

    __slots__ = ()

    _known: ClassVar[dict[str, Provider]] = {}

    def __new__(cls, name: str) -> Provider:
        if not isinstance(name, str) or (name not in _BUILT_IN and name not in names()):
            raise ValueError(f"{name!r} is not a valid Provider; known: {', '.join(names())}")
        return cls._known.setdefault(name, super().__new__(cls, name))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import PydanticKnownError, core_schema

        def validated(name: Any) -> Provider:
            try:
                return cls(name)
            except ValueError:
                *others, last = (f"'{known}'" for known in names())
                raise PydanticKnownError("enum", {"expected": f"{', '.join(others)} or {last}"}) from None

        return core_schema.no_info_plain_validator_function(
            validated, ref=cls.__name__, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(names()), "title": cls.__name__, "type": "string"}


def names() -> tuple[str, ...]:
    """Return the names of all providers, built-in ones first."""
    return tuple(dict.fromkeys((*_BUILT_IN, *_entry_points(), *_registered)))


def module_of(provider: Provider, half: str) -> str:
    """Return the module name of a provider's half: `catalog` or `provision`."""
    if provider in _BUILT_IN:
        return f"sailor_cloud.{half}.providers.{provider}"
    return f"{(_registered | _entry_points())[provider]}.{half}"


@contextmanager
def registered(name: str, package: str) -> Iterator[Provider]:
    """Register a provider temporarily, as an entry point would permanently."""
    _registered[name] = package
    try:
        yield Provider(name)
    finally:
        del _registered[name]
        Provider._known.pop(name, None)


@cache
def _entry_points() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
