"""The bound of plans with equal pipelines, against every such plan of tiny jobs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import combinations, pairwise, product
from pathlib import Path

import numpy as np
import pytest

from factories.sailor_artifact import LAYERS, write_artifact
from sailor_cloud import api, catalog, network
from sailor_cloud.clock import SystemClock
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.planner.search import Problem, problem_of
from sailor_cloud.planner.space.answer import OPTIMAL_GAP
from sailor_cloud.planner.space.effort import NORMAL, OutOfTimeError
from sailor_cloud.planner.space.goals import Figure
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.planner.uniform import is_uniform, uniform_bound, uniform_drafts
from sailor_cloud.planner.uniform.bound import UniformBound
from sailor_cloud.report.plan.facts import proof
from sailor_cloud.simulator import engine_named
from sailor_cloud.simulator.engines import StagePlace, UniformPipelines
from sailor_cloud.simulator.engines.sailor_artifact import ArtifactFormulas
from sailor_cloud.workload import profiles

JOB = """
name: alike
model: {{preset: sailor-opt-350}}
training: {{global_batch_size: {batch}, sequence_length: 2048, precision: fp32}}
goal: {goal}
resources:
  - {{provider: gcp, zones: [{zones}], markets: [on-demand], accelerators: {{{devices}}}}}
