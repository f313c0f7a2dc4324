"""Raises the bound on the iteration time. A time is refuted if no set of pipelines processes the batch within it.

Plans are split into branches by placement, ZeRO stage and number of pipelines. In each branch, a linear program chooses
pipelines by their samples, devices and prices. Column generation adds columns from the pricing problem.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound.bounds import device_seconds, least_fixed_s, spending
from sailor_cloud.planner.bound.columns import Column, Cost, Packing, Taken, Value
from sailor_cloud.planner.bound.pipelines import Box, Count, Sizes, boxes, kinds_of
from sailor_cloud.planner.bound.placements import Placement, Supply, placements
from sailor_cloud.planner.bound.programme import Solution, linear
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.restrictions import zero_stages
from sailor_cloud.planner.space.space import Space

Floats = NDArray[np.float64]

# The rows of a supply's units, and the last two of its devices.
_ROWS = 6
# Pipelines with up to this many times the useful units are checked; those with fewer samples then need no other check.
_MORE = 1.25
# The first is the share of the distance to the known time by which a branch is raised at once. The others are gaps
# relative to that time: at the first a branch is closed, at the second one with several numbers of pipelines is halved.
_RAISED, _CLOSED, _HALVED = 0.3, 5e-4, 0.02
# With more zones, the bound from work alone in each placement takes seconds.
_PLACED_ZONES = 6
# The initial value of a pipeline besides its units, as a share of the batch.
_FIRST = 0.2
_ROUNDED = 1e-9
# The price of a sample that crosses zones in no pipeline, in samples; what one in a pipeline adds is at most 1.
_TOO_DEAR = 10.0
# The factors by which prices are changed where no others help.
_VARIED = 1.07, 0.93, 1.15, 0.87
# The relative error of rounded prices, and the largest price of the cheapest device; work grows with prices.
_PRICED, _FINEST = 0.03, 5
# Pipelines that define the value of a device: their microbatches and their devices. The last is the factor by which a
# time must grow for new prices.
_PRICED_SIZES, _PRICED_DEVICES, _PRICED_AGAIN = (*range(1, 17), 20, 24, 32), (1, 2, 4, 8), 1.02


@dataclass(slots=True)
class Branch:
    """Plans of a placement with a ZeRO stage and a number of pipelines.

    `units`: the price of a device of each accelerator, a whole number; `priced_s`: the last time for which others were
    tried. `columns`: the pipelines so far, and the least time at which they were found. `refuted_s` is refuted for all
    plans; `open_s` could not be refuted. `neighbour`: a branch whose prices are tried first. `exhausted`: whether
    prices near these were tried too.
    """

    placement: Placement
    target: Target
    count: Count
    units: Mapping[str, int]
    refuted_s: float = 0.0
    open_s: float = math.inf
    priced_s: float = 0.0
    neighbour: Branch | None = None
    exhausted: bool = False
    columns: dict[Column, float] = field(default_factory=dict)
    # By whether pipelines cross zones: their boxes, what they take, their devices, and the least units of stages.
    _boxes: dict[bool, list[Box]] = field(default_factory=dict)
    _taken: dict[bool, Taken] = field(default_factory=dict)
    _packings: dict[bool, Packing] = field(default_factory=dict)
    _stages: dict[bool, int] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        return self.placement.space

    @property
    def name(self) -> str:
        zero = f", ZeRO-{self.space.zero_stage}" if self.space.zero_stage else ""
        where = f", {self.placement.name}" if self.placement.name else ""
        return f"{self.count.least} to {self.count.most} pipelines{zero}{where}"

    def raise_to(self, seconds: float) -> None:
        """Try to refute a time above `refuted_s`."""
        if self.refutes(seconds):
            self._raised(seconds)
        else:
            self.open_s = seconds

    def raise_past_open(self) -> bool:
        """Try to refute the least open time with prices near those so far; return whether that succeeds."""
        self.exhausted = True
        cheapest = min(self.units, key=lambda name: self.units[name])
        near = (
            _whole({**self.units, name: self.units[name] * factor})
            for factor in _VARIED
            for name in sorted(self.units)
            if name != cheapest
        )
        if not self._refutes_with([prices(self.space), *near], self.open_s):
            return False
        self._raised(self.open_s)
        return True

    def _raised(self, seconds: float) -> None:
        self.refuted_s, self.exhausted = seconds, False
        if self.open_s <= seconds or spending(self.space, self.target, seconds, seconds):
            # The longer an iteration takes at least, the fewer devices money buys.
            self.open_s = math.inf

    def halves(self) -> tuple[Branch, Branch]:
        """Return the branches of the smaller and of the larger numbers of pipelines."""
        least, most = self.count
        # By ratio, as what members of a ring send depends on their number.
        middle = min(most - 1, math.isqrt(least * most))
        low, high = (
            Branch(self.placement, self.target, count, self.units, self.refuted_s, priced_s=self.priced_s)
            for count in (Count(least, middle), Count(middle + 1, most))
        )
        return low, high

    def refutes(self, seconds: float) -> bool:
        """Return whether no plan of the branch takes from `refuted_s` to `seconds`; False if that is unknown."""
        if not self.priced_s and self.neighbour is not None:
            self.units, self.priced_s = self.neighbour.units, self.neighbour.priced_s
        if not self.priced_s and len(self.units) > 1:
            self.units = prices_within(self.placement, self.count, seconds) or self.units
            self.priced_s = seconds
        if self._refutes(seconds):
            return True
        if seconds <= self.priced_s * _PRICED_AGAIN or len(self.units) == 1:
            return False
        self.priced_s = seconds
        found = prices_within(self.placement, self.count, seconds), prices(self.space)
        return self._refutes_with([units for units in found if units is not None], seconds)

    def _refutes_with(self, others: Sequence[Mapping[str, int]], seconds: float) -> bool:
        """Return whether a time is refuted with one of several other prices, and continue with the first that does."""
        tried = [self.units]
        for units in others:
            if units not in tried:
                tried.append(units)
                other = Branch(self.placement, self.target, self.count, units, self.refuted_s)
                if other._refutes(seconds):
                    self._take(other)
                    return True
        return False

    def _take(self, other: Branch) -> None:
        """Continue with the prices of another branch; columns count in prices."""
        self.units, self.columns = other.units, other.columns
        self._boxes, self._taken = other._boxes, other._taken
        self._packings, self._stages = other._packings, other._stages

    def _refutes(self, seconds: float) -> bool:
        """Return the same as `refutes`, with the prices so far."""
        if not self._boxes:
            self._begin()
        supply = Supply.of(self.placement, self.target, self.units, self.refuted_s, seconds)
        if supply is None:
            return True
        fewest = {crosses: self._fewest(crosses, seconds, supply) for crosses in self._boxes}
        smallest = {
            crosses: [Column(crosses, *each, 1) for each in self._packings[crosses].smallest(units)]
            for crosses, units in fewest.items()
        }
        # Every pipeline takes at least so many units of home, and of all.
        home, every = (min(self._taken[c].of(each[0])[row] for c, each in smallest.items()) for row in (0, 3))
        others = self.count.least - 1
        at_home = supply.at_home() - others * int(home)

        @cache
        def most_across(samples: int) -> int:
            return supply.at_all(samples) - others * int(every)

        most: dict[bool, Callable[[int], int]] = {False: lambda _: at_home, True: most_across}
        if any(units > most[crosses](1) for crosses, units in fewest.items()):
            return True
        self.columns.update((column, seconds) for each in smallest.values() for column in each)
        # At first one pipeline that crosses zones does the whole batch on the fewest devices, which takes no search.
        relaxed = Column(True, fewest[True], 2, self.space.batch) if True in fewest else None
        return self._too_few_samples(supply, seconds, most, relaxed)

    def _too_few_samples(
        self, supply: Supply, seconds: float, most: Mapping[bool, Callable[[int], int]], relaxed: Column | None
    ) -> bool:
        """Return whether no pipelines process the batch in time, by column generation; False if that is unknown.

        `most`: the most units of a pipeline by its samples, by whether it crosses zones. `relaxed`: a column that
        stands for all pipelines that cross zones until it matters.
        """
        batch = self.space.batch
        while True:
            columns = sorted(column for column, least_s in self.columns.items() if least_s <= seconds)
            columns += [relaxed] if relaxed is not None else []
            if not any(column.samples > 1 for column in columns):
                # Initially, as if every unit did its share of the batch.
                row_prices, sample = np.eye(_ROWS)[0] * (1.0 - _FIRST) * batch / supply.at_home(), 1.0
            else:
                solved = self._solved(columns, supply)
                if solved is None:
                    # The smallest pipelines are among the columns, and even these are too many.
                    return True
                if -solved.cost >= batch * (1.0 - _ROUNDED):
                    if relaxed is None:
                        return False
                    relaxed = None
                    continue
                row_prices, sample = solved.prices[:_ROWS], float(solved.prices[_ROWS])
            left = batch - supply.most(row_prices, 1.0 - sample)
            least_value = min(left / number for number in self.count) - _ROUNDED * batch
            value = {
                crosses: Value(sample if crosses else 1.0, *(float(row_prices @ each) for each in taken))
                for crosses, taken in self._taken.items()
            }
            found = [
                column
                for crosses in self._boxes
                if not (crosses and relaxed is not None)
                if (column := self._better(crosses, seconds, value[crosses], least_value, most[crosses])) is not None
            ]
            if not found:
                if relaxed is None or value[True].of(relaxed) <= least_value:
                    return True
                relaxed = None
            elif all(column in columns for column in found):
                # Prices are rounded.
                return False
            self.columns.update(dict.fromkeys(found, seconds))

    def _begin(self) -> None:
        """Create the boxes of pipelines that cross zones and of others."""
        there = self.placement
        home = kinds_of(there, self.count, self.units)
        sizes = Sizes(self.space, self.count, home, crossing=there.every_crosses)
        taken = np.array([[1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0], [0.0] * _ROWS])
        self._enter(False, sizes, Taken(*taken), 2 if there.every_crosses else 1)
        if there.crossing is not None:
            every, away = kinds_of(there, self.count, self.units, crossing=True), set(there.other_pools)
            # They take at least a stage at home and one elsewhere.
            fewest = [min(kind.units for kind in kinds) for kinds in (home, [k for k in every if away & set(k.pools)])]
            sizes = Sizes(self.space, self.count, every, crossing=True)
            taken = np.array(
                [
                    [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
                    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
                    [fewest[0], 0.0, fewest[1], 0.0, 1.0, 0.0],
                ]
            )
            self._enter(True, sizes, Taken(*taken), 2, sum(fewest))

    def _enter(self, crosses: bool, sizes: Sizes, taken: Taken, devices: int, units: int = 0) -> None:
        """Set what pipelines take; they have at least some devices and units."""
        self._boxes[crosses], self._taken[crosses] = list(boxes(sizes, self.space.batch)), taken
        self._packings[crosses] = Packing(tuple({kind.units // kind.tp for kind in sizes.kinds}), devices)
        self._stages[crosses] = max(units, min(kind.units for kind in sizes.kinds))

    def _fewest(self, crosses: bool, seconds: float, supply: Supply) -> int:
        """Return the fewest units that process a sample; more than there are if none do in time."""
        fewest = 1 + (supply.at_all() if crosses else supply.at_home())
        for box in self._boxes[crosses]:
            limit = 0
            while limit < fewest - 1:
                limit = min(max(2 * limit, self._stages[crosses]), fewest - 1)
                if box.floor_units(box.least, seconds, limit) <= limit:
                    found = box.least_units(box.least, seconds, limit)
                    if found <= limit:
                        fewest = found
        return max(fewest, self._stages[crosses])

    def _solved(self, columns: Sequence[Column], supply: Supply) -> Solution | None:
        """Return the most samples that the columns do, as a negative cost; None if they are too many.

        The first prices are those of the rows of `supply.units`, then that of a sample that crosses zones.
        """
        crossing, _, _, samples = np.array(columns, dtype=np.float64).T
        taken = np.array([self._taken[column.crossing].of(column) for column in columns]).T
        ones, none = np.ones(len(columns)), np.zeros((len(supply.limits), len(columns)))
        padding = np.zeros(len(supply.samples))
        # The last column crosses zones at a price that is too high, until there are enough pipelines that do.
        nothing = np.zeros((_ROWS, 1)), np.zeros((len(supply.limits), 1))
        rows = np.block(
            [
                [taken, -supply.units, nothing[0]],
                [-samples * crossing, supply.samples, -1.0],
                [ones, padding, 0.0],
                [-ones, padding, 0.0],
                [none, supply.rows, nothing[1]],
            ],
        )
        limits = np.concatenate([np.zeros(_ROWS + 1), [self.count.most, -self.count.least], supply.limits])
        return linear(np.concatenate([-samples * (1.0 - crossing), -supply.samples, [_TOO_DEAR]]), rows, limits)

    def _better(
        self, crosses: bool, seconds: float, value: Value, least_value: float, most: Callable[[int], int]
    ) -> Column | None:
        """Return the pipeline with the largest value of those that cross zones or not; None below `least_value`.

        `most`: the most units of a pipeline by its samples.
        """
        if value.sample <= 0.0:
            # The smallest pipeline is the best.
            return None
        least_value = (least_value + value.fixed) / value.sample
        fewest = self._packings[crosses].fewest(most(1) + 1)
        cost = Cost(value.unit / value.sample, value.device / value.sample, fewest)
        best = None
        work = list(reversed(self._boxes[crosses]))
        while work:
            self.space.known.deadline.check()
            box = work.pop()
            # An upper bound: a pipeline with that many units, none of them ever idle.
            if seconds / box.unit_s() <= cost.least_per_unit and least_value >= 0.0:
                continue
            found = self._in_box(box, seconds, cost, least_value, most)
            if found is None:
                continue
            if box.least < box.most:
                work += reversed(box.halves())
                continue
            best, least_value = found, found.samples - cost.of(found.units)
        return None if best is None else best._replace(crossing=crosses)

    def _in_box(
        self, box: Box, seconds: float, cost: Cost, least_value: float, most: Callable[[int], int]
    ) -> Column | None:
        """Return the best pipeline of a box with one size, or a possible one in a box with several.

        None if its value is below `least_value`.
        """
        batch, step = self.space.batch, box.least if box.least == box.most else 1
        last = batch - (self.count.least - 1)
        samples = batch if self.count.most == 1 else max(box.least, step)
        best = None
        while samples <= last:
            there = most(samples)
            of_use = min(there, cost.units_for(samples - least_value))
            if there < 1:
                break
            if of_use < 1:
                samples = _next(samples, least_value + cost.of(1), step)
                continue
            limit = min(there, math.ceil(of_use * _MORE))
            units = box.floor_units(samples, seconds, limit)
            if units <= of_use:
                units = box.least_units(samples, seconds, limit)
            if units > there:
                break
            if samples - cost.of(units) > least_value:
                best, least_value = Column(False, *cost.cheapest(units), samples), samples - cost.of(units)
                if box.least < box.most:
                    break
            samples = _next(samples, cost.of(units) + least_value, step)
        return best


def _next(samples: int, above: float, step: int) -> int:
    """Return the next number of samples of a pipeline, a multiple of `step`, that may exceed `above`."""
    return max(samples + step, math.floor(above / step + 1.0) * step)


def proven_bound(
    space: Space, target: Target, known_s: float, bound: float, *, branched: bool = True
) -> tuple[float, str]:
    """Return the bound on a goal of time, and its branch; "" if no branch was raised.

    `known_s`: an iteration of a known plan. If `branched`, the bound is raised until the deadline, else only by money
    and egress.
    """
    steps = space.scenario.job.training.steps
    raised = proven_s if branched else placed_s
    match target.goal:
        case Figure.ITERATION_S:
            found_s, branch = raised(space, target, known_s, bound)
            return max(bound, found_s), branch
        case Figure.DURATION_S if steps is not None:
            fixed_s = least_fixed_s(space)
            found_s, branch = raised(space, target, known_s, (bound - fixed_s) / steps)
            return max(bound, steps * found_s + fixed_s), branch
    return bound, ""


def placed_s(space: Space, target: Target, known_s: float, at_least_s: float) -> tuple[float, str]:
    """Return a lower bound on the seconds of an iteration from work alone in any placement, and no branch.

    Devices of several zones cost egress, which leaves less money for them. `at_least_s` for many zones, and on Ctrl-C.
    """
    least_s, zones = known_s, {pool.offer.zone for pool in space.pools}
    if not spending(space, target, at_least_s, known_s) or len(zones) > _PLACED_ZONES:
        return at_least_s, ""
    try:
        for stage in zero_stages(space):
            there = space.at(stage)
            for placement in placements(there):
                least_s = min(least_s, placement.work_bound_s(target, prices(there), least_s))
                if least_s <= at_least_s:
                    return at_least_s, ""
    except KeyboardInterrupt:
        return at_least_s, ""
    return least_s, ""


def proven_s(space: Space, target: Target, known_s: float, at_least_s: float) -> tuple[float, str]:
    """Return a lower bound on the seconds of an iteration, and its branch; `known_s`: of the best known plan.

    The weakest branch is raised up to the least open time of any branch. Then the branch with that time is halved. The
    loop ends when time is up, when the open branch has a single number of pipelines, or on Ctrl-C.
    """
    every: list[Branch] = []
    try:
        stages = (space.at(stage) for stage in zero_stages(space))
        every = [branch for there in stages for branch in branches(there, target, prices(there), known_s)]
        for branch in every:
            branch.refuted_s = max(branch.refuted_s, at_least_s)
        while True:
            weakest = min(every, key=lambda branch: branch.refuted_s)
            stuck = min(every, key=lambda branch: branch.open_s)
            above = min(stuck.open_s, known_s)
            one = stuck.open_s > known_s or stuck.count.least == stuck.count.most
            closed_s = (_CLOSED if one else _HALVED) * known_s
            if above - weakest.refuted_s > closed_s:
                # Towards the open time, or as high as another branch on the way.
                share = _RAISED if above == known_s else 0.5
                onward = weakest.refuted_s + share * (above - weakest.refuted_s)
                level = max(
                    (each.refuted_s for each in every if each.columns and each.refuted_s <= onward), default=0.0
                )
                weakest.raise_to(level if level - weakest.refuted_s > closed_s else onward)
            elif stuck.open_s > known_s:
                break
            elif stuck.count.least == stuck.count.most:
                if stuck.exhausted or not stuck.raise_past_open():
                    break
            else:
                # In one step, as Ctrl-C may come at any time.
                every = [*(branch for branch in every if branch is not stuck), *stuck.halves()]
    except (OutOfTimeError, KeyboardInterrupt):
        # The plan exists already, and so does the bound so far.
        pass
    if not every:
        return at_least_s, ""
    weakest = min(every, key=lambda branch: branch.refuted_s)
    return weakest.refuted_s, weakest.name


def branches(space: Space, target: Target, units: Mapping[str, int], known_s: float) -> Iterator[Branch]:
    """Yield the branches of a space at its ZeRO stage; together they contain all plans within a target."""
    for placement in placements(space):
        refuted_s = placement.work_bound_s(target, units, known_s)
        rows = {pool.row for pool in placement.space.pools}
        most = min(space.batch, sum(space.candidates.rows[row].devices for row in rows))
        least, neighbour = placement.least_pipelines, None
        while least <= most:
            # Up to a power of two each: a node that holds a whole ring has a power of two of devices.
            end = min(most, 1 << (least - 1).bit_length()) if least > 2 else least
            if placement.crossing is not None:
                end = most
            neighbour = Branch(placement, target, Count(least, end), units, refuted_s, neighbour=neighbour)
            yield neighbour
            least = end + 1


def prices(space: Space) -> dict[str, int]:
    """Return a price for a device of each accelerator: whole numbers roughly proportional to its speed.

    Any prices give a valid bound. Poor prices weaken it, because cheap devices then count as if there were more of
    them.
    """
    return _whole({name: float(1.0 / seconds.sum()) for name, seconds in device_seconds(space).items()})


def prices_within(placement: Placement, count: Count, seconds: float) -> dict[str, int] | None:
    """Return prices roughly proportional to the samples that pipelines of one accelerator process within a time.

    None if some accelerator processes none: then its price is meaningless.
    """
    found = {}
    for name in sorted({pool.accelerator.name for pool in placement.space.pools}):
        kinds = kinds_of(placement, count, {name: 1})
        found[name] = most_per_device(Sizes(placement.space, count, kinds), seconds) if kinds else 0.0
    return _whole(found) if min(found.values()) > 0.0 else None


def most_per_device(sizes: Sizes, seconds: float) -> float:
    """Return the most samples per device that pipelines on a few devices do within a time."""
    best = 0.0
    for size in _PRICED_SIZES:
        sizes.space.known.deadline.check()
        box = Box(sizes, size, size)
        for devices in _PRICED_DEVICES:
            # An upper bound: devices that are never idle do no more.
            most = math.floor(seconds / box.unit_s() * devices / size)
            if most * size > best * devices:
                late = partial(_too_late, box, size, seconds, devices)
                best = max(best, bisect_left(range(1, most + 1), 1, key=late) * size / devices)
    return best


def _too_late(box: Box, size: int, seconds: float, devices: int, microbatches: int) -> bool:
    return box.least_units(microbatches * size, seconds, devices) > devices


def _whole(values: Mapping[str, float]) -> dict[str, int]:
    """Return whole numbers roughly in proportion, at least 1."""
    slowest = min((each for each in values.values() if each > 0.0), default=1.0)
    for factor in range(1, _FINEST + 1):
        exact = {name: factor * each / slowest for name, each in values.items()}
        found = {name: max(1, round(price)) for name, price in exact.items()}
        if all(abs(found[name] - price) <= _PRICED * price for name, price in exact.items() if price > 0.0):
            break
    return found
