"""What stages of a space compute again to fit."""

from __future__ import annotations

from factories.planning import example, make_space
from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.space.space import Seat


def test_a_stage_computes_again_no_more_than_it_must_to_fit() -> None:
    space = make_space(example("gcp-a100-v100.yaml"))
    pool = next(number for number, each in enumerate(space.pools) if each.accelerator.name == "V100-16")
    met = set()
    for size in (2, 8):
        stages = space.stages(Seat(pool, 1, 0), size, 2)
        tables = {kind: space.table(pool, 1, size, recompute=kind) for kind in Recompute}
        for span in [(0, 26), (0, 13), (13, 26), *((first, first + 5) for first in range(1, 20))]:
            for held in (1, 2, 4, 8):
                used = {kind: each.memory_bytes(*span, in_flight=held, replicas=2) for kind, each in tables.items()}
                kind = next((each for each in Recompute if used[each] <= tables[each].limit_bytes), None)
                seconds = float("inf") if kind is None else float(tables[kind].compute_s(*span))
                assert stages.of(span, held) == (None if kind is None else (kind, seconds))
                assert stages.seconds(held)[span] == seconds
                met.add(kind)
    assert met == {None, *Recompute}
