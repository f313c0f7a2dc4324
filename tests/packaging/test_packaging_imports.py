"""No module and no room imports itself by way of others."""

from __future__ import annotations

import grimp
import pytest

from sailor_cloud.model.provider import names


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that reach each other, each sorted."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in imports.get(waiting.pop(), set()) - seen:
                seen.add(name)
                waiting.append(name)
        reached[start] = seen
    groups = {tuple(sorted(n for n in reached[m] if m in reached.get(n, ()))) for m in reached if m in reached[m]}
    return sorted(map(list, groups))


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [["a", "b", "c"]]


@pytest.mark.parametrize("package", ["sailor_cloud", "sailor_runtime"])
def test_no_module_is_imported_in_a_circle(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=True)
    imports = {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}
    assert circles(imports) == []


def part(module: str, package: str) -> str | None:
    """Return the module or room of a package that a module is in; a provider's folder stands beside the rooms.

    The registry in `providers` imports a folder by its name only once somebody asks for it.
    """
    if not module.startswith(f"{package}."):
        return None
    first, *rest = module.removeprefix(f"{package}.").split(".")
    folder = first == "providers" and rest and rest[0] in names()
    return f"{first}.{rest[0]}" if folder else first


@pytest.mark.parametrize("package", ["sailor_cloud", "sailor_runtime"])
def test_no_room_is_imported_in_a_circle(package: str) -> None:
    graph = grimp.build_graph(package, exclude_type_checking_imports=True)
    found = {}
    for parent in graph.modules:
        imports: dict[str, set[str]] = {}
        for importer in graph.find_descendants(parent):
            into = {part(name, parent) for name in graph.find_modules_directly_imported_by(importer)}
            name = part(importer, parent)
            imports.setdefault(str(name), set()).update(str(each) for each in into - {None, name})
        found |= {parent: circles(imports)} if circles(imports) else {}
    assert found == {}
