"""Finds and removes leftovers of runs on every cloud that this machine's runs touched.

A run counts as live while a controller works on it, or while it may be an unexpired run of another machine. Resources
without a run's tag are never considered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from sailor_cloud.clock import Clock
from sailor_cloud.errors import RequestError
from sailor_cloud.provision import providers
from sailor_cloud.provision.cleanup.leftovers import (
    KeptBucket,
    is_bucket,
    is_kept,
    is_uncancellable,
    on_this_machine_without_folder,
    sweep_this_machine,
)
from sailor_cloud.provision.damage import journal_damage, plan_of
from sailor_cloud.provision.errors.rules import Backoff, Pause
from sailor_cloud.provision.live_resources import EXPIRES_FORM, HOLDS_OBJECTS, CloudSweep, LiveResource, Scopes
from sailor_cloud.provision.providers import on_this_machine
from sailor_cloud.provision.scopes import NOWHERE, places_of, remove_from, sweep_scopes, sweep_untagged
from sailor_cloud.run import elsewhere
from sailor_cloud.run.folder import RunFolder, start_time_of
from sailor_cloud.run.journal import read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import Phase, fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """The leftovers of one run. `folder` is None if it is gone or on another machine; `why` is for people."""

    run_id: str
    folder: RunFolder | None
    resources: tuple[LiveResource, ...]
    owner: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLeftovers:
    """`reapable` belongs to no live run, `live` to one; if there are problems, both may be incomplete."""

    reapable: tuple[Leftover, ...]
    live: tuple[Leftover, ...]
    problems: tuple[str, ...]


def readable(folders: Iterable[RunFolder]) -> tuple[tuple[RunFolder, ...], dict[str, str]]:
    """Return the folders that can be read, and why the others can't, by run: one must not hide the leftovers of all."""
    good, bad = [], {}
    for folder in folders:
        try:
            folder.check()
            good.append(folder)
        except RequestError as error:
            bad[folder.run_id] = str(error)
    return tuple(good), bad


