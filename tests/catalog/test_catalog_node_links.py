"""The links that groups of devices share in nodes without a switch."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from sailor_cloud import catalog, resources
from sailor_cloud.errors import DataError

CATALOG = catalog.load(resources.data_root())
# nvidia-smi topo -m of a DGX-1 with V100: links between devices, 0 where traffic leaves NVLink.
CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
# Four V100, two links per pair (NVIDIA/nccl-tests issue 68, a Dell C4140).
FOUR_WAY = tuple(tuple(0 if a == b else 2 for b in range(4)) for a in range(4))


def most_rings(links: list[list[int]]) -> int:
    """The most rings over all devices that share no link, each once around; two devices are a ring per link."""
    if len(links) == 2:
        return links[0][1]
    best = 0
    for order in itertools.permutations(range(1, len(links))):
        ring = (0, *order)
        # Each ring once, not in both directions.
        hops = list(itertools.pairwise((*ring, 0)))
        if order[0] > order[-1] or any(links[a][b] == 0 for a, b in hops):
            continue
        left = [list(row) for row in links]
        for a, b in hops:
            left[a][b] -= 1
            left[b][a] -= 1
        best = max(best, 1 + most_rings(left))
    return best


def used_links(topology: tuple[tuple[int, ...], ...], devices: int) -> int:
    """The links of a device that the rings of the slowest group of neighbours use, in both directions at once."""
    groups = [range(first, first + devices) for first in range(0, len(topology), devices)]
    rings = min(most_rings([[topology[a][b] for b in group] for a in group]) for group in groups)
    return rings if devices == 2 else 2 * rings


@pytest.mark.parametrize(
    ("accelerator", "topology", "links"), [("V100-32", CUBE_MESH, 6), ("V100-16", CUBE_MESH, 6), ("GH-96", FOUR_WAY, 6)]
)
def test_groups_use_the_links_of_the_rings_that_their_node_allows(
    accelerator: str, topology: tuple[tuple[int, ...], ...], links: int
) -> None:
    assert {sum(row) for row in topology} == {links}
    groups = CATALOG.accelerator(accelerator).node_links
    assert [group.devices for group in groups] == [size for size in (2, 4, 8) if size <= len(topology)]
    for group in groups:
        assert group.used / group.links == used_links(topology, group.devices) / links, group


def test_a_group_of_another_size_gets_the_links_of_the_next_smaller_one() -> None:
    part = CATALOG.accelerator("V100-32")
    assert [part.ring_gb_per_s(devices) for devices in (2, 3, 4, 6, 8, 16)] == [50, 50, 200, 200, 300, 300]


def test_a_switch_gives_every_group_all_links_and_a_bridge_only_pairs() -> None:
    for name in ("A100-40", "A100-80", "H100-80", "H200-141", "B200-180", "GB200-186"):
        part = CATALOG.accelerator(name)
        assert {part.ring_gb_per_s(devices) for devices in (2, 4, 8)} == {part.nvlink_gb_per_s}
    assert [CATALOG.accelerator("RTX-3090-24").ring_gb_per_s(devices) for devices in (2, 3, 4)] == [112.5, None, None]
    assert CATALOG.accelerator("L4-24").ring_gb_per_s(2) is None


def rewritten(folder: Path, column: str | None) -> Path:
    """A pricing folder with the shipped accelerators, all linked as `column` says; None is a table without it."""
    with (resources.data_root() / "pricing" / "accelerators.csv").open(encoding="utf-8", newline="") as file:
        rows = [{**row, "node_links": column} for row in csv.DictReader(file)]
    columns = [name for name in rows[0] if name != "node_links" or column is not None]
    with (folder / "accelerators.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_accelerators_of_an_older_table_have_all_links(tmp_path: Path) -> None:
    part = catalog.load(pricing=rewritten(tmp_path, None)).accelerator("V100-16")
    assert part.node_links == ()
    assert part.ring_gb_per_s(2) == 300


def test_an_unknown_kind_of_links_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"accelerators.csv line 2: no links of kind 'ring' in node_links.csv"):
        catalog.load(pricing=rewritten(tmp_path, "ring"))
