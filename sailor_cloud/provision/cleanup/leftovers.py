"""The leftovers of a run on this machine and its clouds: found by tag, deleted, and verified as deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.jobs import JOB, unanswered
from sailor_cloud.provision.live_resources import (
    ACCOUNT,
    BY_TAG,
    HOLDS_OBJECTS,
    CloudSweep,
    LiveResource,
    Scope,
    Scopes,
    SearchedPlace,
    of_provider,
)
from sailor_cloud.provision.scopes import NOWHERE, Places, places_of, remove_from, sweep_scopes
from sailor_cloud.run.folder import RunFolder, resource_name, runs_root
from sailor_cloud.run.journal import Entry, Event, damage, read
from sailor_cloud.run.receipt import AskedPlace, KeptResource, ReceiptResource
from sailor_cloud.run.state import ResourceState, RunState, fold
from sailor_cloud.units import HOURS_PER_MONTH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBucket:
    """A bucket that is kept."""

    name: str

    def row(self, kind: str, usd_per_month: float) -> KeptResource:
        return KeptResource(
            type=kind,
            name=self.name,
            usd_per_month=usd_per_month,
            delete_command=_buckets()[kind].format(name=self.name),
        )


def is_uncancellable(kind: str) -> bool:
    """Whether purchases of a Terraform type can't be cancelled."""
    return any(kind in machine_provider.uncancellable_kinds for _, machine_provider in providers.all_providers())


def kept_block(kind: str, name: str, ends: str) -> KeptResource:
    """Return the receipt row of kept capacity, which can't be cancelled: it is paid for, and ends by itself."""
    ends_at = datetime.fromisoformat(ends) if ends else None
    return KeptResource(type=kind, name=name, usd_per_month=0.0, delete_command="", ends_at=ends_at)


def is_bucket(kind: str) -> bool:
    """Whether a Terraform type is that of the runs' own buckets."""
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


def is_fetched(run_id: str, entries: Iterable[Entry]) -> bool:
    """Whether everything saved in the run's own bucket was fetched, according to the journal."""
    name, known = resource_name(run_id, "data"), tuple(entries)
    fetched = any(one.event is Event.RESULTS_FETCHED and one.data.get("bucket") == name for one in known)
    return fetched and kept_bucket(run_id, known) is None


def usd_per_month(document: PlanDocument) -> float:
    """Return the approximate monthly cost of the plan's checkpoints: the plan's own line, scaled to a month.

    The line covers the training, during which the kept checkpoints grow to their full size.
    """
    if document.cost is None or document.prediction is None or document.prediction.duration_s is None:
        return 0.0
    hours = document.prediction.duration_s / SECONDS_PER_HOUR
    stored = (line for line in document.cost.lines if line.kind is CostKind.CHECKPOINT and line.unit == "GiB-month")
    return sum(line.usd for line in stored) * HOURS_PER_MONTH / hours if hours > 0 else 0.0


def _buckets() -> dict[str, str]:
    """Return the command that deletes a bucket, by bucket type."""
    return {
        machine_provider.bucket: machine_provider.delete_bucket
        for _, machine_provider in providers.all_providers()
        if machine_provider.bucket
    }


