"""Tables of stages: where their tensor-parallel all-reduces get their rate from."""

from __future__ import annotations

import numpy as np
import pytest

from factories.scenarios import gcp_scenario
from sailor_cloud.simulator import stage_table


@pytest.mark.parametrize(("tp", "measured"), [(2, 68.2816e9), (4, None)])
def test_a_pair_of_devices_reduces_at_its_measured_rate_and_larger_groups_by_their_links(
    tp: int, measured: float | None
) -> None:
    scenario = gcp_scenario()

    def forward_s(ring_bytes_per_s: float | None) -> np.ndarray:
        return scenario.profiles.layer_times(
            scenario.catalog.accelerator("V100-16"),
            scenario.decoder,
            sequence_length=scenario.job.training.sequence_length,
            microbatch_size=8,
            tp=tp,
            precision=scenario.job.training.precision,
            program=scenario.engine.program(tp=tp, spread=False),
            ring_bytes_per_s=ring_bytes_per_s,
        ).forward_s

    found = np.diff(stage_table(scenario, "V100-16", tp=tp, microbatch_size=8).forward_prefix_s)
    np.testing.assert_allclose(found, forward_s(measured), rtol=1e-9)
    assert found[1] < forward_s(10e9)[1]
