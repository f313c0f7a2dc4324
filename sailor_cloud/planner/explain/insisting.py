"""Plans near a chosen one that use an accelerator, a zone, a market or a cloud which that plan leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from sailor_cloud.model.document import Subject
from sailor_cloud.model.offer import Offer
from sailor_cloud.planner.evaluate.assess import shapes_of
from sailor_cloud.planner.improvement import Improver, Neighbour, Neighbourhood
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space

# The most changes of a plan that are tried for one name. A plan over many zones has ten times as many.
_TRIED = 100


def names_of(offer: Offer, subject: Subject) -> tuple[str, ...]:
    """Return the accelerator, zone, market or cloud of an offer."""
    return (str(offer.provider if subject is Subject.CLOUD else getattr(offer, subject.value)),)


def near_with(space: Space, target: Target, draft: Draft, subject: Subject, name: str) -> Iterator[Draft]:
    """Yield plans near a draft that use what it leaves out, with their figures under the replay.

    For a zone or a market, all nodes are bought there, as far as it sells them. For a cloud, they are bought in one
    zone after the other that sells nodes with the same devices. An accelerator replaces another one in equal pipelines,
    in the draft's zones and markets if it is sold there. Yields nothing for plans that the local search does not
    support, such as those with ZeRO-2.
    """
    if space.scenario.engine.uniform or draft.zero_stage > 1:
        return
    there = space.at(draft.zero_stage)
    offers = [pool.offer for pool in there.pools]
    wanted = [number for number, offer in enumerate(offers) if name in names_of(offer, subject)]
    if subject is Subject.ACCELERATOR:
        used = [offers[slot.pool] for part in draft.pipelines for slot in part.slots]
        places = {(offer.zone, offer.market) for offer in used}
        near = [number for number in wanted if (offers[number].zone, offers[number].market) in places]
        neighbours = Neighbourhood(there).bought_from(draft, near or wanted)
    elif subject is Subject.CLOUD:
        zones: dict[str, list[int]] = {}
        # The last of several offers with the same devices counts: the cheapest.
        for number in sorted(wanted, key=lambda number: -offers[number].usd_per_hour):
            zones.setdefault(offers[number].zone, []).append(number)
        moved = (_all_bought(there, draft, subject, sold) for _, sold in sorted(zones.items()))
        neighbours = (neighbour for found in moved for neighbour in found)
    else:
        neighbours = _all_bought(there, draft, subject, wanted)
    improver = Improver(there, target)
    for neighbour in islice(neighbours, _TRIED):
        made = improver.made(neighbour, draft.zero_stage)
        if made is not None:
            yield made


def _all_bought(space: Space, draft: Draft, subject: Subject, wanted: Sequence[int]) -> Iterator[Neighbour]:
    """Yield a draft with all nodes bought in a zone or market, as far as it sells them; in a cloud, all or none."""
    offers = [pool.offer for pool in space.pools]
    sold = {_apart_from(subject, offers[number]): number for number in wanted}
    taken: Counter[int] = Counter()
    names: dict[tuple[int, int], tuple[int, int]] = {}
    for pool, instance in sorted({slot[:2] for part in draft.pipelines for slot in part.slots}):
        # Nodes of several zones may get one offer, so all get new numbers.
        there = sold.get(_apart_from(subject, offers[pool]), pool)
        names[pool, instance] = there, taken[there]
        taken[there] += 1
    shapes = tuple(
        shape._replace(slots=tuple(Slot(*names[slot[:2]], slot.tp) for slot in shape.slots))
        for shape in shapes_of(draft)
    )
    if subject is Subject.CLOUD and not taken.keys() <= set(wanted):
        return
    if taken.keys() & set(wanted) and Neighbourhood(space).bought(shapes):
        yield Neighbour(shapes)


def _apart_from(subject: Subject, offer: Offer) -> tuple[object, ...]:
    """Return the common properties of two offers that differ only in one respect and in price."""
    if subject is Subject.CLOUD:
        return offer.accelerator, offer.accelerator_count, offer.market, offer.terms
    respects = {Subject.ZONE: offer.zone, Subject.MARKET: (offer.market, offer.terms)}
    others = tuple(value for respect, value in respects.items() if respect is not subject)
    return offer.provider, offer.instance_type, offer.accelerator, *others
