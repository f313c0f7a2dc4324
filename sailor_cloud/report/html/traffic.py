"""What one pair of zones exchanges, in GB and words."""

from __future__ import annotations

from sailor_cloud.model.document import LinkUse, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.units import GB, SECONDS_PER_HOUR


def gigabytes(document: PlanDocument, use: LinkUse) -> float:
    """GB of the whole run, or of one hour where there is no number of steps."""
    assert document.prediction is not None
    steps = document.job.training.steps or SECONDS_PER_HOUR / document.prediction.iteration_s_replay
    return use.bytes_per_iteration * steps / GB


def told(document: PlanDocument, use: LinkUse) -> list[str]:
    """Return the traffic with its price, and the link that carries it."""
    kind = "measured" if use.measured else "estimated"
    span = "" if document.job.training.steps else " an hour"
    volume = gigabytes(document, use)
    return [
        f"{use.src_zone} to {use.dst_zone}: {text.amount(volume)} GB{span} at "
        f"{text.usd(use.usd_per_gb)} USD/GB = {text.usd(volume * use.usd_per_gb)} USD",
        f"  {use.bandwidth_bytes_per_s / 125e6:.3g} Gbit/s, {use.rtt_ms:.3g} ms, {kind} {use.as_of.isoformat()}",
    ]
