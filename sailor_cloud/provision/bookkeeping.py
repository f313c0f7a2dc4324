"""Entries of journal and ledger about nodes and all other created resources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from sailor_cloud.run.state import ResourceState, RunState, fold

if TYPE_CHECKING:
    from sailor_cloud.catalog import Catalog

NODE = "node"


def intend_node(journal: Journal, placed: PlacedNode) -> None:
    """Journal a node before it is requested, with everything needed to find, price and delete it later."""
    journal.append_all([node_intent(placed)])


def node_intent(placed: PlacedNode) -> Draft:
    offer = placed.offer
    data = {
        "provider": offer.provider,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "market": offer.market.value,
        # The price of capacity that is bought separately is on its own line.
        "usd_per_hour": 0.0 if offer.bought_separately else offer.usd_per_hour,
        "services": _services(offer, placed.network),
        "price_source": offer.source,
        "price_as_of": offer.as_of_from.isoformat(),
    }
    return Draft(event=Event.CREATE_INTENDED, resource=NODE, key=placed.node.id, data=data)


def resource_intent(root: Root, kind: str, address: str) -> Draft:
    """Return the intent to create a resource other than a node, such as a network."""
    data = {"provider": root.provider, "region": root.region, "stack": root.stack}
    return Draft(event=Event.CREATE_INTENDED, resource=kind, key=resource_key(root, address), data=data)


def capacity_intent(root: Root, kind: str, address: str, nodes: Iterable[PlacedNode]) -> Draft:
    """Return the intent to buy capacity separately from nodes, with its total price if it has one."""
    name = address.rpartition('["')[2].removesuffix('"]')
    mine = [p.offer for p in nodes if p.offer.terms is not None and p.offer.terms.name == name]
    offer, terms = mine[0], mine[0].terms
    assert terms is not None
    count = len(mine) if offer.cancellable else terms.nodes
    data = {
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
    return Draft(event=Event.CREATE_INTENDED, resource=kind, key=resource_key(root, address), data=data)


def open_capacity(ledger: Ledger, intent: Mapping[str, Any], *, since: datetime) -> None:
    """Charge for separately bought capacity: a total price immediately, else by the hour until it is cancelled."""
    key, usd = capacity_key(intent["capacity"]), intent["usd"]
    entry: dict[str, Any] = {
        "kind": CostKind.COMPUTE,
        "what": intent["what"],
        "part": intent["part"],
        "price_source": intent["price_source"],
        "price_as_of": date.fromisoformat(intent["price_as_of"]),
    }
    if usd is None:
        ledger.open_item(key, usd_per_hour=intent["usd_per_hour"], since=since, **entry)
    else:
        ledger.charge(key, quantity=1.0, unit="block", usd_per_unit=usd, at=since, **entry)


def cancellable(journal: Journal, root: Root | WantedRoot) -> dict[str, ResourceState]:
    """Return the cancellable capacity that a run may have bought in a root, by entry name."""
    from sailor_cloud.provision import providers

    machine_provider = providers.of(root.provider)
    return {
        row.capacity: row
        for row in fold(journal.entries()).live
        if (row.data.get("stack"), row.data.get("region")) == (root.stack, root.region)
        if row.capacity is not None
        and row.resource in machine_provider.capacity_kinds - machine_provider.uncancellable_kinds
    }


def close_cancelled(
    journal: Journal, ledger: Ledger, root: Root | WantedRoot, *, at: datetime, but: Collection[str] = ()
) -> None:
    """Stop charging for a root's cancelled capacity, except `but`; a block has no hourly charge to stop."""
    for name, row in cancellable(journal, root).items():
        if name not in but:
            # The journal comes first: after a crash in between, the ledger is closed as it says.
            journal.append(Event.GONE, resource=row.resource, key=row.key, confirmed_by="Terraform")
            ledger.close_item(capacity_key(name), at=at)


def capacity_key(name: str) -> str:
    """Return the ledger's key of a capacity entry."""
    return f"capacity/{name}"


def resource_key(root: Root, address: str) -> str:
    """Return a resource's name in the journal: nodes aside, resources have no other name before they exist."""
    return f"{root.stack}-{root.region}/{address.removeprefix('module.cluster.')}"


def priced(intent: Mapping[str, Any]) -> bool:
    """Whether a node's journal entry has its price; an entry in a damaged journal may lack it."""
    return {"instance_type", "zone", "market", "usd_per_hour", "price_source", "price_as_of"} <= intent.keys()


def open_node(ledger: Ledger, node: str, intent: Mapping[str, Any], *, since: datetime) -> None:
    """Charge for a node and everything that comes with it from some time on, at the prices in its intent."""
    with ledger.batch():
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


