"""Turns the made-up plans of tests into ones that `up --plan` believes: offers of the catalog, figures computed."""

from __future__ import annotations

from dataclasses import replace

from sailor_cloud import catalog, network, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import SystemClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Constraints, Resource
from sailor_cloud.model.offer import Offer
from sailor_cloud.simulator.lifetime import ttl_s
from sailor_cloud.simulator.resimulate import simulate_document


def honest(planned: PlanDocument) -> PlanDocument:
    """Return the same nodes at the catalog's prices, in a job that allows them, with time and money as simulated."""
    assert planned.plan is not None
    prices = catalog.load()
    known = {offer.id: _known(offer, prices) for offer in planned.inputs.offers}
    nodes = tuple(replace(node, offer=known[node.offer].id) for node in planned.plan.nodes)
    resources = tuple(_resource(offer, len(nodes)) for offer in known.values())
    limits = Constraints(budget_usd=1000.0, deadline=24 * 3600.0)
    job = planned.job.model_copy(update={"resources": resources, "constraints": limits})
    inputs = replace(planned.inputs, offers=tuple(sorted(known.values(), key=lambda offer: offer.id)))
    simulated = simulate_document(
        replace(planned, job=job, constraints=job.constraints, inputs=inputs, plan=replace(planned.plan, nodes=nodes)),
        catalog=prices,
        network=network.load(),
        profiles=workload.profiles.load(),
        decoder=workload.decoder(job.model),
        as_of=SystemClock().now(),
    ).document
    assert simulated.cost is not None
    assert simulated.prediction is not None
    lasting = ttl_s(
        job.constraints,
        simulated.cost,
        duration_s=simulated.prediction.duration_s,
        offers=simulated.inputs.offers,
        as_of=simulated.as_of,
    )
    return replace(simulated, ttl_s=lasting)


def _known(made_up: Offer, prices: Catalog) -> Offer:
    found = prices.offers(
        provider=made_up.provider,
        zones=(made_up.zone,),
        accelerators=(made_up.accelerator,),
        markets=(made_up.market,),
    )
    fitting = [offer for offer in found if offer.accelerator_count == made_up.accelerator_count]
    return min(fitting, key=lambda offer: (offer.instance_type != made_up.instance_type, offer.id))


def _resource(offer: Offer, nodes: int) -> Resource:
    return Resource(
        provider=offer.provider,
        zones=(offer.zone,),
        accelerators={offer.accelerator: offer.accelerator_count * nodes},
        markets=(offer.market,),
        instance_types=(offer.instance_type,),
    )
