"""How long a fleet takes to create, bring up, sweep and delete, by its size; writes results/provision.md.

Terraform, driver, provisioner, SSH, agents' commands and sweep are the real ones; the cloud and its machines are
stand-ins in which every operation takes ten seconds. Waiting is real. What the table shows is how
the time grows with the number of nodes, not how fast a cloud is.

All cells take about 25 minutes on two quiet cores; --providers, --sizes and --regions choose some. Fleets of up to 64
nodes mostly wait and are measured side by side, larger ones alone. What was measured at this commit is kept in the
state file and not measured again; the results are written after each cell.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
# ruff: noqa: E402

from commit import commit as commit_of_checkout

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.cloud_runs import CloudRun, cloud_run, without_bucket
from factories.local_runs import CLOCK
from sailor_cloud.launch.fleet.ssh_fleet import SshFleet
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.scopes import journaled_scopes, remove_from, sweep_scopes
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import BILLED, FakeCloud
from sailor_cloud.testing.terraform.provider import serve

RESULTS = ROOT / "benchmarks" / "results" / "provision.md"
STATE = ROOT / "build" / "provision.jsonl"
SIZES = (1, 16, 64, 256)
REGIONS = (1, 5)
OPERATION_S = 10.0
# One request to a cloud's API, and one command on a node across a continent.
REQUEST_S = 0.2
# Fleets up to this size are measured side by side, so many at a time.
SMALL, SIDE_BY_SIDE = 64, 6
PHASES = ("create", "bring-up", "delete", "sweep")
_WRITING = threading.Lock()
_GCP = ("us-central1", "us-east1", "us-west1", "europe-west4", "asia-east1")
_AWS = {
    "use1": "us-east-1",
    "usw2": "us-west-2",
    "euw1": "eu-west-1",
    "euc1": "eu-central-1",
    "apne1": "ap-northeast-1",
}


class SlowCloud(FakeCloud):
    """A cloud in which each operation of Terraform takes `operation_s`, and a deletion by its own API as long."""

    def __init__(self) -> None:
        super().__init__()
        self.operation_s = 0.0
        self._leaving: set[tuple[str, str]] = set()

    def create(self, kind: str, wanted: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(self.operation_s)
        return super().create(kind, wanted, config)

    def delete(self, kind: str, name: str, *, why: str = "deleted") -> None:
        time.sleep(self.operation_s)
        super().delete(kind, name, why=why)

    def begin_deletion(self, kind: str, name: str) -> None:
        time.sleep(REQUEST_S)
        if kind not in BILLED:
            super().delete(kind, name)
            return
        self._leaving.add((kind, name))
        threading.Timer(OPERATION_S, self._left, [kind, name]).start()

    def _left(self, kind: str, name: str) -> None:
        super().delete(kind, name)
        self._leaving.discard((kind, name))

    def shown(self, kind: str, name: str) -> bool:
        return (kind, name) in self._leaving


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float
    cpu_s: float


def measured(work: Callable[[], Any]) -> Measured:
    """Return how long something takes, and the processor's time of this process and the Terraforms that it runs."""
    before, begun = _cpu_s(), time.monotonic()
    work()
    return Measured(round(time.monotonic() - begun, 1), round(_cpu_s() - before, 1))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def planned(provider: Provider, nodes: int, regions: int) -> PlanDocument:
    """Return a plan of as many equal nodes, spread over regions."""
    offers = _offers(provider)[:regions]
    bought = [(f"n{number:03d}", offers[number % len(offers)]) for number in range(nodes)]
    return without_bucket(cloud_document(*bought, image=None))


def _offers(provider: Provider) -> list[Offer]:
    if provider == "gcp":
        return [replace(GCP_OFFERS[2], id=name, region=name, zone=f"{name}-a") for name in _GCP]
    return [replace(AWS_OFFERS[1], id=zone, region=region, zone=f"{zone}-az1") for zone, region in _AWS.items()]


