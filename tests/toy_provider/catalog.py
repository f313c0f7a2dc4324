"""What the toy provider sells: one region, two zones, nodes of four V100, at prices of its own."""

from __future__ import annotations

from pathlib import Path

from sailor_cloud.catalog.providers import CatalogProvider


class Toy(CatalogProvider):
    startup_s = 60.0
    teardown_s = 10.0
    preemptions_per_hour = 0.01
    data = Path(__file__).parent / "data"


PROVIDER = Toy()
