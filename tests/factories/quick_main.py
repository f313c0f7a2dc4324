"""A controller in a process of its own, with quick ranks, so that a test can kill it."""

from __future__ import annotations

import argparse
from dataclasses import replace

from factories.quick_runs import CLOCK, EXTRA_PATHS, QUICK, RANKS, Notes, planned
from sailor_cloud.launch.fleet import agents
from sailor_cloud.launch.start import run_document
from sailor_cloud.workload import decoder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=600.0)
    parser.add_argument("--ttl", type=float, default=600.0)
    arguments = parser.parse_args()
    agents.RANK_MODULE, agents.EXTRA_PATHS = RANKS, EXTRA_PATHS
    document = replace(planned(steps=arguments.steps, every_s=arguments.every), ttl_s=arguments.ttl)
    # A TTL of seconds lies inside the usual reserve.
    options = replace(QUICK, teardown_reserve_s=min(60.0, arguments.ttl / 4))
    model = decoder(document.job.model)
    run_document(document, decoder=model, observer=Notes(), clock=CLOCK, options=options)


if __name__ == "__main__":
    main()
