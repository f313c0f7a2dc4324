"""Times loading and querying the catalog and the network, beside a plain scan over the same offers.

python benchmarks/catalog/run.py [--results FILE]

Loading is timed in fresh processes, with the import of pandas apart; queries in this one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sailor_cloud import catalog, network, resources
from sailor_cloud.catalog import Catalog
from sailor_cloud.model.offer import Market, Offer

_FRESH = """
import json, time
start = time.perf_counter(); import pandas; imported = time.perf_counter()
from sailor_cloud import catalog, network, resources
ready = time.perf_counter(); catalog.load(resources.data_root()); loaded = time.perf_counter()
network.load(resources.data_root()); done = time.perf_counter()
print(json.dumps([imported - start, loaded - ready, done - loaded]))
"""
PROCESSES = 7
REPEATS = 200
LOAD_BAR_S = 0.200
QUERY_BAR_S = 0.050


def fresh_loads() -> list[list[float]]:
    """Return seconds for import of pandas, first load of the catalog and of the network, per fresh process."""
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run([sys.executable, "-c", _FRESH], check=True, capture_output=True, text=True)
        runs.append(json.loads(done.stdout))
    return runs


def timed(call: Callable[[], object]) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def scan(offers: tuple[Offer, ...], zones: set[str], accelerators: set[str], markets: set[Market]) -> list[Offer]:
    """Answer a query without the frame: one look at every offer."""
    return [
        offer
        for offer in offers
        if offer.zone in zones and offer.accelerator in accelerators and offer.market in markets
    ]


def report() -> str:
    runs = fresh_loads()
    pandas_s, load_s, network_s = (statistics.median(run[column] for run in runs) for column in range(3))
    worst_load_s = max(run[1] for run in runs)
    loaded: Catalog = catalog.load(resources.data_root())
    links = network.load(resources.data_root())
    every = loaded.offers()
    zones, accelerators = {"us-central1-a", "us-central1-b"}, {"A100-40", "V100-16"}
    markets = {Market.SPOT, Market.ON_DEMAND}
    all_s = timed(loaded.offers)
    some_s = timed(lambda: loaded.offers(zones=zones, accelerators=accelerators, markets=markets))
    scan_s = timed(lambda: scan(every, zones, accelerators, markets))
    place = network.Place(zone="us-central1-a", node=None, accelerator="A100-40", instance_type="a2-highgpu-4g")
    link = links.link(place, place, pairs=4)
    transfer_s = timed(lambda: link.transfer_s(16e6))
    rows = [
        ("first load of the catalog, fresh process", load_s, f"{LOAD_BAR_S * 1e3:.0f} ms", load_s <= LOAD_BAR_S),
        ("the slowest of them", worst_load_s, f"{LOAD_BAR_S * 1e3:.0f} ms", worst_load_s <= LOAD_BAR_S),
        ("first load of the network", network_s, "", None),
        ("import of pandas", pandas_s, "", None),
        (f"query that returns all {len(every)} offers", all_s, f"{QUERY_BAR_S * 1e3:.0f} ms", all_s <= QUERY_BAR_S),
        ("query for two zones, two accelerators", some_s, f"{QUERY_BAR_S * 1e3:.0f} ms", some_s <= QUERY_BAR_S),
        ("the same by a plain scan", scan_s, "", None),
        ("time of one transfer on a link", transfer_s, "", None),
    ]
    lines = [
        "# Catalog: load and query",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, load average {os.getloadavg()[0]:.1f}. Medians of {PROCESSES} fresh processes "
        f"for loads and {REPEATS} calls for the rest: `python benchmarks/catalog/run.py`.",
        "",
        "| | time | bar | |",
        "|---|---|---|---|",
    ]
    for what, seconds, bar, met in rows:
        verdict = "" if met is None else "met" if met else "missed"
        lines.append(f"| {what} | {seconds * 1e3:.3f} ms | {bar} | {verdict} |")
    lines += ["", f"Query by the frame against the scan: {some_s / scan_s:.2f} of the time.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, help="also write the report to this file")
    chosen = parser.parse_args().results
    text = report()
    print(text)
    if chosen is not None:
        chosen.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
