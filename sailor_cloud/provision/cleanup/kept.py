"""What a teardown leaves on purpose: the run's own bucket, while it holds checkpoints that nobody has fetched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.run.folder import resource_name
from sailor_cloud.run.journal import Entry, Event
from sailor_cloud.run.receipt import KeptResource
from sailor_cloud.units import HOURS_PER_MONTH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBucket:
    """The bucket that stays."""

    name: str

    def row(self, kind: str, usd_per_month: float) -> KeptResource:
        return KeptResource(
            type=kind,
            name=self.name,
            usd_per_month=usd_per_month,
            delete_command=_buckets()[kind].format(name=self.name),
        )


def is_bucket(kind: str) -> bool:
    """Tell whether the bucket that a run makes for itself is of some Terraform type."""
    return kind in _buckets()


def kept_bucket(run_id: str, entries: Iterable[Entry]) -> KeptBucket | None:
    """Return the run's own bucket if checkpoints were saved in it since its content was fetched; else None."""
    name = resource_name(run_id, "data")
    holds = False
    for entry in entries:
        if entry.event is Event.CHECKPOINT_SAVED and f"://{name}/" in str(entry.data.get("path", "")):
            holds = True
        elif entry.event is Event.RESULTS_FETCHED and entry.data.get("bucket") == name:
            holds = False
    return KeptBucket(name=name) if holds else None


def usd_per_month(document: PlanDocument) -> float:
    """Return about what the plan's checkpoints cost per month: the plan's own line for them, stretched to a month.

    The line is for the time of the training, and what is kept grows to its full size in the course of that.
    """
    if document.cost is None or document.prediction is None or document.prediction.duration_s is None:
        return 0.0
    hours = document.prediction.duration_s / SECONDS_PER_HOUR
    stored = (line for line in document.cost.lines if line.kind is CostKind.CHECKPOINT and line.unit == "GiB-month")
    return sum(line.usd for line in stored) * HOURS_PER_MONTH / hours if hours > 0 else 0.0


def _buckets() -> dict[str, str]:
    """Return the command that deletes a bucket, by its type."""
    return {bought.bucket: bought.delete_bucket for _, bought in providers.every() if bought.bucket}
