"""This machine: processes that emulate nodes, at example prices."""

from __future__ import annotations

from sailor_cloud.catalog.providers import CatalogProvider, JobExample


class Local(CatalogProvider):
    # Two ranks import torch and deepspeed in 5 s and check and calibrate in 10 s (2 cores, 2026-11).
    startup_s = 15.0
    teardown_s = 2.0
    creation_s = 0.0
    preemptions_per_hour = 0.0
    on_this_machine = True
    bills_services = False
    example = JobExample(
        zones=("local-a", "local-b"),
        markets=("on-demand",),
        accelerators=(("CPU-fast", 1), ("CPU-slow", 1)),
        name="first-run",
        model="",
        batch=24,
        sequence_length=128,
        steps=100,
        precision="fp32",
        budget_usd=1.0,
        deadline="10m",
    )


PROVIDER = Local()
