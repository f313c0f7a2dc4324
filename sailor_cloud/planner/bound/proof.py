"""Raises the bound on the iteration time: a time is refuted once no set of pipelines does the batch within it.

The plans are split into branches by the ZeRO stage and the number of pipelines. In each, a linear programme chooses
pipelines by their samples and the price of their devices. Column generation adds what the pricing problem finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.planner.bound.bounds import device_seconds, least_fixed_s
from sailor_cloud.planner.bound.pipelines import Box, Count, Sizes, boxes, kinds_of
from sailor_cloud.planner.bound.programme import Solution, linear
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.restrictions import zero_stages
from sailor_cloud.planner.space.space import Space

# How much more units than would be of use are looked at: pipelines with fewer samples need no other look then.
_MORE = 1.25
# The share of the distance to the known time by which a branch is raised at once, and the gap at which it is closed.
_RAISED, _CLOSED = 2.0 / 3.0, 5e-4
# The share of the batch that pipelines are worth beside their units, at first.
_FIRST = 0.2
_ROUNDED = 1e-9
# How far prices may be off the speeds, relatively, and the most that the slowest device costs: work grows with prices.
_PRICED, _FINEST = 0.03, 5


@dataclass(slots=True)
class Branch:
    """Plans with a ZeRO stage and so many pipelines.

    `units`: the price of a device of each accelerator, a whole number; all devices have `all_units`. `columns`: units
    and samples of pipelines met so far, and the least time in which they were met. No plan takes `refuted_s`; that none
    takes `open_s` could not be shown.
    """

    space: Space
    count: Count
    units: Mapping[str, int]
    all_units: int
    columns: dict[tuple[int, int], float] = field(default_factory=dict)
    refuted_s: float = 0.0
    open_s: float = math.inf
    _boxes: list[Box] = field(default_factory=list)

    @property
    def name(self) -> str:
        zero = f", ZeRO-{self.space.zero_stage}" if self.space.zero_stage else ""
        return f"{self.count.least} to {self.count.most} pipelines{zero}"

    def __post_init__(self) -> None:
        kinds = kinds_of(self.space, self.count, self.units)
        sizes = Sizes(self.space, self.count, kinds)
        self._boxes = list(boxes(sizes, self.space.batch))
        self.columns[min(kind.units for kind in kinds), 0] = 0.0

    def raised(self, known_s: float) -> bool:
        """Try a higher time; return whether one is left to try below that of a known plan."""
        above = min(self.open_s, known_s)
        if above - self.refuted_s <= _CLOSED * known_s:
            return False
        share = _RAISED if self.open_s > known_s else 0.5
        seconds = self.refuted_s + share * (above - self.refuted_s)
        if self.refutes(seconds):
            self.refuted_s = seconds
        else:
            self.open_s = seconds
        return True

    def halves(self) -> tuple[Branch, Branch]:
        """Return the branches of the smaller and of the larger numbers of pipelines."""
        least, most = self.count
        middle = (least + most) // 2
        low, high = (
            Branch(self.space, count, self.units, self.all_units, refuted_s=self.refuted_s)
            for count in (Count(least, middle), Count(middle + 1, most))
        )
        return low, high

    def refutes(self, seconds: float) -> bool:
        """Return whether no plan of the branch takes so little; False where this is not known."""
        batch = self.space.batch
        while True:
            columns = sorted(column for column, least_s in self.columns.items() if least_s <= seconds)
            if len(columns) == 1:
                # At first as if every unit did its share of the batch.
                unit = (1.0 - _FIRST) * batch / self.all_units
            else:
                solved = self._solved(columns)
                if -solved.cost >= batch * (1.0 - _ROUNDED):
                    return False
                unit = float(solved.prices[0])
            left = batch - unit * self.all_units
            found = self._better(seconds, unit, min(left / number for number in self.count) - _ROUNDED * batch)
            if found is None:
                return True
            self.columns[found] = seconds

    def _solved(self, columns: Sequence[tuple[int, int]]) -> Solution:
        """Return the most samples that the columns do together, as a cost below 0."""
        units, samples = np.array(columns, dtype=np.float64).T
        ones = np.ones(len(units))
        limits = np.array([self.all_units, self.count.most, -self.count.least], dtype=np.float64)
        solved = linear(-samples, np.stack([units, ones, -ones]), limits)
        assert solved is not None, "the cheapest stages without samples are a solution"
        return solved

    def _better(self, seconds: float, unit: float, worth: float) -> tuple[int, int] | None:
        """Return the units and samples of the pipeline that is worth most beyond its units; None below `worth`."""
        best = None
        most = self.all_units - (self.count.least - 1) * min(units for units, _ in self.columns)
        work = list(reversed(self._boxes))
        while work:
            self.space.known.deadline.check()
            box = work.pop()
            # A pipeline with so many units, all of them at work all the time.
            if seconds / box.unit_s() <= unit and worth >= 0.0:
                continue
            found = self._in_box(box, seconds, unit, worth, most)
            if found is None:
                continue
            if box.least < box.most:
                work += reversed(box.halves())
                continue
            best, worth = found, found[1] - unit * found[0]
        return best

    def _in_box(self, box: Box, seconds: float, unit: float, worth: float, most: int) -> tuple[int, int] | None:
        """Return the best pipeline of a box of one size, or that a box of several may have one; None below `worth`."""
        batch, step = self.space.batch, box.least if box.least == box.most else 1
        last = batch - (self.count.least - 1)
        samples = batch if self.count.most == 1 else max(box.least, step)
        best = None
        while samples <= last:
            of_use = most if unit <= 0.0 else min(most, math.floor((samples - worth) / unit))
            if of_use < 1:
                samples = _next(samples, worth + unit, step)
                continue
            limit = min(most, math.ceil(of_use * _MORE))
            units = box.floor_units(samples, seconds, limit)
            if units <= of_use:
                units = box.least_units(samples, seconds, limit)
            if units > most:
                break
            if samples - unit * units > worth:
                best, worth = (units, samples), samples - unit * units
                if box.least < box.most:
                    break
            samples = _next(samples, unit * units + worth, step)
        return best


def _next(samples: int, above: float, step: int) -> int:
    """Return the next number of samples of a pipeline, a multiple of `step`, that may be above something."""
    return max(samples + step, math.floor(above / step + 1.0) * step)


def proven_bound(space: Space, target: Target, known_s: float, bound: float) -> float:
    """Return the bound on a goal of time, raised as far as a deadline allows; `known_s`: an iteration of a plan."""
    steps = space.scenario.job.training.steps
    match target.goal:
        case Figure.ITERATION_S:
            return max(bound, proven_s(space, known_s, bound)[0])
        case Figure.DURATION_S if steps is not None:
            fixed_s = least_fixed_s(space)
            return max(bound, steps * proven_s(space, known_s, (bound - fixed_s) / steps)[0] + fixed_s)
    return bound


def proven_s(space: Space, known_s: float, at_least_s: float) -> tuple[float, str]:
    """Return seconds that no iteration undercuts, and which branch has them; `known_s`: of the best plan known.

    The weakest branch is raised, and halved where it can't be, until no time is left, until a branch of one number of
    pipelines can't be raised, or until somebody presses Ctrl-C.
    """
    weakest: Branch | None = None
    try:
        stages = (space.at(stage) for stage in zero_stages(space))
        every = [branch for there in stages for branch in branches(there, prices(there))]
        for branch in every:
            branch.refuted_s = at_least_s
        while True:
            weakest = min(every, key=lambda branch: branch.refuted_s)
            if weakest.raised(known_s):
                continue
            if weakest.open_s > known_s or weakest.count.least == weakest.count.most:
                break
            every.remove(weakest)
            every += weakest.halves()
    except (OutOfTimeError, KeyboardInterrupt):
        # The plan is there already, and so is what has been proven.
        pass
    return (at_least_s, "") if weakest is None else (weakest.refuted_s, weakest.name)


def branches(space: Space, units: Mapping[str, int]) -> Iterator[Branch]:
    """Yield the branches of a space at its ZeRO stage; together they hold all plans."""
    rows = {pool.row: pool.accelerator.name for pool in space.pools}
    devices = {row: space.candidates.rows[row].devices for row in rows}
    everything = sum(units[name] * devices[row] for row, name in rows.items())
    most = min(space.batch, sum(devices.values()))
    least = 1
    while least <= most:
        # Numbers up to a power of two: a node that a ring fits in has a power of two of devices.
        end = min(most, 1 << (least - 1).bit_length()) if least > 2 else least
        yield Branch(space, Count(least, end), units, everything)
        least = end + 1


def prices(space: Space) -> dict[str, int]:
    """Return a price for a device of each accelerator, in whole numbers nearly as its speed.

    Any prices give a bound, but cheap devices stand for more than there are of them.
    """
    speeds = {name: float(1.0 / seconds.sum()) for name, seconds in device_seconds(space).items()}
    slowest = min((speed for speed in speeds.values() if speed > 0.0), default=1.0)
    for factor in range(1, _FINEST + 1):
        exact = {name: factor * speed / slowest for name, speed in speeds.items()}
        found = {name: max(1, round(price)) for name, price in exact.items()}
        if all(abs(found[name] - price) <= _PRICED * price for name, price in exact.items() if price > 0.0):
            break
    return found