def one(provider: Provider, nodes: int, regions: int, phases: tuple[str, ...]) -> dict[str, Measured]:
    """Take a fleet through its life and return how long each phase took."""
    cloud = SlowCloud()
    for number in range(3):
        # What is not the run's own, as the factory expects.
        kind = "google_compute_network" if provider == "gcp" else "aws_vpc"
        cloud.create(kind, {"name": f"n{number}", "tags": {"team": "another-team"}}, {"region": "us-east-1"})
    found: dict[str, Measured] = {}
    api = serve_compute if provider == "gcp" else serve_ec2
    document = planned(provider, nodes, regions)
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(cloud) as attached,
        api(cloud) as reach,
        in_environment({**attached, **reach}),
        cloud_run(provider, Path(folder), document=document, cloud=cloud) as run,
    ):
        cloud.operation_s = OPERATION_S if "create" in phases else 0.0
        found["create"] = measured(lambda: applied_or_raise(run.apply()))
        if "bring-up" in phases:
            found["bring-up"] = _bring_up(run)
        if "sweep" in phases:
            cloud.operation_s = 0.0
            found["sweep"] = measured(lambda: _swept(run))
        if "delete" in phases:
            cloud.operation_s = OPERATION_S
            found["delete"] = measured(lambda: run.destroy())
            assert cloud.owned_by(run.run.run_id) == ()
    return {name: found[name] for name in phases}


def _swept(run: CloudRun) -> None:
    """Find the run by tag and delete it without Terraform."""
    scopes = journaled_scopes(run.journal().entries())
    found = sweep_scopes(scopes, run_id=run.run.run_id).found
    assert len([resource for resource in found if resource.node]) == len(run.nodes())
    problems = remove_from(found, poll_s=1.0)
    assert problems == (), problems
    assert run.nodes() == []


def _bring_up(run: CloudRun) -> Measured:
    """Connect to every node and start its agent; the nodes' stand-ins are one other process."""
    key = run.run.folder.ssh_key_file.with_name(f"{run.run.folder.ssh_key_file.name}.pub").read_text()
    command = [sys.executable, str(Path(__file__).with_name("nodes.py")), key, str(REQUEST_S), str(OPERATION_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())
        nodes = [_reachable(run, node, address) for node in run.nodes()]
        try:
            return measured(lambda: asyncio.run(_started(run, nodes)))
        finally:
            process.kill()


async def _started(run: CloudRun, nodes: list[ReachableNode]) -> None:
    links = await SshFleet(run.run.folder, CLOCK).connect(nodes)
    await asyncio.gather(*(link.ensure_agent() for link in links))
    await asyncio.gather(*(link.close() for link in links))


def _reachable(run: CloudRun, node: str, address: dict[str, Any]) -> ReachableNode:
    return ReachableNode(
        id=node,
        provider=run.provider,
        region="r",
        zone="z",
        instance_type="t",
        accelerator="L4-24",
        devices=1,
        address="127.0.0.1",
        port=address["port"],
        user="sailor",
        host_public_key=address["host_key"],
        private_address="127.0.0.1",
        workdir="/",
        created_at=datetime.now(UTC),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--providers", nargs="+", default=["gcp", "aws"])
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--regions", nargs="+", type=int, default=list(REGIONS))
    parser.add_argument("--fresh", action="store_true", help="forget what has been measured")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        provider, nodes, regions, phases = options.one
        rows = one(Provider(provider), int(nodes), int(regions), tuple(phases.split("+")))
        print(json.dumps({name: [row.seconds, row.cpu_s] for name, row in rows.items()}))
        return 0
    STATE.parent.mkdir(exist_ok=True)
    if options.fresh:
        STATE.unlink(missing_ok=True)
    commit, failed = commit_of_checkout(), []
    known = {Cell(row["provider"], row["nodes"], row["regions"], row["phases"]) for row in _rows(commit)}
    for batch in _batches(options.providers, options.sizes, options.regions):
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            failed += pool.map(lambda cell: _run(cell, commit), [cell for cell in batch if cell not in known])
    if commit_of_checkout() != commit:
        print(f"the checkout is {commit} no longer: what was measured is unknown", file=sys.stderr)
        return 1
    print(RESULTS)
    return 1 if any(failed) else 0


class Cell(NamedTuple):
    """One fleet, and what is measured of it."""

    provider: str
    nodes: int
    regions: int
    phases: str


def _batches(providers: list[str], sizes: list[int], regions: list[int]) -> Iterator[list[Cell]]:
    """Yield cells that are measured side by side: small ones of a provider together, each large one alone."""
    for provider in providers:
        for phases in ("create+bring-up+delete", "sweep"):
            cells = [Cell(provider, n, r, phases) for r in regions for n in sizes if n >= r]
            yield [cell for cell in cells if cell.nodes <= SMALL]
            yield from ([cell] for cell in cells if cell.nodes > SMALL)


def _run(cell: Cell, commit: str) -> bool:
    """Measure one fleet in a process of its own, and keep what was measured; return whether that failed."""
    load = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *map(str, cell)], capture_output=True, text=True, check=False
    )
    name = f"{cell.provider}, {cell.nodes} nodes in {cell.regions} regions, {cell.phases}"
    if done.returncode != 0:
        print(f"{name} failed:\n{done.stderr}", file=sys.stderr, flush=True)
        return True
    found = json.loads(done.stdout.splitlines()[-1])
    with _WRITING:
        with STATE.open("a") as file:
            file.write(json.dumps({**cell._asdict(), "commit": commit, "load": load, "measured": found}) + "\n")
        RESULTS.write_text(_report(_rows(commit)))
    print(f"{name}: {found}", flush=True)
    return False


