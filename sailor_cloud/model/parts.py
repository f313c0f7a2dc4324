"""The names of what a run pays for. They link a plan's bill to the ledger and are never parsed.

The names of services are in simulator.money.
"""

from __future__ import annotations

from sailor_cloud.model.document import CostLine


def node_part(instance_type: str, market: str, zone: str) -> str:
    """Return the name of the cost of nodes of one offer, from start-up to teardown."""
    return f"{instance_type} {market} in {zone}"


def traffic_part(src_zone: str, dst_zone: str, payer_zone: str) -> str:
    """Return the name of what one side pays for traffic between two zones."""
    return f"{src_zone} to {dst_zone}, paid by {payer_zone}"


def checkpoint_traffic_part(src_zone: str, region: str, payer_zone: str) -> str:
    """Return the name of what one side pays for checkpoint traffic from a zone to the bucket's region."""
    return f"checkpoints from {src_zone} to {region}, paid by {payer_zone}"


def part_of(line: CostLine) -> str:
    """Return the part of a line of a bill; in documents older than these names, its text."""
    return line.part or line.what
