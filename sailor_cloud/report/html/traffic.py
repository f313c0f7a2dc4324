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


def volume_text(document: PlanDocument, uses: list[LinkUse]) -> str:
    """Return what some links carry, and what that costs where their prices are known."""
    amounts = [gigabytes(document, use) for use in uses]
    carried = f"{text.amount(sum(amounts))} GB"
    prices = [use.usd_per_gb for use in uses if use.usd_per_gb is not None]
    if len(prices) < len(uses):
        return carried
    usd = sum(amount * price for amount, price in zip(amounts, prices, strict=True))
    return f"{carried}, {text.usd(usd)} USD"


def told(document: PlanDocument, use: LinkUse) -> list[str]:
    """Return the traffic with its price, and the link that carries it."""
    kind = "measured" if use.measured else "estimated, not measured,"
    span = "" if document.job.training.steps else " an hour"
    amount = gigabytes(document, use)
    price = use.usd_per_gb
    costs = "" if price is None else f" at {text.usd(price)} USD/GB = {text.usd(amount * price)} USD"
    return [
        f"{use.src_zone} to {use.dst_zone}: {text.amount(amount)} GB{span}{costs}",
        f"  {use.bandwidth_bytes_per_s / 125e6:.3g} Gbit/s, {use.rtt_ms:.3g} ms, {kind} {use.as_of.isoformat()}",
    ]