def _rows(commit: str) -> list[dict[str, Any]]:
    """Return what was measured at a commit."""
    rows = map(json.loads, STATE.read_text().splitlines()) if STATE.is_file() else ()
    return [row for row in rows if row["commit"] == commit]


def _report(rows: list[dict[str, Any]]) -> str:
    table: dict[tuple[str, int, int], dict[str, list[float]]] = {}
    for row in rows:
        table.setdefault((row["provider"], row["regions"], row["nodes"]), {}).update(row["measured"])
    lines = [
        "# Provisioning",
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}, load average at most {max(row['load'] for row in rows):.1f} as a cell began, "
        f"commit {rows[-1]['commit']}. "
        f"Command: `{' '.join(['python', *sys.argv])}`.",
        "",
        f"Each operation of the cloud takes {OPERATION_S:.0f} s and each request {REQUEST_S:g} s, waited in full. The "
        "cloud is a stand-in in the measuring process, the nodes are stand-ins in one other process; Terraform, SSH "
        "and all of sailor-cloud are real. Seconds, with the processor's seconds (Terraform's and the stand-in cloud's "
        f"included) in brackets. Fleets of up to {SMALL} nodes were measured side by side.",
        "",
        "| cloud | regions | nodes | create | bring-up | delete | sweep |",
        "|---|---|---|---|---|---|---|",
    ]
    for (provider, regions, nodes), found in sorted(table.items()):
        cells = [f"{found[p][0]:.0f} ({found[p][1]:.0f})" if p in found else "" for p in PHASES]
        lines.append(f"| {provider} | {regions} | {nodes} | {' | '.join(cells)} |")
    lines += [
        "",
        "From 16 to 256 nodes the time grows by:",
        "",
        "| cloud | regions | create | bring-up | delete | sweep |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for provider, regions in sorted({key[:2] for key in table}):
        few, many = table.get((provider, regions, 16), {}), table.get((provider, regions, 256), {})
        cells = [f"{many[p][0] / few[p][0]:.1f} ×" if p in few and p in many else "" for p in PHASES]
        if any(cells):
            lines.append(f"| {provider} | {regions} | {' | '.join(cells)} |")
    lines += [
        "",
        "What grows beyond the waits is work: that of Terraform, of the stand-in cloud, and of the stand-in nodes,",
        "which is not counted. All of it shares the cores with whatever else runs on the machine. Most of Terraform's",
        "is its state: a state in a file is rewritten completely for each node that comes or goes. What was tried",
        "instead is in `docs/decisions/terraform-state.md`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
