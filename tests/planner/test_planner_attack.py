"""Plans against an independent local search: benchmarks/planner/attack.py, with few jobs and little time."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "planner"))

from attack import BEATEN, attacks, random_jobs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_independent_local_search_beats_at_most_one_of_five_plans():
    found = list(islice(attacks(random_jobs(seed=1), seconds=20.0), 5))
    beaten = [outcome.row for outcome in found if outcome.beaten > BEATEN]
    assert len(found) == 5
    assert len(beaten) <= 1, "\n".join(beaten)
