"""Memory of stages, those that need the same of the same accelerator counted together."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.model.document import PlanDocument, StageMemory
from sailor_cloud.report import text
from sailor_cloud.report.plan.groups import plan_hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One stage of all pipelines in which it is alike."""

    pipelines: tuple[int, ...]
    accelerator: str
    memory: StageMemory

    @property
    def label(self) -> str:
        return f"{text.ranges(self.pipelines)} / stage {self.memory.stage}, {self.accelerator}"

    @property
    def basis(self) -> str:
        return "measured" if self.memory.measured else "estimated, not measured"

    @property
    def share(self) -> float:
        return self.memory.total_bytes / self.memory.limit_bytes


def memory_rows(document: PlanDocument) -> tuple[MemoryRow, ...]:
    """Return the stages in the order of their first pipeline."""
    plan, prediction = document.plan, document.prediction
    if plan is None or prediction is None:
        return ()
    nodes = plan_hardware(document)
    alike: dict[tuple[object, ...], list[StageMemory]] = {}
    names: dict[tuple[object, ...], str] = {}
    for row in prediction.memory:
        accelerator = nodes[plan.pipelines[row.pipeline].stages[row.stage].node].accelerator
        key = (row.stage, accelerator, row.total_bytes, row.limit_bytes, row.measured, tuple(sorted(row.parts.items())))
        alike.setdefault(key, []).append(row)
        names[key] = accelerator
    return tuple(
        MemoryRow(
            pipelines=tuple(plan.pipelines[row.pipeline].id for row in rows), accelerator=names[key], memory=rows[0]
        )
        for key, rows in alike.items()
    )