def charge_missing(ledger: Ledger, state: RunState) -> None:
    """Charge for journaled nodes that the ledger lacks, perhaps because it was lost; other lines stay as they are."""
    for row in state.resources:
        since = row.intended_at or row.created_at
        if row.capacity is not None and row.created_at is not None and since is not None:
            open_capacity(ledger, row.data, since=since)
            if row.gone_at is not None:
                ledger.close_item(capacity_key(row.capacity), at=row.gone_at)
        if row.resource == NODE and row.created_at is not None and since is not None and priced(row.data):
            open_node(ledger, row.key, row.data, since=since)
        if row.resource == NODE and (end := _end(row, state.expires_at)) is not None:
            ledger.close_item(ledger_key(row.key), at=end)


def close_gone(ledger: Ledger, state: RunState) -> None:
    """Close the nodes and the capacity that the journal calls gone; a crash may have left them open."""
    for row in state.resources:
        if row.resource == NODE and (end := _end(row, state.expires_at)) is not None:
            ledger.close_item(ledger_key(row.key), at=end)
        elif row.capacity is not None and row.gone_at is not None:
            ledger.close_item(capacity_key(row.capacity), at=row.gone_at)


def close_expired(ledger: Ledger, state: RunState, now: datetime) -> None:
    """Charge live nodes until their TTL at most, as a teardown does for those that it no longer finds."""
    if state.expires_at is not None and state.expires_at <= now:
        for row in state.live:
            if row.resource == NODE:
                ledger.close_item(ledger_key(row.key), at=state.expires_at)


def _end(row: ResourceState, expires_at: datetime | None) -> datetime | None:
    """Return until when a journaled node cost money; None while it may exist.

    Unless the journal says until when it ran, a node had shut itself down at its TTL at the latest and is found later.
    """
    if row.gone_at is not None and row.until is not None:
        return row.until
    return row.gone_at if row.gone_at is None or expires_at is None else min(row.gone_at, expires_at)


def charge_less(ledger: Ledger, state: RunState) -> tuple[str, ...]:
    """Correct what the ledger charges less for than the journal of purchases says, and return its names."""
    return tuple(key for row in state.resources for key in _corrected(ledger, row, state.expires_at))


def _corrected(ledger: Ledger, row: ResourceState, expires_at: datetime | None) -> Iterator[str]:
    if row.created_at is None:
        return
    until = row.gone_at
    if row.resource == NODE:
        # The end of its job ends a scheduled node; only a later query confirms it.
        until = row.created_at if _scheduled(row) else _end(row, expires_at)
    for key, usd_per_hour in _hourly(row).items():
        since = row.intended_at or row.created_at
        if ledger.charge_at_least(key, usd_per_hour=usd_per_hour, since=since, created_at=row.created_at, until=until):
            yield key


def _scheduled(row: ResourceState) -> bool:
    from sailor_cloud.provision import providers

    provider = row.data.get("provider")
    return provider in names() and providers.of(provider).scheduler is not None


def _hourly(row: ResourceState) -> dict[str, float]:
    """Return the hourly prices in an intent by the ledger's keys."""
    if row.capacity is not None:
        return {capacity_key(row.capacity): row.data["usd_per_hour"]} if row.data["usd"] is None else {}
    if row.resource != NODE or not priced(row.data):
        return {}
    own = ledger_key(row.key)
    services = {f"{own}/{one['service']}": one["usd_per_hour"] for one in row.data.get("services", ())}
    return {own: row.data["usd_per_hour"], **services}


def charged_nodes(ledger: Ledger) -> tuple[str, ...]:
    """Return the nodes that a ledger charges, or has charged, for."""
    names = (key.split("/") for key in ledger.paid_by_time())
    return tuple(name[1] for name in names if name[0] == NODE and len(name) == 2)


def cloud_filter(entries: Iterable[Entry], cloud: str) -> Callable[[str], bool]:
    """Return a test whether a ledger key may belong to a cloud: true unless the journal places it on another one."""
    others = set()
    for row in fold(entries).resources:
        if row.data.get("provider", cloud) != cloud:
            own = ledger_key(row.key) if row.resource == NODE else f"{row.resource}/{row.key}"
            others.add(_key_owner(own if row.capacity is None else capacity_key(row.capacity)))
    return lambda key: _key_owner(key) not in others


def _key_owner(key: str) -> tuple[str, ...]:
    """Return the part of a ledger key that identifies a node, a capacity entry or a root."""
    return tuple(key.split("/")[:2])


def _services(offer: Offer, network: NetworkAccess) -> list[dict[str, Any]]:
    """Return the cost of a node's disk and network access. Raises MissingPriceError."""
    if not sold_by(offer.provider).bills_services:
        return []
    # The simulator imports numpy, which commands that only look or remove don't need.
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
    """Return the catalog of the registered providers and the folders in use."""
    from sailor_cloud import catalog

    # Prices of disks and addresses rarely change, so those at this process's start suffice.
    return catalog.load()


def ledger_key(node: str) -> str:
    return f"{NODE}/{node}"


def is_node_key(key: str) -> bool:
    """Whether a ledger key is that of a node, or of something that belongs to it."""
    return key.startswith(f"{NODE}/")
