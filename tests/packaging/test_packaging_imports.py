"""No module imports itself by way of others."""

from __future__ import annotations

import grimp
import pytest


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