TERRAFORM = "Terraform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Searches for a run's resources without Terraform. Resources that are kept on purpose are never found."""

    folder: RunFolder
    places: Places

    @classmethod
    def of(cls, folder: RunFolder, *, also: Scopes = NOWHERE) -> Leftovers:
        """Search everywhere that the run's folder names, and in `also`."""
        return cls(folder=folder, places=places_of(folder, also=also))

    def sweep(self) -> CloudSweep:
        """Return all existing resources of the run; places without an answer may have more."""
        here = sweep_this_machine(self.folder)
        cloud = sweep_scopes(self.places.scopes, run_id=self.folder.run_id, other_kinds=self.places.other_kinds)
        kept = tuple(resource for resource in cloud.found if is_kept(self.folder, resource))
        found = self._by_node(resource for resource in cloud.found if resource not in kept)
        mine = tuple(self._silent())
        # For a job that waits for silent machines, the journal names their nodes.
        silent = (*mine, *(one for one in cloud.unconfirmed if one.node or one.name not in {own.name for own in mine}))
        return CloudSweep(
            found=(*here.found, *found), searched=(*here.searched, *cloud.searched), kept=kept, unconfirmed=silent
        )

    def _by_node(self, found: Iterable[LiveResource]) -> Iterator[LiveResource]:
        """Yield found resources; a job that does not name its nodes once for each node that the journal names."""
        rows = [row for row in fold(read(self.folder.journal_file)).resources if row.resource == NODE]
        for one in found:
            if one.type != JOB or one.node:
                yield one
                continue
            mine = [row for row in rows if row.data.get("provider") == one.provider and _may_have(one.name, row)]
            yield from (replace(one, node=row.key) for row in mine)
            if not mine:
                yield one

    def _silent(self) -> Iterator[LiveResource]:
        """Yield nodes on machines that don't answer; their scheduler may report the job as ended anyway."""
        rows = [row for row in fold(read(self.folder.journal_file)).live if row.resource == NODE and "host" in row.data]
        for provider, machine_provider in providers.all_providers():
            mine = [row for row in rows if row.data.get("provider") == provider]
            machines = {str(row.data["host"]) for row in mine}
            try:
                unsure = (
                    {machine: unanswered({machine}) for machine in machine_provider.unresponsive_machines(machines)}
                    if mine
                    else {}
                )
            except ProvisionError as error:
                unsure = dict.fromkeys(machines, str(error))
            for row in mine:
                if why := unsure.get(str(row.data["host"])):
                    yield LiveResource(
                        provider=provider,
                        region=str(row.data.get("region", "")),
                        type=machine_provider.machine,
                        name=str(row.data.get("cloud_id", "")),
                        run_id=self.folder.run_id,
                        node=row.key,
                        silent=why,
                    )

    def remove(self, found: Iterable[LiveResource]) -> tuple[str, ...]:
        """Delete what a sweep found, compute first; return what failed."""
        return remove_from(found, folder=self.folder)

    def confirmed_by(self, row: ResourceState, swept: CloudSweep, cleared: frozenset[tuple[str, str]]) -> str | None:
        """Return who confirmed that a journaled resource is deleted; None if nobody did.

        A resource counts as deleted only if its own place was asked for it and answered. An untagged one counts as
        deleted when Terraform has destroyed its root without an error; `cleared` are such roots by stack and region.
        """
        if any(is_same_resource(row, found) for found in (*swept.found, *swept.unconfirmed)):
            return None
        provider = provider_of(row)
        if provider is None:
            return BY_TAG if not swept.problems and not self.places.doubts else None
        if providers.on_this_machine(provider):
            return BY_TAG
        machine_provider = providers.of(provider)
        region = str(row.data.get("region", ""))
        if row.resource == NODE:
            kinds: tuple[str, ...] = (machine_provider.machine,)
        elif machine_provider.can_find(row.resource, row.key, run_id=self.folder.run_id, scopes=self.places.scopes):
            kinds = (row.resource,)
        elif (row.data.get("stack"), region) in cleared:
            return TERRAFORM
        elif row.resource in machine_provider.dependent_kinds or (
            row.resource in machine_provider.unsearchable_kinds and row.created_at is None
        ):
            kinds = ()
        else:
            return None
        return BY_TAG if self._answered(provider, region, kinds, swept) else None

    def _answered(self, provider: str, region: str, kinds: tuple[str, ...], swept: CloudSweep) -> bool:
        """Whether all places of a region answered the search for some kinds.

        If a damaged journal lacks the region: all places that the run may have used. Without kinds: the search for
        everything there, since parts are deleted with what they belong to.
        """
        mine = [asked for asked in swept.searched if asked.scope.provider == provider]
        known = {asked.kind for asked in mine}
        places = of_provider(self.places.scopes, provider)
        if region:
            places = providers.of(provider).confirming_scopes(region, places)
        elif self.places.doubts:
            return False
        chosen = [kind for kind in kinds if kind in known]
        if not chosen:
            here = [asked for asked in mine if asked.scope in places or asked.scope.kind == ACCOUNT]
            return {asked.scope for asked in here} >= places != Scopes() and not any(asked.problem for asked in here)
        account = Scope(provider=provider, kind=ACCOUNT, name="")
        return all(
            swept.answered(account, kind)
            if any((asked.scope, asked.kind) == (account, kind) for asked in mine)
            else bool(places) and all(swept.answered(place, kind) for place in places)
            for kind in chosen
        )


def sweep_this_machine(folder: RunFolder) -> CloudSweep:
    """Return a run's resources on this machine, which always answers."""
    found: list[LiveResource] = []
    asked = []
    for provider, machine_provider in providers.all_providers():
        if providers.on_this_machine(provider):
            found += machine_provider.local_resources(folder)
            asked.append(SearchedPlace(scope=Scope(provider=provider, kind="machine", name=""), kind=NODE))
    return CloudSweep(found=tuple(found), searched=tuple(asked))


def on_this_machine_without_folder() -> tuple[LiveResource, ...]:
    """Return the resources on this machine of this user's runs whose folder is gone."""
    every = (
        machine_provider.resources_without_folder(runs_root()) for _, machine_provider in providers.all_providers()
    )
    return tuple(resource for found in every for resource in found)


