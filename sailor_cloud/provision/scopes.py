"""The places where a run has, or may have, resources: a teardown searches them."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.live_resources import (
    CloudSweep,
    Listing,
    LiveResource,
    ResourceSearch,
    Scope,
    Scopes,
    SearchedPlace,
    of_provider,
)
from sailor_cloud.provision.rendering.data import may_have_data
from sailor_cloud.provision.rendering.root import VARIABLES_FILE, placed_nodes
from sailor_cloud.provision.terraform.pace import map_concurrently
from sailor_cloud.run.folder import FIRST_OF_NAMES, RunFolder, resource_prefix, start_time_of
from sailor_cloud.run.journal import Entry, Event, damage, read
from sailor_cloud.run.state import fold

logger = logging.getLogger(__name__)
_NAMED = re.compile(rf'"name": "({FIRST_OF_NAMES}[0-9a-f]{{10}})"')
NOWHERE = Scopes()


def scopes_of(document: PlanDocument) -> Scopes:
    """Return the scopes of a plan's nodes."""
    offers = [placed.offer for placed in placed_nodes(document)] if document.plan is not None else []
    clouds = {offer.provider for offer in offers}
    return Scopes(scope for cloud in clouds for scope in providers.of(cloud).scopes(document, offers))


def scopes_named(kind: str, names: Iterable[str]) -> Scopes:
    """Return the scopes with these names on every provider that has scopes of this kind.

    Raises RequestError for an impossible name.
    """
    chosen = tuple(names)
    mine = {
        provider: machine_provider
        for provider, machine_provider in providers.all_providers()
        if kind in machine_provider.scope_kinds
    }
    for name in chosen:
        if not any(machine_provider.is_valid_scope_name(kind, name) for machine_provider in mine.values()):
            raise RequestError(f"--{kind} {name!r}: no {' or '.join(mine)} {kind} has such a name")
    return Scopes(
        Scope(provider=provider, kind=kind, name=name)
        for provider, machine_provider in mine.items()
        for name in chosen
        if machine_provider.is_valid_scope_name(kind, name)
    )


def scopes_for_journal(scopes: Scopes) -> dict[str, Any]:
    """Return scopes in the journal's form: names by provider and kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for scope in sorted(scopes):
        found[f"{scope.provider}_{scope.kind}s"].append(scope.name)
    return found


def journaled_scopes(entries: Iterable[Entry]) -> Scopes:
    """Return the scopes in a run's journal, which are written before any request."""
    started = [entry for entry in entries if entry.event is Event.PROVISION_STARTED]
    return Scopes(
        Scope(provider=provider, kind=kind, name=str(name))
        for provider, machine_provider in providers.all_providers()
        for kind in machine_provider.scope_kinds
        for entry in started
        for name in _listed(entry.data.get(f"{provider}_{kind}s"))
    )


def _listed(names: object) -> list[object]:
    """Return the names of a list; empty if a damaged journal has something else."""
    return names if isinstance(names, list) else []


def check_own(folder: RunFolder) -> None:
    """Raise RequestError if a folder was copied or renamed: resources have the original run's name."""
    prefixes = _prefixes(folder)
    other = next((name for prefix, name in prefixes.items() if prefix != resource_prefix(folder.run_id)), "")
    if not other:
        return
    own = folder.path.parent / other
    if own.is_dir() and not any(entry.event is Event.RUN_CREATED for entry in read(own / folder.journal_file.name)):
        raise RequestError(
            f"{folder.path} is the run {other}, renamed while its controller worked, which has made {own} since; "
            "move that folder away, then give this one the run's own name again"
        )
    raise RequestError(
        f"{folder.path} is a copy of the run {other}, or that run renamed; give the folder the run's own name "
        "again, or delete it if it is a copy"
    )


