"""Asks providers whether a plan's zones sell its instance types, if no source confirms it."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.catalog import providers
from sailor_cloud.errors import CredentialsError, NotSoldError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Offer, Provider, ZoneConfidence
from sailor_cloud.provision.rendering.root import placed_nodes


def check_zones(document: PlanDocument) -> tuple[str, ...]:
    """Return the findings on the plan's unchecked zones, a sentence each; a zone that can't be asked is accepted.

    Raises NotSoldError if a provider says that a zone does not sell a type.
    """
    offers = {placed.offer.id: placed.offer for placed in placed_nodes(document)}
    unchecked = [o for _, o in sorted(offers.items()) if o.zone_confidence is ZoneConfidence.UNCHECKED]
    notes: list[str] = []
    wrong: list[Offer] = []
    for name in sorted({offer.provider for offer in unchecked}):
        if providers.of(name).has_account:
            here = [offer for offer in unchecked if offer.provider == name]
            wrong += _ask(name, here, document.job.cloud, notes)
    if wrong:
        listed = ", ".join(f"{offer.instance_type} in {offer.zone}" for offer in wrong)
        raise NotSoldError(
            f"{wrong[0].provider} does not sell {listed}; leave the zone out of the job's resources, or get what is "
            "sold with 'sailor-cloud prices refresh', and plan again",
            [offer.id for offer in wrong],
        )
    return tuple(notes)


def _ask(name: Provider, offers: Sequence[Offer], cloud: Cloud, notes: list[str]) -> list[Offer]:
    """Return the offers that a provider does not sell, and note its answer on the others."""
    missing: list[str] = []
    try:
        sold = providers.of(name).sold(offers, cloud, missing)
    except CredentialsError as error:
        sold, missing = {}, [str(error)]
    for offer in offers:
        what = f"{offer.instance_type} in {offer.zone}"
        if sold.get(offer.id):
            notes.append(f"{name} says that it sells {what}, which no source had seen")
        elif offer.id not in sold:
            why = f" ({'; '.join(missing)})" if missing else ""
            notes.append(f"no source has seen {name} sell {what}, and it can't be asked{why}")
    return [offer for offer in offers if sold.get(offer.id) is False]
