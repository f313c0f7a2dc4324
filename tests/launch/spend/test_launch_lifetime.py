from __future__ import annotations

from dataclasses import replace

import pytest

from factories.documents import document
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.spend.lifetime import life_s
from sailor_cloud.model.job import Constraints


def test_a_plan_never_outlives_its_own_ttl() -> None:
    assert life_s(replace(document(), ttl_s=15.0)) == 15.0


def test_a_plan_written_elsewhere_never_outlives_its_budget() -> None:
    # 0.30 USD an hour on a budget of 0.03 USD: six minutes, less the twentieth that is kept back.
    poor = replace(document(), ttl_s=36000.0, constraints=Constraints(budget_usd=0.03))
    assert life_s(poor) == pytest.approx(0.95 * 360.0)


def test_a_run_that_nothing_would_end_is_refused() -> None:
    with pytest.raises(RequestError, match="neither a budget nor a deadline"):
        life_s(replace(document(), ttl_s=None, constraints=Constraints()))