def _prefixes(folder: RunFolder) -> dict[str, str]:
    """Return the name prefixes of the run's resources, according to its journal, key and variables."""
    entries = read(folder.journal_file)
    runs = [str(entry.data["run"]) for entry in entries if entry.event is Event.RUN_CREATED and "run" in entry.data]
    with contextlib.suppress(OSError, ValueError):
        _, _, run = folder.public_key_file.read_text().split()
        runs += [run] if start_time_of(run) is not None else []
    found = {resource_prefix(run): run for run in runs}
    for base in folder.terraform_dirs():
        for file in base.rglob(VARIABLES_FILE):
            with contextlib.suppress(OSError):
                named = _NAMED.search(file.read_bytes().decode(errors="replace"))
                if named is not None:
                    found.setdefault(named[1], f"whose resources are called {named[1]}-…")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """All places where a run may have resources, by any evidence.

    `other_kinds` are the kinds besides compute that it may have, None for all. `doubts` say why there may be other
    places. `planned`: a plan of the run could be read.
    """

    scopes: Scopes
    other_kinds: frozenset[str] | None
    doubts: tuple[str, ...]
    planned: bool = True


def places_of(folder: RunFolder, *, also: Scopes = NOWHERE) -> Places:
    """Return the places in journal, plans and Terraform roots, and `also`, which the user has named.

    No single file is trusted. If the journal is damaged, the run may have been anywhere that its job allows.
    """
    entries, harm = read(folder.journal_file), damage(folder.journal_file)
    plans, unreadable = _plans(folder)
    searched = [journaled_scopes(entries), also, *(scopes_of(plan) for plan in plans)]
    rows = fold(entries).resources
    searched += [_of_row(row.data) for row in rows]
    for base in folder.terraform_dirs():
        searched.append(_of_root(base))
    if harm:
        searched += [_allowed(plan) for plan in plans]
    scopes = Scopes().union(*searched)
    doubts: tuple[str, ...] = ()
    started = any(entry.event is Event.PROVISION_STARTED for entry in entries)
    if not plans and (harm or not started):
        lost = f"{harm or f'{folder.journal_file} names no purchase'}, and {unreadable}: nothing says "
        doubts = (f"{lost}where the run bought; --project or --region name the places to search",)
        if also:
            doubts = tuple(f"{lost}that the run has nothing on {text}" for text in _unnamed(scopes))
    if harm and not _prefixes(folder):
        own = f"{harm}, and nothing else in {folder.path} names its run: what was bought may have another name"
        doubts = (*doubts, f"{own}; 'sailor-cloud reap' lists what any run has")
    if harm or not plans or any(may_have_data(plan.job) for plan in plans):
        return Places(scopes=scopes, other_kinds=None, doubts=doubts, planned=bool(plans))
    return Places(scopes=scopes, other_kinds=frozenset(row.resource for row in rows), doubts=doubts)


def _unnamed(scopes: Scopes) -> list[str]:
    """Return the clouds without any known place, each with the option that names one."""
    clouds = [
        (name, machine_provider)
        for name, machine_provider in providers.all_providers()
        if providers.is_cloud(name) and machine_provider.scope_kinds
    ]
    return [
        f"{name}; --{machine_provider.scope_kinds[0]} names where to look there"
        for name, machine_provider in clouds
        if not of_provider(scopes, name)
    ]


def _plans(folder: RunFolder) -> tuple[list[PlanDocument], str]:
    """Return the readable plans of a run, and why its first one can't be read."""
    found, unreadable = [], ""
    for path in (folder.plan_file, *sorted((folder.path / "generations").glob("*.json"))):
        try:
            plan = PlanDocument.from_json(path.read_bytes(), origin=str(path))
            placed_nodes(plan)
            found.append(plan)
        except (OSError, RequestError) as error:
            if path == folder.plan_file:
                unreadable = f"{path} is missing" if isinstance(error, FileNotFoundError) else f"{path} can't be read"
    return found, unreadable


def _of_row(data: Mapping[str, Any]) -> Scopes:
    provider, region = data.get("provider"), data.get("region")
    known = dict(providers.all_providers())
    return known[provider].scopes_named_in(str(region), "") if provider in known else NOWHERE


