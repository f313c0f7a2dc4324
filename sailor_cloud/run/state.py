"""Folds a journal into the state of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Entry, Event, read


class Phase(StrEnum):
    """The phase of a run."""

    CREATED = "created"
    PROVISIONING = "provisioning"
    PROVISIONED = "provisioned"
    DEPLOYING = "deploying"
    TRAINING = "training"
    FINISHED = "finished"
    FAILED = "failed"
    TEARING_DOWN = "tearing_down"
    TEARDOWN_FAILED = "teardown_failed"
    GONE = "gone"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


# A run in one of these phases can't be resumed.
OVER = frozenset({Phase.FINISHED, Phase.FAILED, Phase.TEARING_DOWN, Phase.TEARDOWN_FAILED, Phase.GONE})


_PHASES = {
    Event.RUN_CREATED: Phase.CREATED,
    Event.PROVISION_STARTED: Phase.PROVISIONING,
    Event.PROVISIONED: Phase.PROVISIONED,
    Event.DEPLOY_STARTED: Phase.DEPLOYING,
    Event.GENERATION_STARTED: Phase.TRAINING,
    Event.TRAINING_FINISHED: Phase.FINISHED,
    Event.TRAINING_FAILED: Phase.FAILED,
    Event.TEARDOWN_STARTED: Phase.TEARING_DOWN,
    Event.TEARDOWN_FAILED: Phase.TEARDOWN_FAILED,
    Event.TORN_DOWN: Phase.GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """One resource by type and name, with the times of intents and confirmations.

    `until`: when it ended according to who confirmed that it is gone, or before that, when a search last saw it.
    """

    resource: str
    key: str
    intended_at: datetime | None = None
    created_at: datetime | None = None
    destroy_intended_at: datetime | None = None
    gone_at: datetime | None = None
    until: datetime | None = None
    kept: bool = False
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether the resource may exist: it was intended, and its deletion is not confirmed."""
        return self.gone_at is None and not self.kept

    @property
    def capacity(self) -> str | None:
        """The name of the entry for which this was bought separately from nodes; None for everything else."""
        return self.data.get("capacity")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run according to its journal; `generation` is 0 before the first."""

    phase: Phase
    created_at: datetime | None = None
    updated_at: datetime | None = None
    phase_since: datetime | None = None
    expires_at: datetime | None = None
    generation: int = 0
    outcome: str | None = None
    message: str = ""
    resources: tuple[ResourceState, ...] = ()

    @property
    def live(self) -> tuple[ResourceState, ...]:
        """Resources that may still exist."""
        return tuple(resource for resource in self.resources if resource.live)

    def resource(self, resource: str, key: str) -> ResourceState:
        """Return one resource of the journal. Raises KeyError."""
        for known in self.resources:
            if (known.resource, known.key) == (resource, key):
                return known
        raise KeyError((resource, key))


def fold(entries: Iterable[Entry]) -> RunState:
    """Return the state that results from a journal's entries."""
    state = RunState(phase=Phase.CREATED)
    resources: dict[tuple[str, str], ResourceState] = {}
    for entry in entries:
        state = _advance(state, entry)
        if entry.key:
            name = (entry.resource, entry.key)
            known = resources.get(name, ResourceState(resource=entry.resource, key=entry.key))
            resources[name] = _advance_resource(known, entry)
    return replace(state, resources=tuple(resources.values()))


def _advance(state: RunState, entry: Entry) -> RunState:
    phase = _PHASES.get(entry.event, state.phase)
    return replace(
        state,
        phase=phase,
        phase_since=entry.ts if phase != state.phase or state.phase_since is None else state.phase_since,
        created_at=state.created_at or entry.ts,
        updated_at=entry.ts,
        expires_at=_instant(entry.data.get("expires_at")) or state.expires_at,
        generation=entry.data.get("generation", state.generation),
        outcome=entry.data.get("outcome", state.outcome),
        message=entry.data.get("message", state.message),
    )


def _instant(text: object) -> datetime | None:
    """Return a time of the journal; None if it is missing or damaged."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _advance_resource(known: ResourceState, entry: Entry) -> ResourceState:
    data = {**known.data, **entry.data}
    match entry.event:
        case Event.CREATE_INTENDED:
            # After a repeated intent the resource may exist again, whatever was known before.
            return replace(known, intended_at=known.intended_at or entry.ts, gone_at=None, data=data)
        case Event.CREATED:
            return replace(known, created_at=known.created_at or entry.ts, gone_at=None, data=data)
        case Event.DESTROY_INTENDED:
            until = _instant(entry.data.get("until")) or known.until
            return replace(known, destroy_intended_at=known.destroy_intended_at or entry.ts, until=until, data=data)
        case Event.GONE:
            return replace(known, gone_at=known.gone_at or entry.ts, until=_instant(entry.data.get("until")), data=data)
        case Event.KEPT:
            return replace(known, kept=True, data=data)
    return replace(known, data=data)


def folders_of(folder: RunFolder) -> dict[str, Path]:
    """Return a run's folders of prices, links and profiles by name, as of its start or last takeover."""
    named: dict[str, Path] = {}
    for entry in read(folder.journal_file):
        given = entry.data.get("folders")
        if isinstance(given, dict):
            named |= {name: Path(str(given[name])) for name in ("pricing", "network", "profiles") if name in given}
    return named
