"""Simulates the plan of a document again, with the document's own offers, on the present data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import PlanDocument, Search, Status
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.shown import Rows
from sailor_cloud.network import Network
from sailor_cloud.simulator.engines import engine_named
from sailor_cloud.simulator.evaluate import Evaluation, evaluate
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.workload import ComputeProfiles

# Sums of the same terms in another order differ by less than this, relatively.
_TIE = 1e-9


def broken_limits(document: PlanDocument) -> Iterator[str]:
    """Say which limits a plan breaks under the replay, each with both figures; of money if it is known."""
    plan, prediction, cost, limits = document.plan, document.prediction, document.cost, document.constraints
    if plan is None or prediction is None:
        return
    for what, needed, limit, unit in (
        ("costs", cost.total_usd if cost else None, limits.budget_usd, "USD"),
        ("costs", cost.usd_per_hour if cost else None, limits.max_usd_per_hour, "USD/h"),
        ("costs", cost.usd_per_iteration if cost else None, limits.max_usd_per_iteration, "USD/iteration"),
        ("takes", prediction.duration_s, limits.deadline, "s"),
        ("has", float(len(plan.nodes)), limits.max_nodes, "nodes"),
    ):
        if needed is not None and limit is not None and needed > limit * (1 + _TIE):
            yield f"{what} {needed:,.6g} {unit}, the job allows {limit:,.6g}"
    within, wanted = document.totals.within_limits if document.totals else None, limits.probability
    if within is not None and wanted is not None and within < wanted * (1 - _TIE):
        yield f"ends within budget, deadline and TTL with a probability of {within:.3g}, the job asks for {wanted:.3g}"
    least, reached = limits.min_throughput, prediction.throughput_iterations_per_s
    if least is not None and reached < least * (1 - _TIE):
        yield f"reaches {reached:.4g} iterations/s, the job asks for {least:.4g}"


def without_search_results(document: PlanDocument) -> PlanDocument:
    """Return a document without results that only a search can have: the plan's quality, and other plans.

    They can't be verified without the search, and they refer to other figures than those computed here.
    """
    return dataclasses.replace(
        document,
        status=Status.GIVEN,
        objective=None,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=0.0),
        alternatives=Rows(),
        rejected=(),
        frontier=Rows(),
        gap_parts=(),
        decision=None,
        anchor=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The evaluation of a plan, and its document with new prediction, cost and inputs."""

    document: PlanDocument
    evaluation: Evaluation


def simulate_document(
    document: PlanDocument,
    *,
    catalog: Catalog,
    network: Network,
    profiles: ComputeProfiles,
    decoder: Decoder,
    as_of: datetime,
    engine: str | None = None,
    reprice: bool = False,
    timeline: bool = False,
) -> Simulation:
    """Return the evaluation of a document's plan.

    `engine` replaces the document's. `reprice` uses the catalog's price of every offer that it has. Raises RequestError
    for a document without a plan and for a wrong plan.
    """
    if document.plan is None:
        raise RequestError(f"the document is {document.status} and holds no plan; simulate needs one")
    offers = document.inputs.offers_by_id()
    if reprice:
        offers = {offer_id: _current(offer, catalog) for offer_id, offer in offers.items()}
    scenario = Scenario(
        job=document.job,
        decoder=decoder,
        offers=offers,
        catalog=catalog,
        network=network,
        profiles=dataclasses.replace(profiles, machine=document.inputs.machine),
        as_of=as_of,
        engine=engine_named(engine or document.engine),
        unpriced={hardware.id: hardware for hardware in document.inputs.unpriced},
    )
    evaluation = evaluate(document.plan, scenario, timeline=timeline)
    inputs = dataclasses.replace(
        document.inputs,
        offers=Rows(offers[offer_id] for offer_id in sorted(offers)),
        links=evaluation.links,
        compute_profiles=evaluation.profiles,
        corrections=evaluation.corrections,
    )
    renewed = dataclasses.replace(
        document,
        as_of=as_of,
        inputs=inputs,
        prediction=evaluation.prediction,
        cost=evaluation.bill,
        engine=scenario.engine.name,
        totals=evaluation.totals,
    )
    return Simulation(document=renewed, evaluation=evaluation)


def _current(offer: Offer, catalog: Catalog) -> Offer:
    found = catalog.offers(
        provider=offer.provider,
        zones=[offer.zone],
        accelerators=[offer.accelerator],
        markets=[offer.market],
        instance_types=[offer.instance_type],
    )
    return next((candidate for candidate in found if candidate.id == offer.id), offer)
