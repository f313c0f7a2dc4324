"""From a job to its document."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from factories.planning import AS_OF, data, example, make_space, plan, planned_again, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Ground, PlanDocument, Status
from sailor_cloud.planner.search import search
from sailor_cloud.planner.space.goals import limit_text
from sailor_cloud.planner.space.search_options import SearchOptions
from sailor_cloud.simulator.lifetime import DEADLINE_GRACE_S, LATE, SHARE_OF_BUDGET

# Twenty times as fast to plan as two zones, where zones make no difference.
ONE_ZONE = {"zones": ("local-a",)}
FEW = {"resources__0__zones": ["us-central1-a"], "resources__0__accelerators": {"A100-40": 4, "V100-16": 4}}


@pytest.fixture(scope="module")
def quickstart() -> PlanDocument:
    return plan(example("quickstart.yaml"))


def accelerators(document: PlanDocument) -> Counter[str]:
    offers = {offer.id: offer for offer in document.inputs.offers}
    return Counter(offers[node.offer].accelerator for node in document.plan.nodes)


def test_one_fast_device_and_two_slow_ones_give_a_heterogeneous_plan(quickstart):
    assert quickstart.status is Status.OPTIMAL
    assert quickstart.optimality_gap == 0.0
    assert accelerators(quickstart) == {"CPU-fast": 1, "CPU-slow": 2}


def test_four_fast_devices_give_a_homogeneous_plan():
    few = {"resources__0__zones": ["local-a"], "resources__0__accelerators": {"CPU-fast": 4, "CPU-slow": 1}}
    job = example("quickstart.yaml", **few)
    assert accelerators(plan(job)) == {"CPU-fast": 4}


def test_a_zone_alone_gives_no_faster_plan_than_all_of_them():
    """The best plan stands in one zone; moves to the others must not take the time of those inside it."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "gpt-neo-2.7b"},
        training={"global_batch_size": 1000, "sequence_length": 2048, "precision": "fp16", "steps": 1000},
        constraints={"budget_usd": 600},
        resources=[
            {"provider": "gcp", "zones": ["us-central1-b", "us-central1-c"], "accelerators": {"L4-24": 8}},
            {
                "provider": "aws",
                "zones": ["use1-az4"],
                "markets": ["on-demand"],
                "accelerators": {"A100-40": 16, "A10G-24": 8, "T4-16": 32},
            },
        ],
    )
    alone = job.model_copy(update={"resources": job.resources[1:]})
    everywhere, there = (plan(each).prediction.iteration_s_replay for each in (job, alone))
    assert everywhere <= 1.002 * there


def test_the_same_job_gives_the_same_plan_byte_for_byte(quickstart):
    assert planned_again(example("quickstart.yaml")).to_json() == quickstart.to_json()


@pytest.mark.parametrize(
    ("name", "changes", "pattern"),
    [
        ("quickstart.yaml", {}, r"([\d.]+) s per iteration"),
        ("gcp-a100-v100.yaml", FEW, r"([\d.]+) s per iteration"),
        ("gcp-a100-v100.yaml", {**FEW, "goal": "minimize-cost"}, r"([\d.]+) USD"),
    ],
)
def test_a_caller_hears_of_ever_better_plans(name, changes, pattern):
    job, heard = example(name, **changes), []
    prices, links, times = data()
    known = {"catalog": prices, "network": links, "profiles": times, "clock": FixedClock(AS_OF)}
    found = search(job, **known, options=SearchOptions(decide=True, improved=heard.append))
    figures = [float(re.fullmatch(pattern, text)[1]) for text in heard]
    assert figures == sorted(set(figures), reverse=True)
    shown = found.cost.total_usd if "goal" in changes else found.prediction.iteration_s_replay
    assert figures[-1] == pytest.approx(shown, rel=0.05)
    # Watching does not change the plan.
    assert found.plan == search(job, **known, options=SearchOptions(decide=True)).plan


