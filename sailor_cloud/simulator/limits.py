"""What of a job's limits a plan breaks that was given, not searched."""

from __future__ import annotations

from collections.abc import Iterator

from sailor_cloud.model.document import PlanDocument

# Sums of the same terms in another order differ by less than this, relatively.
_TIE = 1e-9


def broken_limits(document: PlanDocument) -> Iterator[str]:
    """Say which limits a plan breaks under the replay, each with both figures; of money if it is known."""
    plan, prediction, cost, limits = document.plan, document.prediction, document.cost, document.constraints
    if plan is None or prediction is None:
        return
    for what, needed, limit, unit in (
        ("costs", cost.total_usd if cost else None, limits.budget_usd, "USD"),
        ("costs", cost.usd_per_hour if cost else None, limits.max_usd_per_hour, "USD/h"),
        ("costs", cost.usd_per_iteration if cost else None, limits.max_usd_per_iteration, "USD/iteration"),
        ("takes", prediction.duration_s, limits.deadline, "s"),
        ("has", float(len(plan.nodes)), limits.max_nodes, "nodes"),
    ):
        if needed is not None and limit is not None and needed > limit * (1 + _TIE):
            yield f"{what} {needed:,.6g} {unit}, the job allows {limit:,.6g}"
    within, wanted = document.totals.within_limits if document.totals else None, limits.probability
    if within is not None and wanted is not None and within < wanted * (1 - _TIE):
        yield f"ends within budget and deadline with a probability of {within:.3g}, the job asks for {wanted:.3g}"
    least, reached = limits.min_throughput, prediction.throughput_iterations_per_s
    if least is not None and reached < least * (1 - _TIE):
        yield f"reaches {reached:.4g} iterations/s, the job asks for {least:.4g}"