def find_leftovers(
    folders: Iterable[RunFolder],
    *,
    clock: Clock,
    unreadable: Mapping[str, str] = MappingProxyType({}),
    scopes: Scopes = NOWHERE,
    older_than: timedelta | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> FoundLeftovers:
    """Find all resources with a run's tag, in the scopes that the runs of `folders` touched and in `scopes`.

    Without `older_than`, resources of other machines' runs are theirs until expiry. With it, they are theirs until the
    run is that old. The same holds for nodes of this machine without a run's folder.
    Leftovers of this machine's dead controllers then count only after that time without a write.
    Those of `unreadable` runs are left alone, and each is a problem with its text.
    `progress` gets the number of searches done and their total: one for the scopes, one for each run of this machine.
    """
    known = {folder.run_id: folder for folder in folders}
    where = scopes_to_sweep(known.values(), scopes)
    looks = 1 + len(known)
    progress(0, looks)
    swept = sweep_scopes(where)
    problems = [*swept.problems, *unreadable.values()]
    by_run: dict[str, list[LiveResource]] = defaultdict(list)
    for resource in (*swept.found, *swept.unconfirmed, *on_this_machine_without_folder()):
        by_run[resource.run_id].append(resource)
    for done, folder in enumerate(known.values(), start=1):
        progress(done, looks)
        here = sweep_this_machine(folder).found
        rights = _rights(folder)
        problems += rights.problems
        if here or rights.found:
            by_run[folder.run_id] += (*here, *rights.found)
    reapable: list[Leftover] = []
    live: list[Leftover] = []
    for run_id, resources in sorted(by_run.items()):
        if run_id in unreadable:
            continue
        of_here = known.get(run_id)
        kept = [resource for resource in resources if _must_keep(resource, of_here)]
        rest = tuple(resource for resource in resources if resource not in kept)
        live += [_kept(bucket, of_here) for bucket in kept]
        if rest:
            leftover, is_live = _judged(run_id, of_here, rest, clock, older_than)
            (live if is_live else reapable).append(leftover)
    return FoundLeftovers(reapable=tuple(reapable), live=tuple(live), problems=tuple(problems))


def scopes_to_sweep(folders: Iterable[RunFolder], asked: Scopes) -> Scopes:
    """Return the scopes where this machine's runs may have resources, and those that the user named."""
    return asked.union(*(places_of(folder).scopes for folder in folders))


def _rights(folder: RunFolder) -> CloudSweep:
    """Return a run's rights on the user's buckets; they have no tag, so only the run's folder names them."""
    entries = read(folder.journal_file)
    where = places_of(folder).scopes if fold(entries).phase is not Phase.GONE else NOWHERE
    return sweep_untagged(where, run_id=folder.run_id)


def remove_foreign(leftover: Leftover, *, pause: Pause, backoff: Backoff | None = None) -> tuple[str, ...]:
    """Delete the leftovers of a run without a folder here; return what remains or can't be searched."""
    patience, failed = backoff or Backoff(), 0
    resources = tuple(one for one in leftover.resources if not one.silent)
    while True:
        problems = remove_from(resources)
        left, unsure, silent = sweep_again(leftover)
        if not left and not unsure:
            return silent
        failed += 1
        pause_s = patience.pause_s(failed)
        if pause_s is None:
            return (*problems, *unsure, *silent, *_still_there(left))
        pause(pause_s)
        resources = left


def sweep_again(leftover: Leftover) -> tuple[tuple[LiveResource, ...], tuple[str, ...], tuple[str, ...]]:
    """Search again where the leftovers of a run were found.

    Returns what exists, what is uncertain, and what may run on machines that don't answer.
    """
    swept = sweep_scopes(scopes_of_resources(leftover.resources), run_id=leftover.run_id)
    if leftover.folder is not None:
        here = sweep_this_machine(leftover.folder).found
    else:
        here = tuple(one for one in on_this_machine_without_folder() if one.run_id == leftover.run_id)
    left = tuple(found for found in (*here, *swept.found) if not _must_keep(found, leftover.folder))
    asked = {asked.scope.provider for asked in swept.searched}
    silent = {found.provider for found in leftover.resources if not on_this_machine(found.provider)} - asked
    unsure = (*swept.problems, *(f"{provider} was not asked" for provider in sorted(silent)))
    return left, unsure, tuple(dict.fromkeys(one.unconfirmed_text for one in swept.unconfirmed))


def scopes_of_resources(resources: Iterable[LiveResource]) -> Scopes:
    """Return the scopes in which found resources can be found again."""
    found = tuple(resources)
    mine = {
        name: [resource for resource in found if resource.provider == name] for name, _ in providers.all_providers()
    }
    return Scopes().union(
        *(
            machine_provider.scopes_containing(mine[name])
            for name, machine_provider in providers.all_providers()
            if mine[name]
        )
    )


def deletion_problems(leftover: Leftover) -> tuple[str, ...]:
    """Return the findings of a second search, independent of files, that contradict a complete deletion."""
    left, unsure, silent = sweep_again(leftover)
    return (*unsure, *silent, *_still_there(left))


def _still_there(left: Iterable[LiveResource]) -> tuple[str, ...]:
    return tuple(f"still there: {found.type} {found.name}" for found in left)


def _must_keep(resource: LiveResource, folder: RunFolder | None) -> bool:
    """Whether to keep a resource: a bucket whose content may be wanted, or uncancellable capacity.

    Such buckets are those that a run of this machine has kept, and those of other machines' runs.
    """
    if is_uncancellable(resource.type):
        return True
    if not is_bucket(resource.type) or resource.detail != HOLDS_OBJECTS:
        return False
    return folder is None or is_kept(folder, resource)


def _kept(bucket: LiveResource, folder: RunFolder | None) -> Leftover:
    if is_uncancellable(bucket.type):
        why = f"is paid for, can't be cancelled and ends by itself{f' at {bucket.ends}' if bucket.ends else ''}"
        return Leftover(run_id=bucket.run_id, folder=folder, resources=(bucket,), owner=bucket.owner, why=why)
    command = KeptBucket(name=bucket.name).row(bucket.type, 0.0).delete_command
    why = f"holds objects that may be wanted; '{command}' deletes it"
    return Leftover(run_id=bucket.run_id, folder=folder, resources=(bucket,), owner=bucket.owner, why=why)


def _judged(
    run_id: str,
    folder: RunFolder | None,
    resources: tuple[LiveResource, ...],
    clock: Clock,
    older_than: timedelta | None,
) -> tuple[Leftover, bool]:
    owner = next((resource.owner for resource in resources if resource.owner), "")
    why, live = (
        _of_this_machine(folder, clock, older_than)
        if folder and _is_of_this_machine(folder, resources)
        else _without_folder(run_id, resources, clock.now(), older_than)
    )
    return Leftover(run_id=run_id, folder=folder, resources=resources, owner=owner, why=why), live


def _is_of_this_machine(folder: RunFolder, resources: tuple[LiveResource, ...]) -> bool:
    """Whether this machine can tell if a run is live: no controller of another one may work on it.

    A machine's name may change, and two machines may share a folder and its lock.
    """
    if not elsewhere.other_machine(folder) or elsewhere.holder(folder) is not None:
        return True
    gone = fold(read(folder.journal_file)).phase is Phase.GONE
    return gone or any(on_this_machine(resource.provider) for resource in resources)


def _of_this_machine(folder: RunFolder, clock: Clock, older_than: timedelta | None) -> tuple[str, bool]:
    holder = elsewhere.holder(folder)
    if holder is not None:
        return f"process {holder.pid} works on it", True
    state = fold(read(folder.journal_file))
    if state.phase is Phase.GONE:
        return "was torn down, and this is left", False
    now = clock.now()
    since = state.updated_at or now
    why = f"no controller has worked on it since {since:%Y-%m-%d %H:%M} UTC"
    if older_than is not None and now - since < older_than:
        return f"{why}, which is less than --older-than", True
    damage = (*plan_of(folder)[1], *journal_damage(folder, Ledger.of(folder, clock, read_only=True)))
    if damage:
        return f"{why}; {damage[0].why}", False
    return f"{why}; 'sailor-cloud resume {folder.run_id}' would continue with it", False


def _without_folder(
    run_id: str, resources: tuple[LiveResource, ...], now: datetime, older_than: timedelta | None
) -> tuple[str, bool]:
    begun = start_time_of(run_id)
    expiries = [_expiry(resource.expires) for resource in resources]
    last = max((expiry for expiry in expiries if expiry is not None), default=None)
    if any(on_this_machine(resource.provider) for resource in resources):
        why = "of this machine, and its folder is gone"
        if older_than is not None:
            return why, begun is not None and now - begun < older_than
        if last is not None and now <= last:
            return f"{why}; ends by itself at {last:%Y-%m-%d %H:%M} UTC, or with --older-than", True
        return why, False
    if older_than is not None and begun is not None and now - begun >= older_than:
        return f"of another machine, begun {begun:%Y-%m-%d %H:%M} UTC", False
    if last is not None and last < now:
        return f"of another machine, expired {last:%Y-%m-%d %H:%M} UTC", False
    until = f"until {last:%Y-%m-%d %H:%M} UTC" if last is not None else "without an expiry"
    return f"may be a live run of another machine, {until}", True


def _expiry(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, EXPIRES_FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
