"""Plans over capacity that begins later, ends, or is paid for whole."""

from __future__ import annotations

import pytest

from factories.planning import AS_OF, example, plan
from factories.reserved import gcp_entry
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.document import PlanDocument, Status

HOUR = 3600.0


def planned(
    *capacity: Capacity, markets: tuple[str, ...] = ("on-demand", "flex-start"), **changes: object
) -> PlanDocument:
    """The plan of a small job on up to two A100 nodes of one device in us-central1-a."""
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
    return plan(job.model_copy(update={"cloud": job.cloud.model_copy(update={"capacity": capacity})}))


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
    assert "flex-start flex is there now and ends in 10 min, before the run could" in document.infeasibility.message


def test_nodes_end_with_their_capacity() -> None:
    end = AS_OF
    held = gcp_entry("held", "reservation", id="mine", usd_per_hour=0.5, as_of="2026-11-20")
    assert markets_of(planned(held, markets=("on-demand", "reservation"))) == {"reservation"}
    timed = held.model_copy(update={"starts_at": end, "ends_at": end.replace(year=end.year + 1)})
    document = planned(timed, markets=("on-demand", "reservation"), constraints={"deadline": None})
    assert document.ttl_s == pytest.approx(365 * 24 * HOUR - 0.5 * HOUR, abs=HOUR)


def test_more_nodes_than_the_capacity_has_are_never_planned() -> None:
    document = planned(flex(nodes=1), markets=("flex-start",))
    assert document.plan is not None
    assert len(document.plan.nodes) == 1


def test_what_is_committed_is_paid_however_little_of_it_is_used() -> None:
    short, long = planned(flex(wait="1h")), planned(flex(wait="1h", min_duration="40h"))
    assert short.cost is not None
    assert long.cost is not None
    assert short.cost.total_usd < long.cost.total_usd
    if markets_of(long) == {"flex-start"}:
        assert any(line.unit == "reserved hour" for line in long.cost.lines)