"""
ONE, TWO, APART = "us-central1-a", "us-central1-a, us-central1-b", "us-central1-a, us-west1-b"
THREE = "us-central1-a, us-central1-b, us-west1-b"
# Jobs by zones, devices of each zone, batch and seed of the times.
JOBS = [
    (ONE, {"A100-40": 2}, 4, 0),
    (ONE, {"A100-40": 4}, 6, 1),
    (ONE, {"A100-40": 4}, 4, 2),
    (ONE, {"A100-40": 2, "V100-16": 2}, 4, 3),
    (ONE, {"A100-40": 2, "V100-16": 2}, 8, 4),
    (TWO, {"A100-40": 2}, 8, 5),
    (APART, {"A100-40": 2}, 4, 6),
    (APART, {"V100-16": 2}, 4, 7),
    (THREE, {"A100-40": 2}, 4, 10),
    (THREE, {"A100-40": 2}, 6, 11),
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_artifact(tmp_path_factory.mktemp("artifact") / "data", gpus={"A100-40": 4.0, "V100-16": 1.5})
    cluster = source / "configs" / "basic_cluster_config.json"
    cluster.write_text(cluster.read_text().replace('"gpus_per_node": 4', '"gpus_per_node": 2'))
    out = tmp_path_factory.mktemp("imported") / "out"
    return import_artifact(source, out, precision=Precision.FP32, as_of=date(2026, 1, 2)).folder


def tiny(imported: Path, zones: str, devices: dict[str, int], batch: int, seed: int, goal: str) -> Problem:
    """Return a small job by random times of layers, random links and random memory."""
    named = ", ".join(f"{name}: {number}" for name, number in devices.items())
    problem = problem_of(
        parse_job(JOB.format(batch=batch, goal=goal, zones=zones, devices=named)),
        catalog=catalog.load(pricing=imported / "pricing"),
        network=network.load(profiles=imported / "bandwidth_profiles", pricing=imported / "pricing"),
        profiles=profiles.load(profiles=imported / "compute_profiles"),
        clock=SystemClock(),
        engine=engine_named("sailor-artifact", profiles=imported / "compute_profiles"),
    )
    formulas, random = problem.space.scenario.engine.formulas, np.random.default_rng(seed)
    assert isinstance(formulas, ArtifactFormulas)
    formulas._stage_tables.clear()
    for table in formulas.tables.models["sailor-opt-350"].times.values():
        table *= random.uniform(0.3, 3.0, (1, 1)) * random.uniform(0.7, 1.4, table.shape)
    for name, held in list(formulas.tables.memory_bytes.items()):
        assert isinstance(formulas.tables.memory_bytes, dict)
        formulas.tables.memory_bytes[name] = held * random.uniform(1.0, 2.5)
    for key, (a, b, c) in sorted(formulas.tables.curves.items()):
        share = random.uniform(0.02, 1.0)
        # Some links are slower for larger messages, so that more bytes may take less time.
        assert isinstance(formulas.tables.curves, dict)
        formulas.tables.curves[key] = (a * share * random.choice([1.0, 4.0]), b * share, c * share)
    return problem


def every(space: Space) -> Iterator[tuple[int, tuple[int, ...], list[tuple[StagePlace, ...]]]]:
    """Yield microbatch size, cut and places of plans with equal pipelines that fit, up to three stages."""
    rows = {space.pools[number].row for number in range(len(space.pools))}
    room = Counter({(row.accelerator, row.zone): row.devices for row in (space.candidates.rows[n] for n in rows)})
    pools = {(pool.offer.accelerator): number for number, pool in enumerate(space.pools)}
    zones, most = sorted({zone for _, zone in room}), sum(room.values())
    single = [(name, tp) for name in sorted(pools) for tp in (1, 2)]
    for size, stages in product((1, 2, 4), (1, 2, 3)):
        for kinds in product(single, repeat=stages) if space.batch % size == 0 else ():
            for replicas in range(1, min(most // stages, space.batch // size) + 1):
                layouts = set()
                for chosen in product(zones, repeat=stages * replicas):
                    own = [(kinds[n % stages], zone) for n, zone in enumerate(chosen)]
                    places = [StagePlace(name, zone, tp) for (name, tp), zone in own]
                    used: Counter[tuple[str, str]] = Counter()
                    for place in places:
                        used[place.accelerator, place.zone] += place.tp
                    if used <= room:
                        layouts.add(tuple(tuple(places[n : n + stages]) for n in range(0, len(places), stages)))
                if not layouts:
                    continue
                count = -(-space.batch // (size * replicas))
                # Every third cut of three stages.
                for cut in list(combinations(range(1, LAYERS), stages - 1))[:: 3 if stages == 3 else 1]:
                    whole = (0, *cut, LAYERS)
                    if all(
                        space.stages(Seat(pools[name], tp, 0), size, 2).of(span, min(stages - s, count)) is not None
                        for s, ((name, tp), span) in enumerate(zip(kinds, pairwise(whole), strict=True))
                    ):
                        for layout in sorted(layouts)[:: 1 + len(layouts) // 8]:
                            yield size, whole, list(layout)


def seconds_of(space: Space, size: int, cut: tuple[int, ...], rows: list[tuple[StagePlace, ...]]) -> float:
    """Return the seconds of an iteration of a plan with equal pipelines."""
    formulas, microbatches = space.scenario.engine.formulas, -(-space.batch // (size * len(rows)))
    assert formulas is not None
    pipelines = UniformPipelines(rows=rows, cut=cut, microbatch_size=size, microbatches=microbatches)
    return formulas.iteration(pipelines, space.scenario).seconds


def least_s(space: Space) -> float:
    """Return the least seconds of an iteration of any plan with equal pipelines."""
    return min(seconds_of(space, *plan) for plan in every(space))


@pytest.mark.parametrize(("zones", "devices", "batch", "seed"), JOBS)
def test_no_plan_passes_the_bound_and_a_closed_gap_means_the_best_plan(
    imported: Path, zones: str, devices: dict[str, int], batch: int, seed: int
) -> None:
    problem = tiny(imported, zones, devices, batch, seed, "maximize-throughput")
    drafts = [
        draft for draft in uniform_drafts(problem.space, problem.target, NORMAL) if is_uniform(problem.space, draft)
    ]
    shown, least = drafts[0].foreseen[Figure.ITERATION_S], least_s(problem.space)
    first, bound = (uniform_bound(problem.space, problem.target, shown, branched=prove) for prove in (False, True))
    assert first is not None
    assert bound is not None
    assert first <= bound * (1.0 + 1e-4)
    assert bound <= min(least, shown)
    if shown - bound <= OPTIMAL_GAP * shown:
        assert shown <= least * (1.0 + 1.001 * OPTIMAL_GAP)
    else:
        assert zones != ONE


@pytest.mark.parametrize(("zones", "devices", "batch", "seed"), [job for job in JOBS if "west" in job[0]])
def test_no_plan_passes_the_bound_of_its_regions(
    imported: Path, zones: str, devices: dict[str, int], batch: int, seed: int
) -> None:
    problem = tiny(imported, zones, devices, batch, seed, "maximize-throughput")
    search, region_of = UniformBound(problem.space, problem.target, NORMAL), problem.space.scenario.catalog.region_of
    search.best = 1e9
    _, *alone, spread, crossing = search.views()
    bounds = {view: {(box.size, box.replicas): value for box, value in search._roots(view)} for view in search.views()}
    seen = set()
    for size, cut, rows in every(problem.space):
        regions = {tuple(region_of(place.zone) for place in row) for row in rows}
        if any(len(set(row)) > 1 for row in regions):
            view = crossing
        elif len(regions) > 1:
            view = spread
        else:
            view = next(each for each in alone if rows[0][0].zone in each.zones)
        seen.add(view)
        assert bounds[view][size, len(rows)] <= seconds_of(problem.space, size, cut, rows) * (1.0 + 1e-5)
    assert len(seen) == 4


def test_the_least_money_is_bounded_too(imported: Path) -> None:
    problem = tiny(imported, ONE, {"A100-40": 2, "V100-16": 2}, 2, 8, "minimize-cost")
    best, *others = uniform_drafts(problem.space, problem.target, NORMAL)
    bound = uniform_bound(problem.space, problem.target, best.foreseen[Figure.USD_PER_ITERATION], branched=True)
    assert bound is not None
    assert 0.0 < bound <= min(draft.foreseen[Figure.USD_PER_ITERATION] for draft in (best, *others))


def test_without_time_there_is_no_bound(imported: Path) -> None:
    problem = tiny(imported, ONE, {"A100-40": 2}, 4, 9, "maximize-throughput")
    deadline = problem.space.known.deadline
    deadline.now_s, deadline.at_s = (lambda: 1.0), 0.5
    with pytest.raises(OutOfTimeError):
        deadline.check()
    assert uniform_bound(problem.space, problem.target, math.inf, branched=True) is None


def planned(imported: Path, *, prove: bool) -> PlanDocument:
    devices = "A100-40: 2, V100-16: 2"
    return api.plan(
        parse_job(JOB.format(batch=4, goal="maximize-throughput", zones=ONE, devices=devices)),
        engine="sailor-artifact",
        profiles=imported / "compute_profiles",
        network=imported / "bandwidth_profiles",
        pricing=imported / "pricing",
        prove=prove,
    )


def test_a_document_has_the_bound_and_names_the_plans_that_it_holds_for(imported: Path) -> None:
    first, proven = planned(imported, prove=False), planned(imported, prove=True)
    for document in (first, proven):
        assert document.bound is not None
        assert document.objective is not None
        assert document.objective.value <= document.bound
        assert document.gap_parts == ()
        assert "with equal pipelines" in proof(document)
    assert proven.bound is not None
    assert first.bound is not None
    assert proven.bound <= first.bound * (1.0 + 1e-4)
    assert proven.status is Status.OPTIMAL
    assert proof(proven).startswith("optimal: proven best with equal pipelines; searched")
