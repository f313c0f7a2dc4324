"""What is left of a run, on this machine and on every cloud that it touched: found by tag, deleted, and proved gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.provision import providers
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup.kept import is_bucket, kept_bucket
from sailor_cloud.provision.live_resources import (
    ACCOUNT,
    BY_TAG,
    HOLDS_OBJECTS,
    Asked,
    CloudSweep,
    LiveResource,
    Scope,
    Scopes,
    of_provider,
)
from sailor_cloud.provision.scopes import NOWHERE, Places, places_of, remove_from, sweep_scopes
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import damage, read
from sailor_cloud.run.state import ResourceState

TERRAFORM = "Terraform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Looks at a run without asking Terraform. A bucket that stays on purpose is never found."""

    folder: RunFolder
    places: Places

    @classmethod
    def of(cls, folder: RunFolder, *, also: Scopes = NOWHERE) -> Leftovers:
        """Look where anything in the run's folder tells of, and at `also`."""
        return cls(folder=folder, places=places_of(folder, also=also))

    def sweep(self) -> CloudSweep:
        """Return everything that exists of the run; what was not asked for, or not answered, may exist all the same."""
        here = sweep_here(self.folder)
        cloud = sweep_scopes(self.places.scopes, run_id=self.folder.run_id, beside=self.places.beside)
        kept = tuple(resource for resource in cloud.found if stays(self.folder, resource))
        found = (resource for resource in cloud.found if resource not in kept)
        return CloudSweep(found=(*here.found, *found), asked=(*here.asked, *cloud.asked), stays=kept)

    def remove(self, found: Iterable[LiveResource]) -> tuple[str, ...]:
        """Delete what a sweep found, compute first; return what failed."""
        return remove_from(found, folder=self.folder)

    def confirmed_by(self, row: ResourceState, swept: CloudSweep, cleared: frozenset[tuple[str, str]]) -> str | None:
        """Return who has confirmed that something in the journal is gone; None where nobody has.

        Only what was asked for in its own place, and answered, is gone. What carries no tag that can be looked for is
        gone when Terraform has destroyed its root without an error; `cleared` are such roots by stack and region.
        """
        if any(is_of(row, found) for found in swept.found):
            return None
        provider = provider_of(row)
        if provider is None:
            return BY_TAG if not swept.problems and not self.places.doubts else None
        if providers.on_this_machine(provider):
            return BY_TAG
        bought = providers.of(provider)
        region = str(row.data.get("region", ""))
        if row.resource == NODE:
            kinds: tuple[str, ...] = (bought.machine,)
        elif bought.finds(row.resource, row.key, run_id=self.folder.run_id, scopes=self.places.scopes):
            kinds = (row.resource,)
        elif (row.data.get("stack"), region) in cleared:
            return TERRAFORM
        elif row.resource in bought.parts or (row.resource in bought.unseen and row.created_at is None):
            kinds = ()
        else:
            return None
        return BY_TAG if self._answered(provider, region, kinds, swept) else None

    def _answered(self, provider: str, region: str, kinds: tuple[str, ...], swept: CloudSweep) -> bool:
        """Tell whether the places of a region were asked for some kinds, and answered.

        Without any kinds: for everything there, since what is nothing without something else is gone with it.
        """
        mine = [asked for asked in swept.asked if asked.scope.provider == provider]
        known = {asked.kind for asked in mine}
        places = providers.of(provider).at(region, of_provider(self.places.scopes, provider))
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


def sweep_here(folder: RunFolder) -> CloudSweep:
    """Return what a run has on this machine, which always answers."""
    found: list[LiveResource] = []
    asked = []
    for provider, bought in providers.every():
        if providers.on_this_machine(provider):
            found += bought.here(folder)
            asked.append(Asked(scope=Scope(provider=provider, kind="machine", name=""), kind=NODE))
    return CloudSweep(found=tuple(found), asked=tuple(asked))


def stays(folder: RunFolder, resource: LiveResource) -> bool:
    """Tell a run's own bucket that holds what nobody has fetched; by a damaged journal, nobody has fetched anything."""
    if not is_bucket(resource.type):
        return False
    kept = kept_bucket(folder.run_id, read(folder.journal_file))
    if kept is not None:
        return resource.name == kept.name
    own = resource.name == resource_name(folder.run_id, "data")
    return own and resource.detail == HOLDS_OBJECTS and bool(damage(folder.journal_file))


def provider_of(row: ResourceState) -> str | None:
    """Return the provider of something in the journal, which a damaged one may tell by its type alone."""
    known = dict(providers.every())
    told = row.data.get("provider")
    if told in known:
        return str(told)
    fitting = [name for name, bought in known.items() if row.resource in bought.swept | bought.parts | bought.unseen]
    return fitting[0] if fitting else None


def is_of(row: ResourceState, found: LiveResource) -> bool:
    """Tell whether what was found is what the journal names; without an id of the cloud's, any of its kind may be."""
    if row.resource == NODE:
        return found.node == row.key
    if (found.type, found.provider) != (row.resource, provider_of(row)):
        return False
    name = str(row.data.get("cloud_id", "")).rpartition("/")[2]
    return found.name == name if name else True
