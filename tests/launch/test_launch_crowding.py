from __future__ import annotations

from factories.documents import document
from sailor_cloud.launch.crowding import crowding_note


def test_more_ranks_than_cores_are_announced_with_the_factor() -> None:
    note = crowding_note(document(), cores=1)
    assert note is not None
    assert note.startswith("2 ranks share the 1 cores of this machine")
    assert "2.0 times the planned length and more" in note


def test_a_core_for_each_rank_needs_no_note() -> None:
    assert crowding_note(document(), cores=2) is None