def is_kept(folder: RunFolder, resource: LiveResource) -> bool:
    """Whether a resource is kept on purpose: a run's own bucket with unfetched content, or uncancellable capacity.

    Nodes can save without a controller, so content counts as unfetched unless the journal says otherwise.
    """
    if is_uncancellable(resource.type):
        return True
    if not is_bucket(resource.type) or resource.name != resource_name(folder.run_id, "data"):
        return False
    entries = read(folder.journal_file)
    if kept_bucket(folder.run_id, entries) is not None:
        return True
    unfetched = bool(damage(folder.journal_file)) or not is_fetched(folder.run_id, entries)
    return resource.detail == HOLDS_OBJECTS and unfetched


def _may_have(job: str, row: ResourceState) -> bool:
    """Whether a journaled node is a job's; a node that was never seen running may be any job's."""
    return bool(row.data.get("cloud_id", job if row.live else "") == job)


def provider_of(row: ResourceState) -> str | None:
    """Return the provider of a journaled resource; in a damaged journal only its type may identify it."""
    known = dict(providers.all_providers())
    provider = row.data.get("provider")
    if provider in known:
        return str(provider)
    fitting = [
        name
        for name, machine_provider in known.items()
        if row.resource
        in machine_provider.searchable_kinds | machine_provider.dependent_kinds | machine_provider.unsearchable_kinds
    ]
    return fitting[0] if fitting else None


def is_same_resource(row: ResourceState, found: LiveResource) -> bool:
    """Whether a found resource is the journaled one, or belongs to a journaled node.

    Capacity without a cloud id is recognized by the entry's name in its title; other types match by type alone.
    """
    if row.resource == NODE:
        return found.node == row.key
    if (found.type, found.provider) != (row.resource, provider_of(row)):
        return False
    name = str(row.data.get("cloud_id", "")).rpartition("/")[2]
    if name:
        return found.name == name
    return row.capacity is None or found.title == resource_name(found.run_id, row.capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownResult:
    """The result for a run's resources. `remaining` is what an independent search finds, `asked` where it searched."""

    resources: tuple[ReceiptResource, ...]
    remaining: tuple[LiveResource, ...]
    problems: tuple[str, ...]
    kept: tuple[KeptResource, ...] = ()
    asked: tuple[AskedPlace, ...] = ()

    @property
    def clean(self) -> bool:
        gone = all(resource.gone_at is not None for resource in self.resources)
        return not self.remaining and gone and all(place.answered for place in self.asked)


def rows(state: RunState, swept: CloudSweep) -> tuple[ReceiptResource, ...]:
    """Return all journaled resources except kept ones; a found resource does not count as deleted."""
    return tuple(_row(resource, swept.found) for resource in state.resources if not resource.kept)


def _row(resource: ResourceState, found: tuple[LiveResource, ...]) -> ReceiptResource:
    row = ReceiptResource(
        provider=resource.data.get("provider", ""),
        region=resource.data.get("region", ""),
        zone=resource.data.get("zone", ""),
        type=resource.resource,
        name=resource.key,
        created_at=resource.created_at,
        gone_at=resource.gone_at,
        confirmed_by=resource.data.get("confirmed_by", ""),
    )
    seen = any(is_same_resource(resource, live) for live in found)
    return replace(row, gone_at=None, confirmed_by="", found=True) if seen else row


def unjournaled(state: RunState, found: Iterable[LiveResource]) -> tuple[ResourceState, ...]:
    """Return found resources that the journal, perhaps damaged or cut short by a crash, does not name."""
    new: dict[tuple[str, str], ResourceState] = {}
    for live in found:
        if not any(is_same_resource(row, live) for row in (*state.resources, *new.values())):
            kind, key = (NODE, live.node) if live.node else (live.type, live.name)
            data = {"provider": live.provider, "region": live.region, "zone": live.zone, "cloud_id": live.name}
            new.setdefault((kind, key), ResourceState(resource=kind, key=key, data=data))
    return tuple(new[name] for name in sorted(new))


def searched_places(swept: CloudSweep, doubts: Iterable[str], at: datetime) -> tuple[AskedPlace, ...]:
    """Return where and when each kind was searched; places that could not be asked have no time."""
    answers = dict.fromkeys((asked.scope, asked.kind, asked.problem) for asked in swept.searched)
    places = [
        AskedPlace(provider=scope.provider, place=str(scope), kind=kind, asked_at=at, problem=problem)
        for scope, kind, problem in answers
    ]
    return (*places, *(AskedPlace(provider="", place="", kind="", asked_at=None, problem=doubt) for doubt in doubts))
