"""Kills at random moments: each ends in a correct continuation or a clear stop. `make chaos` does many more."""

from __future__ import annotations

import pytest

from factories.kills import TOLERANCE, Harm, harms_of, storm

KILLS = 5

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_storm_leaves_neither_orphans_nor_wrong_weights(seed, tmp_path):
    told: list[str] = []
    with storm(seed, tmp_path, KILLS, told.append) as one:
        outcome = one.run()
    assert outcome.generations == KILLS + 1
    assert outcome.difference <= TOLERANCE
    assert len(told) == outcome.generations


def test_the_storms_of_ci_do_every_harm_once():
    assert sorted([*harms_of(0, KILLS), *harms_of(1, KILLS)]) == sorted(Harm)
