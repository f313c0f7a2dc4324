"""Properties of a layout that depend only on where pipelines run, not on cuts and microbatches.

They are computed once per layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.space.draft import nodes_of, seats_of
from sailor_cloud.planner.space.layouts import Layout, card_flows
from sailor_cloud.planner.space.quotas import keeps_quotas
from sailor_cloud.planner.space.space import Seat, Space

# A pipeline's seats, and for each of its cuts how many share the network card.
Place = tuple[tuple[Seat, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayoutBill:
    """The bill of a layout's nodes; None if they exceed a quota or cut a pipeline between clouds.

    `places`: by pipeline, numbers of places."""

    bill: Bill | None
    places: tuple[int, ...]


@dataclass(slots=True)
class LayoutBills:
    """The bills of a space's layouts; pipelines on equal places share a number in all layouts."""

    space: Space
    places: list[Place] = field(default_factory=list)
    _numbers: dict[Place, int] = field(default_factory=dict)
    _known: dict[Layout, LayoutBill] = field(default_factory=dict)

    def of(self, layout: Layout) -> LayoutBill:
        """Return the bill and the places of a layout."""
        if layout not in self._known:
            nodes = nodes_of(layout)
            stands = self.space.keeps_clouds_apart([slot.pool for slot in slots] for slots in layout)
            bill = Bill.of(self.space, nodes) if stands and keeps_quotas(self.space.candidates, nodes) else None
            places = [] if bill is None else zip(map(seats_of, layout), card_flows(layout), strict=True)
            self._known[layout] = LayoutBill(bill, tuple(map(self._number, places)))
        return self._known[layout]

    def _number(self, place: Place) -> int:
        if place not in self._numbers:
            self._numbers[place] = len(self.places)
            self.places.append(place)
        return self._numbers[place]
