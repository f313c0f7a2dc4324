"""Where a run has, or may have, something: what is looked through when it is torn down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.live_resources import CloudSweep, LiveResource, Look, Scope, Scopes, of_provider
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Entry, Event


def scopes_of(document: PlanDocument) -> Scopes:
    """Return where the nodes of a plan stand."""
    offers = [placed.offer for placed in placed_nodes(document)] if document.plan is not None else []
    clouds = {offer.provider for offer in offers}
    return Scopes(scope for cloud in clouds for scope in providers.of(cloud).scopes(document, offers))


def scopes_named(kind: str, names: Iterable[str]) -> Scopes:
    """Return the scopes with these names on every provider that calls any of its own by this word."""
    chosen = tuple(names)
    mine = [provider for provider, bought in providers.every() if kind in bought.scope_kinds]
    return Scopes(Scope(provider=provider, kind=kind, name=name) for provider in mine for name in chosen)


def journaled(scopes: Scopes) -> dict[str, Any]:
    """Return scopes as the journal has them: names by provider and kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for scope in sorted(scopes):
        found[f"{scope.provider}_{scope.kind}s"].append(scope.name)
    return found


def touched(entries: Iterable[Entry]) -> Scopes:
    """Return every scope of a run: those that its journal names, which were written before anything was asked for."""
    started = [entry for entry in entries if entry.event is Event.PROVISION_STARTED]
    return Scopes(
        Scope(provider=provider, kind=kind, name=name)
        for provider, bought in providers.every()
        for kind in bought.scope_kinds
        for entry in started
        for name in entry.data.get(f"{provider}_{kind}s", ())
    )


def sweep_scopes(scopes: Scopes, *, run_id: str | None = None, beside: Collection[str] | None = None) -> CloudSweep:
    """Look by tag for what one run, or any run, has in some scopes; errors become problems.

    `beside` are the kinds to look for that are no part of compute, all unless given: whoever has no rights for those
    that a run can't have is not bothered with them.
    """
    looks: list[Look] = []
    for provider, bought in providers.every():
        kinds = bought.beside_compute if beside is None else bought.beside_compute & frozenset(beside)
        looks += bought.looks(of_provider(scopes, provider), run_id=run_id, beside=kinds)
    return _together(looks)


def sweep_untagged(scopes: Scopes, *, run_id: str) -> CloudSweep:
    """Look for what a run has that can carry no tag, so that no look for all runs finds it; errors become problems."""
    every = [(bought, of_provider(scopes, provider)) for provider, bought in providers.every()]
    return _together([look for bought, mine in every for look in bought.untagged(mine, run_id=run_id)])


def remove_from(
    resources: Iterable[LiveResource], *, folder: RunFolder | None = None, poll_s: float = 5.0
) -> tuple[str, ...]:
    """Delete what a sweep found, compute first and buckets last; return what failed. `folder`: of a run of here."""
    by_provider: dict[str, list[LiveResource]] = defaultdict(list)
    for resource in resources:
        by_provider[resource.provider].append(resource)
    problems: list[str] = []
    for provider, mine in by_provider.items():
        problems += providers.of(provider).remove(mine, folder=folder, poll_s=poll_s)
    return tuple(problems)


def _together(looks: Iterable[Look]) -> CloudSweep:
    found: list[LiveResource] = []
    problems: list[str] = []
    for look in looks:
        try:
            swept = look()
        except ProvisionError as error:
            problems.append(str(error))
            continue
        found += swept.found
        problems += swept.problems
    return CloudSweep(found=tuple(found), problems=tuple(problems))
