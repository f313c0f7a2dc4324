"""Plans over capacity that begins later, ends, or is paid for whole."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from factories.documents import document as any_document
from factories.planning import AS_OF, example, plan
from factories.reserved import gcp_entry
from sailor_cloud.catalog.capacity import groups
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.document import Infeasibility, PlanDocument, Status
from sailor_cloud.model.job import Job
from sailor_cloud.planner.space.answer import share_above
from sailor_cloud.planner.space.capacity import over_capacity
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.search_options import SearchOptions

HOUR = 3600.0


def planned(
    *capacity: Capacity, markets: tuple[str, ...] = ("on-demand", "flex-start"), **changes: object
) -> PlanDocument:
    return plan(small_job(*capacity, markets=markets, **changes))


def small_job(*capacity: Capacity, markets: tuple[str, ...] = ("on-demand", "flex-start"), **changes: object) -> Job:
    """A small job on up to two A100 nodes of one device in us-central1-a."""
    job = example(
        "gcp-a100-v100.yaml",
        resources=[
            {
                "provider": "gcp",
                "zones": ["us-central1-a"],
                "markets": list(markets),
                "accelerators": {"A100-40": 2},
                "instance_types": ["a2-highgpu-1g"],
            }
        ],
        **{
            "constraints": {"deadline": "200h"},
            "training__steps": 2000,
            "training__global_batch_size": 16,
            "goal": "minimize-cost",
            **changes,
        },
    )
    return job.model_copy(update={"cloud": job.cloud.model_copy(update={"capacity": capacity})})


def markets_of(document: PlanDocument) -> set[str]:
    assert document.plan is not None
    offers = document.inputs.offers_by_id()
    return {offers[node.offer].market.value for node in document.plan.nodes}


def flex(name: str = "flex", **changes: object) -> Capacity:
    return gcp_entry(name, "flex-start", usd_per_hour=1.0, as_of="2026-11-20", **changes)


def seconds(document: PlanDocument) -> float:
    assert document.prediction is not None
    assert document.prediction.duration_s is not None
    return document.prediction.duration_s


def test_the_least_money_waits_and_the_least_time_does_not() -> None:
    cheap = planned(flex(wait="5h"))
    assert markets_of(cheap) == {"flex-start"}
    soon = planned(flex(wait="5h"), goal="minimize-time")
    assert markets_of(soon) == {"on-demand"}
    assert seconds(cheap) > 5 * HOUR > seconds(soon)
    assert cheap.ttl_s is not None


def test_a_deadline_before_which_the_capacity_begins_too_late_leaves_it_out_and_says_so() -> None:
    document = planned(flex(wait="9h"), constraints={"deadline": "9h"})
    assert markets_of(document) == {"on-demand"}
    (row,) = [row for row in document.rejected if row.what == "flex-start flex"]
    assert row.why == "is in no plan as good as the chosen one"


def test_capacity_that_ends_before_the_run_could_is_the_reason_where_there_is_nothing_else() -> None:
    document = planned(flex(max_duration="10m"), markets=("flex-start",))
    assert document.status is Status.INFEASIBLE
    assert document.infeasibility is not None
    assert "flex-start flex: is there now and ends in 10 min, before the run could" in document.infeasibility.message


def test_nodes_end_with_their_capacity() -> None:
    held = gcp_entry("held", "reservation", id="mine", usd_per_hour=0.5, as_of="2026-11-20")
    assert markets_of(planned(held, markets=("on-demand", "reservation"))) == {"reservation"}
    timed = held.model_copy(update={"starts_at": AS_OF, "ends_at": AS_OF + timedelta(days=30)})
    document = planned(timed, markets=("on-demand", "reservation"), constraints={"deadline": None})
    assert document.ttl_s == pytest.approx(30 * 24 * HOUR, abs=60)


def test_more_nodes_than_the_capacity_has_are_never_planned() -> None:
    document = planned(flex(nodes=1), markets=("flex-start",))
    assert document.plan is not None
    assert len(document.plan.nodes) == 1


def test_committed_capacity_is_paid_however_little_is_used() -> None:
    short = planned(flex(wait="1h"), markets=("flex-start",))
    long = planned(flex(wait="1h", min_duration="40h"), markets=("flex-start",))
    assert short.cost is not None
    assert long.cost is not None
    assert short.cost.total_usd < long.cost.total_usd
    assert any(line.unit == "reserved hour" for line in long.cost.lines)


def test_capacity_is_planned_with_together_while_all_of_it_is_there() -> None:
    def held(name: str, start: int, end: int | None) -> Capacity:
        ends = {} if end is None else {"ends_at": AS_OF + timedelta(hours=end)}
        return gcp_entry(name, "reservation", id="mine", starts_at=AS_OF + timedelta(hours=start), **ends)

    bought = gcp_entry("bought", "reservation")
    entries = held("long", -9, 20), held("short", -1, 10), held("late", 5, 20), held("always", -9, None), bought
    found = groups(small_job(*entries, markets=("on-demand", "reservation")), AS_OF)
    assert [[entry.name for entry in group] for group in found] == [
        ["always", "bought"],
        ["long", "short", "always", "bought"],
        ["long", "always", "bought"],
        ["long", "late", "always"],
    ]


def over(job: Job, *, late: str = "", why: Infeasibility | None = None) -> PlanDocument:
    """The answer over searches that find one plan, nothing in time with the entry `late`, or no plan for a reason."""

    def search(part: Job, asked: SearchOptions) -> PlanDocument:
        if any(entry.name == late for entry in part.cloud.reserved):
            raise OutOfTimeError
        found = replace(any_document(), job=part, constraints=part.constraints, as_of=AS_OF)
        return found if why is None else replace(found, plan=None, cost=None, infeasibility=why)

    return over_capacity(job, SearchOptions(time_limit_s=10.0), AS_OF, search)


def ended() -> Capacity:
    times = {"starts_at": AS_OF - timedelta(days=9), "ends_at": AS_OF - timedelta(days=2)}
    return gcp_entry("gone", "reservation", id="mine", usd_per_hour=0.5, as_of="2026-11-20", **times)


def test_a_plan_names_the_job_as_it_was_given_though_some_of_its_capacity_has_ended() -> None:
    job = small_job(ended(), markets=("on-demand", "reservation"))
    assert over(job).job == job


def test_a_search_that_runs_out_of_its_share_of_the_time_leaves_the_plans_of_the_others() -> None:
    job = small_job(flex(wait="5h"))
    found = over(job, late="flex")
    assert found.plan is not None
    assert (found.bound, found.status) == (None, Status.FEASIBLE)
    assert found.rejected[-1].why == "no plan with it was found in its share of the time limit"
    why = Infeasibility(constraint="deadline", limit=1.0, needed=2.0, unit="s", message="takes longer")
    with pytest.raises(OutOfTimeError):
        over(job, late="flex", why=why)


def test_capacity_without_a_plan_says_what_keeps_it_from_one() -> None:
    why = Infeasibility(constraint="budget_usd", limit=1.0, needed=2.0, unit="USD", message="costs 2 USD")
    assert over(small_job(flex(wait="5h", max_duration="9h")), why=why).rejected[-1].why == "costs 2 USD"
    why = replace(why, constraint="deadline", message="takes 3 days")
    assert over(small_job(flex(wait="5h", max_duration="9h")), why=why).rejected[-1].why.startswith("begins in 5 h")


def test_a_value_of_zero_is_not_above_a_bound_of_zero() -> None:
    assert share_above(0.0, 0.0) == 0.0
    assert share_above(4.0, 3.0) == 0.25
