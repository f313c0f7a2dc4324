"""Plans over the whole range of iteration times: for each time the cheapest mix that keeps it."""

from __future__ import annotations

import numpy as np

from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.effort import NORMAL
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.mixing import Mixing
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.promises import Promise
from sailor_cloud.planner.settings import Setting
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import variants

# Times looked at, from about the shortest to so many times it, and how many settings are solved at each.
_TIMES = 40
_SPAN = 40.0
_SOLVED = 1
# By how much time may grow until whole pipelines carry the batch.
_STRETCH = (1.0, 1.08, 1.25)
# Cuts of one set of kinds that are compared at every time.
_CUTS = 4


def spread(space: Space) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the limits; of a space without parts only."""
    if variants(space, ()) != (space,) or narrowed(space) != (space,):
        return []
    search = Mixing(space, Target(goal=Figure.ITERATION_S, limits=()), NORMAL)
    promises = search.ranked()
    if not promises:
        return []
    chosen = _settings(search, promises)
    fastest = promises[0].iteration_s
    drafts = search.improved(search.drafts(promises))
    for seconds in np.geomspace(fastest, fastest * _SPAN, _TIMES):
        priced = []
        for number, setting in enumerate(chosen):
            promise = search.promises.at(setting, float(seconds))
            if promise is not None:
                usd = search.promises.usd_per_hour(promise)
                priced.append((usd, number, promise))
        for _, _, promise in sorted(priced, key=lambda entry: entry[:2])[:_SOLVED]:
            drafts += _first_whole(search, promise)
    return drafts


def _first_whole(search: Mixing, promise: Promise) -> list[Draft]:
    """Return the draft of the shortest time near a promise at which whole pipelines do."""
    for stretch in _STRETCH:
        for fitting in (True, False):
            found = search.whole(promise, promise.iteration_s * stretch, fitting=fitting)
            if found:
                return found
    return []


def _settings(search: Mixing, promises: list[Promise]) -> list[Setting]:
    """Return the best settings, and for every set of kinds some with few and with many stages."""
    found: dict[tuple[tuple[int, ...], frozenset[int]], Setting] = {}
    for promise in promises[:_CUTS]:
        found[promise.setting.cut, promise.setting.members] = promise.setting
    by_members: dict[frozenset[int], list[Setting]] = {}
    for setting in search.settings.every():
        by_members.setdefault(setting.members, []).append(setting)
    for members, settings in by_members.items():
        settings.sort(key=lambda setting: (len(setting.cut), setting.cut))
        for setting in settings[:: max(1, len(settings) // _CUTS)]:
            found.setdefault((setting.cut, members), setting)
    return list(found.values())
