"""What it takes to bring the state of a run to other nodes counts when a run decides how to continue."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from factories.quick_search import PRICE, QuickSearch, job
from sailor_cloud.launch.replanning.replan import Situation, decide, growth
from sailor_cloud.launch.replanning.search import CatalogSearch
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job


@dataclass(frozen=True, slots=True)
class Moving:
    """The quick search, with state that takes some time and money to move."""

    seconds: float
    usd: float
    one: QuickSearch = field(default_factory=QuickSearch)

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        return self.one(wanted)

    def offers(self, wanted: Job) -> tuple[object, ...]:
        return self.one.offers(wanted)

    def update_link_speeds(self, rates: object) -> None:
        """Take no notice."""

    def predict(self, known: PlanDocument) -> PlanDocument:
        return known

    def migration_cost(self, known: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return self.seconds, self.usd


def situation(*, kept: int) -> Situation:
    small = job().model_copy(
        update={"resources": tuple(e.model_copy(update={"accelerators": {"A100-40": 1}}) for e in job().resources)}
    )
    document = QuickSearch()(small)
    assert document.plan is not None
    return Situation(
        job=job(),
        document=document,
        survivors=document.plan.nodes[:kept],
        blocked={},
        used_names=frozenset(node.id for node in document.plan.nodes),
        remaining=Remaining(steps=1000, usd=None, seconds=None),
        offers={offer.id: offer for offer in QuickSearch().offers(job())},
    )


def test_moving_the_state_is_part_of_every_option():
    free, dear = (decide(situation(kept=1), Moving(*cost)).option for cost in ((0.0, 0.0), (500.0, 3.0)))
    assert free is not None
    assert dear is not None
    assert dear.label == free.label
    assert dear.seconds == pytest.approx(free.seconds + 500.0)
    # The nodes are paid for meanwhile, too.
    rate = sum(PRICE[node.offer.rpartition("/")[2]] for node in dear.document.plan.nodes)
    assert dear.usd == pytest.approx(free.usd + 3.0 + rate * 500.0 / 3600.0)


def test_a_run_does_not_grow_where_moving_takes_longer_than_what_is_gained():
    assert growth(situation(kept=2), Moving(0.0, 0.0), least_gain_s=60.0, label="grow") is not None
    assert growth(situation(kept=2), Moving(50_000.0, 0.0), least_gain_s=60.0, label="grow") is None


def test_the_catalog_search_returns_what_the_planner_says():
    from factories.planning import AS_OF, data, example, plan
    from sailor_cloud import workload
    from sailor_cloud.clock import FixedClock
    from sailor_cloud.planner.evaluate.migration import migration_cost
    from sailor_cloud.simulator import Scenario

    chosen = plan(example("quickstart.yaml"))
    search = CatalogSearch(workload.decoder(chosen.job.model, base=None), FixedClock(AS_OF))
    prices, links, times = data()
    scenario = Scenario(
        job=chosen.job,
        decoder=workload.decoder(chosen.job.model, base=None),
        offers={offer.id: offer for offer in chosen.inputs.offers},
        catalog=prices,
        network=links,
        profiles=times,
        as_of=AS_OF,
    )
    expected = migration_cost(chosen.plan, scenario, store_zone=None)
    assert expected.nbytes > 0
    assert search.migration_cost(chosen, chosen) == (expected.seconds, expected.usd) == (0.0, 0.0)
