"""Searches over the data that comes with the program."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sailor_cloud import catalog, network, planner, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.account.quotas import Counted, QuotaLimit
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.network import Network
from sailor_cloud.planner.space.candidates import collect
from sailor_cloud.planner.space.space import Space, build
from sailor_cloud.simulator import Scenario
from sailor_cloud.workload import ComputeProfiles, profiles

AS_OF = datetime(2026, 11, 21, tzinfo=UTC)
EXAMPLES = Path(__file__).parents[2] / "examples"

# Some layers of OPT-350m: planned in a fraction of the time of all of them.
SHALLOW = {
    "model_type": "gpt2",
    "vocab_size": 50272,
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
}


@cache
def data() -> tuple[Catalog, Network, ComputeProfiles]:
    return catalog.load(), network.load(), profiles.load()


def eight_v100s(instance_type: str, **training: object) -> Job:
    """A job of a model as OPT 1.3B, with a light head, on eight V100s of one zone, for deep pipelines."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32}
    return example(
        "gcp-a100-v100.yaml",
        model={"model_type": "gpt2", "vocab_size": 8192, "max_position_embeddings": 2048, **sizes},
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["on-demand"],
        resources__0__accelerators={"V100-16": 8},
        resources__0__instance_types=[instance_type],
        training={"global_batch_size": 32, "sequence_length": 1024, "precision": "fp16", "steps": 10, **training},
        constraints={},
    )


def example(name: str, **changes: Any) -> Job:
    """A job of the examples folder; a change names a field by its path, as in `constraints__budget_usd=1`."""
    raw = yaml.safe_load((EXAMPLES / name).read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = raw
        for parent in parents:
            inner = inner[int(parent) if parent.isdigit() else parent]
        inner[last] = value
    return Job.model_validate(raw)


def quota(
    name: str,
    limit: float,
    covers: dict[str, Market | None],
    *,
    provider: str = "local",
    region: str = "",
    counts: Counted = Counted.DEVICES,
    used: float = 0.0,
) -> QuotaLimit:
    """A limit of the account of the example jobs on accelerators, each in one market or in both."""
    return QuotaLimit(
        provider=Provider(provider),
        project="my-project" if provider == "gcp" else "",
        region=region,
        quota=name,
        counts=counts,
        covers=frozenset((accelerator, "", market) for accelerator, market in covers.items()),
        limit=limit,
        used=used,
        read_on=AS_OF.date(),
    )


_planned: dict[tuple[object, ...], PlanDocument] = {}


def plan(job: Job, *restrictions: planner.Restriction, quotas: tuple[QuotaLimit, ...] = ()) -> PlanDocument:
    """Plan a job, or return its plan if this process has planned it before."""
    key = (job.model_dump_json(), restrictions, quotas)
    if key not in _planned:
        _planned[key] = planned_again(job, *restrictions, quotas=quotas)
    return _planned[key]


def planned_again(job: Job, *restrictions: planner.Restriction, quotas: tuple[QuotaLimit, ...] = ()) -> PlanDocument:
    prices, links, times = data()
    prices = prices.with_quotas(quotas)
    return planner.search(
        job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), restrictions=restrictions
    )


def make_space(job: Job, quotas: tuple[QuotaLimit, ...] = (), machine: LocalMachine | None = None) -> Space:
    prices, links, times = data()
    prices = prices.with_quotas(quotas)
    candidates = collect(job, prices)
    scenario = Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers={pool.offer.id: pool.offer for pool in candidates.pools},
        catalog=prices,
        network=links,
        profiles=replace(times, machine=machine),
        as_of=AS_OF,
    )
    return build(scenario, candidates)[0]


def tiny_job(
    *,
    blocks: int = 1,
    hidden: int = 32,
    batch: int = 4,
    zones: tuple[str, ...] = ("local-a", "local-b"),
    accelerators: dict[str, int] | None = None,
    goal: str = "maximize-throughput",
    constraints: dict[str, Any] | None = None,
    steps: int | None = 10,
) -> Job:
    """A job so small that all of its plans can be gone through one by one."""
    return Job.model_validate(
        {
            "name": "tiny",
            "model": {
                "model_type": "gpt2",
                "vocab_size": 64,
                "hidden_size": hidden,
                "num_hidden_layers": blocks,
                "num_attention_heads": 4,
                "max_position_embeddings": 64,
            },
            "training": {"global_batch_size": batch, "sequence_length": 64, "steps": steps},
            "goal": goal,
            "constraints": constraints or {},
            "resources": [
                {
                    "provider": "local",
                    "zones": list(zones),
                    "markets": ["on-demand"],
                    "accelerators": accelerators or {"CPU-fast": 1, "CPU-slow": 1},
                }
            ],
        }
    )
