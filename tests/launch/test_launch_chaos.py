from __future__ import annotations

from pathlib import Path

import pytest

from factories.chaos import Storm


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_storm_violates_no_invariant(seed: int, tmp_path: Path) -> None:
    storm = Storm(seed, tmp_path)
    storm.run()
    assert storm.problems() == []
