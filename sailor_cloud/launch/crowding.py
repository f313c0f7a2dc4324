"""Says when a local plan has more devices than this machine has cores."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider


def crowding_note(document: PlanDocument, *, cores: int) -> str | None:
    """Return a warning that the planned iteration time assumes a core per local device, or None where there is one."""
    plan = document.plan
    if plan is None:
        return None
    local = {offer.id for offer in document.inputs.offers if offer.provider is Provider.LOCAL}
    ranks = sum(
        stage.tp for pipeline in plan.pipelines for stage in pipeline.stages if plan.node(stage.node).offer in local
    )
    if ranks <= cores:
        return None
    return (
        f"{ranks} ranks share the {cores} cores of this machine, and the plan counts one core each: expect iterations "
        f"of {ranks / cores:.1f} times the planned length and more; calibration will tell"
    )