def _of_root(base: Path) -> Scopes:
    """Return the scopes that a Terraform folder names, even if its files are damaged."""
    texts = []
    for file in (*base.rglob(VARIABLES_FILE), *base.rglob("terraform.tfstate*")):
        with contextlib.suppress(OSError):
            texts.append(file.read_bytes().decode(errors="replace"))
    mine = [
        machine_provider
        for provider, machine_provider in providers.all_providers()
        if base.name.startswith(f"{provider}-")
    ]
    return Scopes().union(*(machine_provider.scopes_named_in(base.name, "\n".join(texts)) for machine_provider in mine))


def _allowed(plan: PlanDocument) -> Scopes:
    """Return the places that a plan's job allows besides those of the plan itself."""
    from sailor_cloud import catalog

    prices = catalog.load()
    known = {zone: prices.region_of(zone) for zone in prices.zones()}
    entries = [(entry.provider, zone) for entry in plan.job.resources for zone in entry.zones]
    return Scopes().union(
        *(_of_row({"provider": provider, "region": known[zone]}) for provider, zone in entries if zone in known)
    )


def sweep_scopes(
    scopes: Scopes, *, run_id: str | None = None, other_kinds: Collection[str] | None = None
) -> CloudSweep:
    """Search by tag for resources of one run, or of any run, in some scopes; errors become problems.

    `other_kinds` are the kinds besides compute to search, all by default. Kinds that a run can't have are left out, so
    that a user without rights for them gets no errors.
    """
    looks: list[ResourceSearch] = []
    for provider, machine_provider in providers.all_providers():
        kinds = (
            machine_provider.non_compute_kinds
            if other_kinds is None
            else machine_provider.non_compute_kinds & frozenset(other_kinds)
        )
        looks += machine_provider.searches(of_provider(scopes, provider), run_id=run_id, other_kinds=kinds)
    return _together(looks)


def sweep_untagged(scopes: Scopes, *, run_id: str) -> CloudSweep:
    """Search for a run's untaggable resources, which no search for all runs finds; errors become problems."""
    every = [
        (machine_provider, of_provider(scopes, provider)) for provider, machine_provider in providers.all_providers()
    ]
    return _together(
        [look for machine_provider, mine in every for look in machine_provider.untagged_searches(mine, run_id=run_id)]
    )


def remove_from(
    resources: Iterable[LiveResource], *, folder: RunFolder | None = None, poll_s: float = 5.0
) -> tuple[str, ...]:
    """Delete found resources, compute first and buckets last; return the failures. `folder`: that of a local run."""
    by_provider: dict[str, list[LiveResource]] = defaultdict(list)
    for resource in resources:
        by_provider[resource.provider].append(resource)
    problems: list[str] = []
    for provider, mine in by_provider.items():
        try:
            problems += providers.of(provider).remove(mine, folder=folder, poll_s=poll_s)
        except Exception as error:
            # Includes errors of the clouds' libraries: one cloud's refusal must not prevent deletions on others.
            logger.debug("can't remove what %s has", provider, exc_info=True)
            problems.append(f"{provider}: {error}")
    return tuple(problems)


def _together(looks: Sequence[ResourceSearch]) -> CloudSweep:
    found: list[LiveResource] = []
    asked: list[SearchedPlace] = []
    for look, listing in zip(looks, map_concurrently(_listing_of, looks), strict=True):
        found += listing.found
        why = dict(listing.failed)
        asked += [
            SearchedPlace(scope=scope, kind=kind, problem=why.get(kind, ""))
            for scope in look.scopes
            for kind in look.kinds
        ]
    silent = tuple(one for one in found if one.silent)
    return CloudSweep(found=tuple(one for one in found if not one.silent), searched=tuple(asked), unconfirmed=silent)


def _listing_of(look: ResourceSearch) -> Listing:
    try:
        return look.run()
    except Exception as error:
        # Includes errors of the clouds' libraries, such as a missing profile: a failed search confirms nothing.
        if not isinstance(error, ProvisionError):
            logger.debug("can't look for %s", look.kinds, exc_info=True)
        return Listing(found=(), failed=tuple((kind, str(error)) for kind in look.kinds))
