"""What the journal and the ledger hold about a node, and about everything else that is created."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from sailor_cloud import resources
from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.parts import node_part
from sailor_cloud.model.provider import names
from sailor_cloud.provision.rendering.root import PlacedNode, Root, WantedRoot
from sailor_cloud.run.journal import Draft, Entry, Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import ResourceState, fold

if TYPE_CHECKING:
    from sailor_cloud.catalog import Catalog

NODE = "node"


def intend_node(journal: Journal, placed: PlacedNode) -> None:
    """Journal that a node is about to be asked for, with all that is needed to find, price and delete it later."""
    journal.append_all([node_intent(placed)])


def node_intent(placed: PlacedNode) -> Draft:
    offer = placed.offer
    told = {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "market": offer.market.value,
        # What was bought apart has its price there.
        "usd_per_hour": 0.0 if offer.bought_apart else offer.usd_per_hour,
        "services": _services(offer, placed.network),
        "price_source": offer.source,
        "price_as_of": offer.as_of_from.isoformat(),
    }
    return Draft(event=Event.CREATE_INTENDED, resource=NODE, key=placed.node.id, data=told)


def resource_intent(root: Root, kind: str, address: str) -> Draft:
    """Return the intent to ask for something besides nodes, such as a network."""
    told = {"provider": root.provider, "region": root.region, "stack": root.stack}
    return Draft(event=Event.CREATE_INTENDED, resource=kind, key=resource_key(root, address), data=told)


def capacity_intent(root: Root, kind: str, address: str, nodes: Iterable[PlacedNode]) -> Draft:
    """Return the intent to buy capacity apart from nodes, with its whole price where it has one."""
    name = address.rpartition('["')[2].removesuffix('"]')
    mine = [p.offer for p in nodes if p.offer.terms is not None and p.offer.terms.name == name]
    offer, terms = mine[0], mine[0].terms
    assert terms is not None
    count = len(mine) if offer.cancellable else terms.nodes
    told = {
        "provider": root.provider,
        "region": root.region,
        "stack": root.stack,
        "zone": offer.zone,
        "capacity": name,
        "nodes": count,
        "what": f"{name}: {count} x {offer.instance_type} in {offer.zone}, {offer.market}",
        "part": node_part(offer.instance_type, offer.market, offer.zone),
        "usd": None if offer.cancellable else round(offer.committed_usd(count), 2),
        "usd_per_hour": count * offer.usd_per_hour,
        "ends_at": None if terms.ends_at is None else terms.ends_at.isoformat(),
        "price_source": offer.source,
        "price_as_of": offer.as_of_from.isoformat(),
    }
    return Draft(event=Event.CREATE_INTENDED, resource=kind, key=resource_key(root, address), data=told)


def open_capacity(ledger: Ledger, intent: Mapping[str, Any], *, since: datetime) -> None:
    """Charge for capacity that was bought apart: a whole price at once, else by the hour until it is cancelled."""
    key, usd = capacity_key(intent["capacity"]), intent["usd"]
    told: dict[str, Any] = {
        "kind": CostKind.COMPUTE,
        "what": intent["what"],
        "part": intent["part"],
        "price_source": intent["price_source"],
        "price_as_of": date.fromisoformat(intent["price_as_of"]),
    }
    if usd is None:
        ledger.open_item(key, usd_per_hour=intent["usd_per_hour"], since=since, **told)
    else:
        ledger.charge(key, quantity=1.0, unit="block", usd_per_unit=usd, at=since, **told)


def cancellable(journal: Journal, root: Root | WantedRoot) -> dict[str, ResourceState]:
    """Return what a run may have bought apart in a root and could give back, by the names of entries."""
    from sailor_cloud.provision import providers

    bought = providers.of(root.provider)
    return {
        row.capacity: row
        for row in fold(journal.entries()).live
        if (row.data.get("stack"), row.data.get("region")) == (root.stack, root.region)
        if row.capacity is not None and row.resource in bought.capacity_kinds - bought.uncancellable
    }


def close_cancelled(
    journal: Journal, ledger: Ledger, root: Root | WantedRoot, *, at: datetime, but: Collection[str] = ()
) -> None:
    """Close the books of a root's capacity that was given back, all but some; a block has none to close."""
    for name, row in cancellable(journal, root).items():
        if name not in but:
            ledger.close_item(capacity_key(name), at=at)
            journal.append(Event.GONE, resource=row.resource, key=row.key, confirmed_by="Terraform")


def capacity_key(name: str) -> str:
    """Return what the ledger calls an entry of capacity."""
    return f"capacity/{name}"


