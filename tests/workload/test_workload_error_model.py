"""The distribution of what predictions are off by."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from sailor_cloud.errors import DataError
from sailor_cloud.workload import profiles
from sailor_cloud.workload.error_model import ErrorDistribution, read_error_model

SHIPPED = profiles.load().errors
TAILS = (-0.5, -0.14, 0.0, 0.14)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("half", [0.02, 0.1, 0.6])
def test_half_of_the_ratios_lie_within_half_and_a_probability_is_the_inverse_of_a_ratio(
    half: float, tail: float
) -> None:
    likely = ErrorDistribution(half=half, tail=tail)
    assert likely.ratio(0.5) == pytest.approx(1.0)
    assert math.log(likely.ratio(0.75)) == pytest.approx(half)
    assert math.log(likely.ratio(0.25)) == pytest.approx(-half)
    for probability in (0.01, 0.3, 0.5, 0.9, 0.999):
        assert likely.probability(likely.ratio(probability)) == pytest.approx(probability, abs=1e-9)


def test_normal_errors_have_nine_in_ten_within_twice_and_a_half_of_what_half_have() -> None:
    normal = ErrorDistribution(half=0.01, tail=0.1349)
    assert normal.p90 / normal.p50 == pytest.approx(1.645 / 0.6745, rel=0.01)
    heavy = ErrorDistribution(half=0.01, tail=-0.3)
    assert heavy.p90 / heavy.p50 > normal.p90 / normal.p50


def test_errors_are_no_narrower_than_what_half_and_nine_in_ten_were_below() -> None:
    for stated in ((0.05, 0.1), (0.05, 0.6), (0.2, 0.21)):
        likely = SHIPPED.of(SHIPPED.at_least(*stated))
        assert likely.ratio(0.75) >= 1.0 + stated[0] - 1e-9
        assert likely.ratio(0.95) >= 1.0 + stated[1] - 1e-9


def test_a_limit_that_can_t_be_exceeded_is_certain() -> None:
    exact = ErrorDistribution(half=0.0, tail=-0.1)
    assert (exact.probability(1.0), exact.probability(0.99), exact.probability(-1.0)) == (1.0, 0.0, 0.0)
    assert ErrorDistribution(half=0.1, tail=-0.1).probability(math.inf) == pytest.approx(1.0)


def test_a_generation_that_nobody_measured_has_the_widest_layers() -> None:
    assert SHIPPED.layers_unmeasured > math.hypot(SHIPPED.layers, SHIPPED.precision) >= SHIPPED.layers > 0.0


def test_a_table_that_lacks_a_name_is_named(tmp_path: Path) -> None:
    table = tmp_path / "prediction_errors.csv"
    table.write_text("name,value,source,as_of\nlayers,0.1,test,2026-11-24\n")
    with pytest.raises(DataError, match=r"prediction_errors\.csv is not a table of errors of predictions"):
        read_error_model(table)


def test_every_number_of_the_shipped_table_has_its_source() -> None:
    text = (Path(__file__).parents[2] / "compute_profiles" / "prediction_errors.csv").read_text()
    for field in dataclasses.fields(SHIPPED):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{field.name},")]
        assert "draft" not in line
        assert line.rsplit(",", 1)[1].startswith("2026-")
