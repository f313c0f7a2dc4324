"""What is left of a run, on this machine and on every cloud that it touched: found by tag, deleted, and proved gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.provision import providers
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup.kept import is_bucket, kept_bucket
from sailor_cloud.provision.live_resources import BY_TAG, CloudSweep, LiveResource, Scopes
from sailor_cloud.provision.scopes import remove_from, sweep_scopes, touched
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Entry, read
from sailor_cloud.run.state import ResourceState, fold

TERRAFORM = "Terraform"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Looks at a run without asking Terraform.

    `beside` are the kinds that the run may have, besides its nodes. A bucket that stays on purpose is never found.
    """

    folder: RunFolder
    scopes: Scopes
    beside: frozenset[str] = frozenset()

    @classmethod
    def of(cls, folder: RunFolder, entries: Iterable[Entry]) -> Leftovers:
        known = tuple(entries)
        return cls(
            folder=folder,
            scopes=touched(known),
            beside=frozenset(row.resource for row in fold(known).resources),
        )

    def sweep(self) -> CloudSweep:
        """Return everything that exists of the run; with problems, what is missing may exist all the same."""
        here = [found for _, bought in providers.every() for found in bought.here(self.folder)]
        cloud = sweep_scopes(self.scopes, run_id=self.folder.run_id, beside=self.beside)
        kept = kept_bucket(self.folder.run_id, read(self.folder.journal_file))
        name = kept.name if kept is not None else ""
        found = (resource for resource in cloud.found if not is_bucket(resource.type) or resource.name != name)
        return CloudSweep(found=(*here, *found), problems=cloud.problems)

    def remove(self, found: Iterable[LiveResource]) -> tuple[str, ...]:
        """Delete what a sweep found, compute first; return what failed."""
        return remove_from(found, folder=self.folder)

    def confirmed_by(self, row: ResourceState, swept: CloudSweep, cleared: frozenset[tuple[str, str]]) -> str | None:
        """Return who has confirmed that something in the journal is gone; None where nobody has.

        What carries no tag that can be looked for is gone when Terraform has destroyed its root without an error.
        `cleared` are such roots by stack and region.
        """
        if row.resource == NODE and any(found.node == row.key for found in swept.found):
            return None
        provider = row.data.get("provider")
        if provider is None or providers.on_this_machine(provider):
            return BY_TAG
        if swept.problems:
            return None
        if row.resource == NODE:
            return BY_TAG
        bought = providers.of(provider)
        if not bought.finds(row.resource, row.key, run_id=self.folder.run_id, scopes=self.scopes):
            by_terraform = (row.data.get("stack"), row.data.get("region")) in cleared
            # What is nothing without something that is looked for, such as a route, is gone with it.
            return TERRAFORM if by_terraform else BY_TAG if row.resource in bought.parts else None
        return None if any(_is(row, found) for found in swept.found) else BY_TAG


def _is(row: ResourceState, found: LiveResource) -> bool:
    if (found.type, found.provider) != (row.resource, row.data.get("provider")):
        return False
    name = str(row.data.get("cloud_id", "")).rpartition("/")[2]
    # Without an id of the cloud's it may be any of its kind.
    return found.name == name if name else True
