"""The points of cost against time as cells of a table."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import usd_unit

TITLE = "cost against time"
# In which money no plan as fast costs less: that of the run, or that of the nodes per hour.
BEST = "best per"


def frontier_numbers(document: PlanDocument) -> tuple[str, ...]:
    """Return the headings of the columns of numbers, between those of devices and zones and that of `BEST`."""
    return ("iteration", usd_unit(document), "nodes USD/h")


def frontier_rows(document: PlanDocument) -> list[tuple[str, ...]]:
    """Return the cells of each point, fastest first: devices, zones, the numbers, and what it is best per."""
    return [
        (
            " + ".join(f"{count} {name}" for name, count in point.devices.items()),
            point.zones[0] if len(point.zones) == 1 else f"{len(point.zones)} zones",
            text.seconds(point.iteration_s),
            text.usd(point.usd),
            "" if point.nodes_usd_per_hour is None else text.usd(point.nodes_usd_per_hour),
            "run" if point.cheapest else "hour",
        )
        for point in document.frontier
    ]
