"""Large problems: good plans that keep every limit, with an honest bound."""

from __future__ import annotations

from collections import Counter

import pytest

from factories.planning import example, make_space, plan, tiny_job
from sailor_cloud.model.document import Status
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement.choice import best_that_holds
from sailor_cloud.planner.seeds.mixed import mix
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.simulator import evaluate


def large(**changes):
    """The example in one ZeRO stage: a search goes through every stage on its own."""
    return example("gcp-a100-v100.yaml", training__max_zero_stage=0, **changes)


@pytest.fixture(scope="module")
def document():
    return plan(large())


def test_the_example_has_a_plan_within_budget_and_deadline(document):
    assert document.status is Status.FEASIBLE
    assert document.cost.total_usd <= 120
    assert document.prediction.duration_s <= 24 * 3600
    document.plan.check(layers=26, global_batch_size=1024)


def test_no_zone_is_overcommitted(document):
    offers = {offer.id: offer for offer in document.inputs.offers}
    bought = Counter()
    for node in document.plan.nodes:
        bought[offers[node.offer].zone, offers[node.offer].accelerator] += node.devices
    limits = {"A100-40": 8, "V100-16": 32}
    assert bought
    assert all(count <= limits[accelerator] for (_, accelerator), count in bought.items())


def test_the_bound_is_on_the_far_side_of_the_value_and_the_gap_between_them(document):
    assert document.bound >= document.objective.value
    assert document.optimality_gap == pytest.approx(1 - document.objective.value / document.bound)


def test_the_search_s_figure_is_the_simulator_s(document):
    assert document.objective.value == pytest.approx(1 / document.prediction.iteration_s_replay, rel=1e-9)


def test_every_device_fits_in_memory(document):
    assert all(stage.total_bytes <= stage.limit_bytes for stage in document.prediction.memory)


def test_every_draft_is_what_the_simulator_says():
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 8, "V100-16": 8})
    space = make_space(job)
    from sailor_cloud.planner.space.draft import to_plan

    answer = mix(space, target_of(job), keep=4)
    assert answer.drafts
    for draft in answer.drafts:
        evaluation = evaluate(to_plan(space, draft), space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s == pytest.approx(draft.figures["iteration_s"], rel=1e-9)
        assert answer.bound <= evaluation.prediction.iteration_s_replay


@pytest.mark.parametrize("goal", ["maximize-throughput", "minimize-cost"])
@pytest.mark.parametrize("accelerators", [{"CPU-fast": 1}, {"CPU-fast": 1, "CPU-slow": 1}, {"CPU-slow": 2}])
def test_the_bound_holds_for_the_exhausted_optimum_of_small_problems(goal, accelerators):
    job = tiny_job(blocks=3, batch=4, hidden=64, accelerators=accelerators, goal=goal)
    space, target = make_space(job), target_of(job)
    exact = exhaust(space, target, small_layouts(space), keep=1).drafts[0].figures[target.goal]
    answer = mix(space, target, keep=1)
    assert answer.bound <= exact * (1 + 1e-9)
    chosen = best_that_holds(space, target, answer.drafts)
    assert replayed(chosen.draft, chosen.evaluation)[target.goal] >= exact * (1 - 1e-9)


def test_a_number_of_nodes_is_kept():
    job = example("gcp-a100-v100.yaml", constraints__max_nodes=3, resources__0__accelerators={"A100-40": 16})
    document = plan(job)
    assert 1 <= len(document.plan.nodes) <= 3


@pytest.mark.slow
def test_a_larger_budget_gives_a_faster_plan_and_a_tight_one_avoids_egress(document):
    poor, rich = (plan(large(constraints__budget_usd=budget)) for budget in (70, 900))
    documents = [poor, document, rich]
    reached = [document.prediction.throughput_iterations_per_s for document in documents]
    assert reached[0] < reached[1] < reached[2]
    assert all(document.cost.total_usd <= budget for document, budget in zip(documents, (70, 120, 900), strict=True))
    assert len({offer.zone for offer in documents[0].inputs.offers}) == 1


@pytest.mark.slow
def test_the_smallest_budget_that_is_named_is_enough():
    few = {"resources__0__accelerators": {"A100-40": 8}, "resources__0__zones": ["us-central1-a"]}
    short = plan(large(constraints__budget_usd=20, **few))
    assert short.status is Status.INFEASIBLE
    assert short.infeasibility.constraint == "budget_usd"
    enough = plan(large(constraints__budget_usd=short.infeasibility.needed, **few))
    assert enough.status is Status.FEASIBLE
    assert enough.cost.total_usd <= short.infeasibility.needed