def test_the_plan_is_valid_and_survives_the_file(quickstart):
    quickstart.plan.check(layers=8, global_batch_size=24)
    assert PlanDocument.from_json(quickstart.to_json()) == quickstart


def test_nodes_live_until_the_deadline_and_its_grace():
    assert plan(example("quickstart.yaml", constraints__budget_usd=10)).ttl_s == 600 + DEADLINE_GRACE_S


def test_without_a_deadline_nodes_live_as_long_as_the_budget_lasts():
    document = plan(tiny_job(**ONE_ZONE, constraints={"budget_usd": 0.05}))
    cost, planned_s = document.cost, document.prediction.duration_s
    left_usd = SHARE_OF_BUDGET * 0.05 - cost.total_usd
    lasts_s = planned_s + left_usd / cost.usd_per_hour * 3600
    at_worst_s = 0.05 / cost.worst_case_usd_per_hour * 3600
    assert document.ttl_s == pytest.approx(min(lasts_s, max(at_worst_s, LATE * planned_s)))
    assert planned_s < document.ttl_s


def test_with_neither_budget_nor_deadline_nothing_ends_the_nodes():
    assert plan(tiny_job(**ONE_ZONE)).ttl_s is None


@pytest.mark.parametrize(
    ("constraint", "limit", "path"),
    [
        ("budget_usd", 1e-6, "USD"),
        ("deadline", 17.001, "s"),
        ("max_usd_per_hour", 1e-4, "USD/h"),
        ("min_throughput", 1e6, "iterations/s"),
        ("max_usd_per_iteration", 1e-12, "USD/iteration"),
    ],
)
def test_an_infeasible_job_names_its_constraint_and_what_would_do(constraint, limit, path):
    document = plan(tiny_job(**ONE_ZONE, blocks=2, constraints={constraint: limit}))
    assert document.status is Status.INFEASIBLE
    assert document.plan is None
    assert document.infeasibility.constraint == constraint
    assert document.infeasibility.unit == path
    shown = limit_text(constraint, limit)
    assert f"{constraint} {shown} can't be met" in document.infeasibility.message

    enough = plan(tiny_job(**ONE_ZONE, blocks=2, constraints={constraint: document.infeasibility.needed}))
    assert enough.status is Status.OPTIMAL


def test_the_least_number_of_nodes_is_named():
    job = tiny_job(blocks=6, hidden=512, constraints={"max_nodes": 1})
    document = plan(job)
    assert document.infeasibility.constraint == "max_nodes"
    needed = document.infeasibility.needed
    assert needed > 1
    assert plan(tiny_job(blocks=6, hidden=512, constraints={"max_nodes": int(needed)})).plan is not None


def test_a_model_that_fits_nowhere_is_infeasible_for_memory():
    document = plan(tiny_job(blocks=2, hidden=2048))
    assert document.infeasibility.constraint == "memory"
    assert "does not fit in memory: " in document.infeasibility.message


def test_two_constraints_that_exclude_each_other_are_both_named():
    job = tiny_job(**ONE_ZONE, constraints={"min_throughput": 1e6, "budget_usd": 1e-7})
    message = plan(job).infeasibility.message
    assert "min_throughput" in message
    assert "budget_usd" in message


def test_an_accelerator_without_the_precision_is_rejected_with_the_reason():
    job = example("gcp-a100-v100.yaml", training__precision="bf16", resources__0__accelerators={"V100-16": 4})
    document = plan(job)
    assert document.infeasibility.constraint == "resources"
    (row,) = document.rejected
    assert (row.what, row.why, row.ground) == ("V100-16", "has no bf16; it runs fp32, fp16", Ground.PRECISION)


def test_an_instance_larger_than_the_limit_is_rejected():
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 2})
    space = make_space(job)
    assert {pool.devices for pool in space.pools} == {1, 2}
    told = {(row.subject, row.zone, row.market, row.why, row.ground) for row in space.candidates.rejected}
    why = "carries 8 devices, the job allows 2 per zone"
    assert ("a2-highgpu-8g (8 A100-40)", "us-central1-a", "spot", why, Ground.QUOTA) in told