def resource_key(root: Root, address: str) -> str:
    """Return the name that a resource besides nodes has in the journal, for it has no other before it exists."""
    return f"{root.stack}-{root.region}/{address.removeprefix('module.cluster.')}"


def priced(intent: Mapping[str, Any]) -> bool:
    """Tell whether what the journal has of a node says what it costs; what a damaged one has need not."""
    return {"instance_type", "zone", "market", "usd_per_hour", "price_source", "price_as_of"} <= intent.keys()


def open_node(ledger: Ledger, node: str, intent: Mapping[str, Any], *, since: datetime) -> None:
    """Charge for a node from some time on, and for each thing that comes with it, at prices that its intent froze."""
    with ledger.at_once():
        _open_node(ledger, node, intent, since)


def _open_node(ledger: Ledger, node: str, intent: Mapping[str, Any], since: datetime) -> None:
    kind, zone, market = intent["instance_type"], intent["zone"], intent["market"]
    ledger.open_item(
        ledger_key(node),
        kind=CostKind.COMPUTE,
        what=f"{node}: {kind} in {zone}, {market}",
        part=node_part(kind, market, zone),
        usd_per_hour=intent["usd_per_hour"],
        since=since,
        price_source=intent["price_source"],
        price_as_of=date.fromisoformat(intent["price_as_of"]),
    )
    for service in intent.get("services", ()):
        ledger.open_item(
            f"{ledger_key(node)}/{service['service']}",
            kind=CostKind(service["kind"]),
            what=f"{node}: {service['part']}",
            part=service["part"],
            usd_per_hour=service["usd_per_hour"],
            since=since,
            price_source=service["price_source"],
            price_as_of=date.fromisoformat(service["price_as_of"]),
        )


def recharge(ledger: Ledger, rows: Iterable[ResourceState]) -> None:
    """Charge for the nodes of a journal that the ledger lacks, perhaps since it was lost; others stay as they are."""
    for row in rows:
        since = row.intended_at or row.created_at
        if row.capacity is not None and row.created_at is not None and since is not None:
            open_capacity(ledger, row.data, since=since)
            if row.gone_at is not None:
                ledger.close_item(capacity_key(row.capacity), at=row.gone_at)
        if row.resource == NODE and row.created_at is not None and since is not None and priced(row.data):
            open_node(ledger, row.key, row.data, since=since)
            if row.gone_at is not None:
                ledger.close_item(ledger_key(row.key), at=row.gone_at)


def charged_nodes(ledger: Ledger) -> tuple[str, ...]:
    """Return the nodes that a ledger charges, or has charged, for."""
    names = (key.split("/") for key in ledger.paid_by_time())
    return tuple(name[1] for name in names if name[0] == NODE and len(name) == 2)


def on_cloud(entries: Iterable[Entry], cloud: str) -> Callable[[str], bool]:
    """Return whether a ledger's key may be of a cloud: all that the journal doesn't place on another one."""
    others = set()
    for row in fold(entries).resources:
        if row.data.get("provider", cloud) != cloud:
            own = ledger_key(row.key) if row.resource == NODE else f"{row.resource}/{row.key}"
            others.add(_first_words(own if row.capacity is None else capacity_key(row.capacity)))
    return lambda key: _first_words(key) not in others


def _first_words(key: str) -> tuple[str, ...]:
    """Return the part of a ledger's key that tells a node, an entry of capacity or the root of anything else."""
    return tuple(key.split("/")[:2])


def _services(offer: Offer, network: NetworkAccess) -> list[dict[str, Any]]:
    """Return what a node's disk and way to the network cost. Raises MissingPriceError."""
    if not sold_by(offer.provider).bills_services:
        return []
    # The simulator brings numpy along, which no command needs that only looks or removes.
    from sailor_cloud.simulator import service_kind, service_part, services_with

    return [
        {
            "service": price.service.value,
            "kind": service_kind(price.service).value,
            "part": service_part(price.service),
            "usd_per_hour": usd_per_hour,
            "price_source": price.source,
            "price_as_of": price.as_of_from.isoformat(),
        }
        for price, usd_per_hour in services_with(offer, _prices(names(), resources.folders()), network)
    ]


@cache
def _prices(providers: tuple[str, ...], folders: resources.DataFolders) -> Catalog:
    """Return the catalog of the providers that are registered now, and of the folders in use."""
    from sailor_cloud import catalog

    # Prices of disks and addresses change once in years; those of this process's start will do.
    return catalog.load()


def ledger_key(node: str) -> str:
    return f"{NODE}/{node}"
