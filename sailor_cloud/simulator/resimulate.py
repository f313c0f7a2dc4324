"""Simulates the plan of a document again, with the document's own offers, on whatever data is at hand now."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.shown import Rows
from sailor_cloud.network import Network
from sailor_cloud.simulator.engines import engine_named
from sailor_cloud.simulator.evaluate import Evaluation, evaluate
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.workload import ComputeProfiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The evaluation of a plan, and the document that it came from with prediction, cost and inputs renewed."""

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
    imported: Path | None = None,
    reprice: bool = False,
    timeline: bool = False,
) -> Simulation:
    """Evaluate a document's plan.

    `engine` takes the place of the document's; `imported` is the folder of profiles that engine sailor-artifact judges
    by. `reprice` takes the price of every offer that the catalog also has from there. Raises RequestError for a
    document without a plan and for a plan that is wrong.
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
        engine=engine_named(engine or document.engine, profiles=imported),
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
