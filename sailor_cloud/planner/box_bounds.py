"""What no iteration undercuts whose plan has a pipeline of a box that is worth its devices.

Stages are not busy longer with a sample than the pipeline's bottleneck, and their gradients are summed within the time
of the sums: over a network card, unless a node holds all replicas of a layer. It is then a home of that layer, and
every pipeline passes it. Cuts between nodes take their time, too. What stages cost at least at some prices is found by
going through the blocks of layers once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound_boxes import PIPELINES, Boxes
from sailor_cloud.planner.fastest_links import FastestLinks
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.stage_floors import StageFloors

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices that are all right to ask; the best answer is the bound. The part of filling a pipeline that is counted, none
# where devices are charged by the time that stages and cuts need; the part of the batch that devices are worth, all of
# it, since with a part for pipelines boxes could speak of different pipelines of one plan; the part of a device's price
# that is charged by the time that stages and cuts need of it; the parts of cuts between nodes that are counted by how
# many devices a node has, by what a node may sum, and by the room that other pipelines leave in a home; the price of
# another home that all pipelines pass, in devices; and whether sums count in longer pipelines, beside the microbatches
# that are left then.
CHOICES = np.array(
    [
        (1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
        (1.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.5, 0.0),
        (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.5, 0.0),
        (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0),
        (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 4.0, 0.0),
        (0.0, 1.0, 1.0, 0.5, 0.25, 0.0, 0.25, 0.0),
        (0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0),
        (1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0),
        (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
        (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0),
        (0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 0.5, 1.0),
    ]
)
# How many of them are asked of a box that was part of another, those that were best there.
_ASKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Prices of devices, samples that a device must carry, by kind of stage; all devices offered are worth the batch.

    home_devices: the most that a node has.
    """

    each: Floats
    home_devices: int


@dataclass(slots=True)
class BoxBounds:
    """Bounds boxes of a space.

    rates: bytes per second that a ring's step does not exceed, shape [PIPELINES, kinds]. cards: the same of all that
    goes over a node's card, shape [kinds]. tensor_rates: of a tensor from node to node, shape [sizes]. ranges: seconds
    of a sample, the least of the sizes from one to another, shape [kinds, 4, blocks + 1, 2 * sizes * sizes].
    node_devices: the most that a node has, shape [kinds]. longest_s: the longest that a stage is busy with a sample.
    """

    space: Space
    floors: StageFloors = field(init=False)
    links: FastestLinks = field(init=False)
    rates: Floats = field(init=False)
    cards: Floats = field(init=False)
    tensor_rates: Floats = field(init=False)
    ranges: Floats = field(init=False)
    node_devices: Floats = field(init=False)
    longest_s: float = field(init=False)

    def __post_init__(self) -> None:
        space = self.space
        self.floors, self.links = StageFloors.of(space), FastestLinks.of(space)
        floors, engine = self.floors, space.scenario.engine
        kinds = list(zip(floors.accelerators, floors.tp.astype(int).tolist(), strict=True))
        self.rates = np.array(
            [[self.links.sum_rate(*kind, max(2, p), engine.bucket_bytes) for kind in kinds] for p in PIPELINES]
        )
        cards, evenness = self.links.cards, self.links.evenness
        self.cards = np.array([cards.get(name, math.inf) / evenness for name in floors.accelerators])
        tensors = [size * floors.tensor_bytes for size in floors.sizes]
        self.tensor_rates = np.array([self.links.tensor_rate(nbytes) for nbytes in tensors])
        ranges = np.full((2, len(floors.sizes), *floors.seconds.shape[1:]), np.inf)
        for first in range(len(floors.sizes)):
            ranges[:, first, first:] = np.minimum.accumulate(floors.seconds[:, first:], axis=1)
        self.ranges = np.ascontiguousarray(np.moveaxis(ranges.reshape(-1, *ranges.shape[3:]), 0, -1))
        most = {
            name: max(pool.devices for pool in space.pools if pool.accelerator.name == name)
            for name in set(floors.accelerators)
        }
        self.node_devices = np.array([most[name] for name in floors.accelerators], dtype=np.float64)

        finite = floors.seconds[np.isfinite(floors.seconds)]
        self.longest_s = float(finite.max(initial=0.0)) * (1.0 + 1e-9)

    def bounds(self, boxes: Boxes, worth: Worth, choices: Ints) -> tuple[Floats, Ints]:
        """Return seconds that no iteration with a pipeline of each box undercuts, and the choices that were best.

        choices: shape [boxes, choices].
        """
        number, asked = choices.shape
        rows = np.repeat(np.arange(number), asked)
        found = _Asked(self, boxes[rows], worth).bounds(CHOICES[choices.ravel()].T).reshape(number, asked)
        order = np.argsort(-found, axis=1, kind="stable")[:, :_ASKED]
        return found.max(axis=1), np.take_along_axis(choices, order, axis=1)


class _Asked:
    """Boxes, and what of them does not depend on the choice of prices; the last axis of arrays is that of the boxes."""

    def __init__(self, known: BoxBounds, boxes: Boxes, worth: Worth) -> None:
        self.known, self.boxes, self.worth = known, boxes, worth
        floors, links = known.floors, known.links
        sizes, counts = np.array([0, *floors.sizes]), np.array([*PIPELINES, 10**9])
        self.least, most = sizes[boxes.size] + 1.0, sizes[boxes.size_end + 1]
        self.alike, self.one = counts[boxes.pipelines], boxes.pipelines_end == 0
        batch = float(known.space.batch)
        self.pipelines = np.minimum(counts[boxes.pipelines_end + 1] - 1, batch)
        # Seconds of sums for each byte that is held, once.
        self.summed = np.where(self.one, np.inf, boxes.sums_end / (2.0 - 2.0 / np.maximum(self.alike, 2)))
        number = len(floors.sizes)
        self.sizes_at, self.most = boxes.size * number + boxes.size_end, most
        # When sums begin, each stage has one microbatch left at most; the last size stands for all larger ones.
        self.hidden_s = boxes.bottleneck_end * np.where(boxes.size_end == number - 1, batch, most)
        self.late_sums_s = np.where(self.one, 0.0, np.maximum(0.0, boxes.sums - self.hidden_s))
        # A tensor from node to node and back: of the least microbatch, and per sample.
        rate = known.tensor_rates[boxes.size_end]
        self.cut_s = 2.0 * (links.late_s + self.least * floors.tensor_bytes / rate)
        self.steady_s = 2.0 * (links.late_s / most + floors.tensor_bytes / rate)

    def bounds(self, choice: Floats) -> Floats:
        """Return the bounds of the boxes for one choice of prices each; shape [parameters, boxes]."""
        fill, devices, slots, by_devices, by_sums, by_room, homes, sums = choice
        boxes, floors, known = self.boxes, self.known.floors, self.known
        price = self.worth.each[:, None] * devices
        cheapest = price.min(axis=0)
        slot, tp = slots * cheapest, floors.tp[:, None]
        cut_s = fill * self.cut_s + slot * self.steady_s
        homes = np.where(self.one, 0.0, homes * cheapest)
        by_pipelines = (1.0 - devices) * known.space.batch / self.pipelines
        each = boxes.bottleneck * price * tp - slot * boxes.bottleneck_end
        each += by_devices * cut_s * tp / known.node_devices[:, None]
        # Every pipeline has a stage in each home.
        barred = ~self.one & (self.alike > self.worth.home_devices)
        room = np.maximum(self.worth.home_devices - self.alike + 1, 1)
        by_room = np.where(self.one, 0.0, by_room)
        home = boxes.bottleneck * homes * self.alike / self.worth.home_devices + by_room * cut_s / room
        home = np.where(barred, np.inf, home) * tp
        # Several microbatches are under way where more samples are due than one holds.
        several = (homes == 0.0) & (2.0 * cheapest + by_pipelines > self.most)
        # Of a stage beside the bottleneck, its way counts but for half of what the bottleneck does meanwhile.
        meanwhile = 0.5 * fill * self.least * boxes.bottleneck_end
        each -= meanwhile + self.hidden_s * sums
        cost = self._stages_s(several)
        cost *= np.maximum(fill * self.least + slot, 1e-300)
        cost += each[:, None, None]
        cost += self._elsewhere(by_sums * cut_s, home)
        chains, alone = through(cost.min(axis=0))
        # The sums of a pipeline of one stage begin with its last backward pass.
        seconds = np.minimum(chains, alone + self.late_sums_s * (sums == 0.0))
        seconds += meanwhile + boxes.sums * np.where(self.one, 0.0, sums)
        seconds -= (by_devices + by_sums + by_room) * cut_s + homes * boxes.bottleneck_end
        seconds += boxes.bottleneck * (by_pipelines - fill * self.least)
        # Cuts may hold a pipeline up longer than any stage does.
        seconds[(slots > 0.0) & (boxes.bottleneck_end >= known.longest_s)] = 0.0
        # What passes homes must not be worth more than the cuts that it takes.
        seconds[(1.0 - by_devices - by_sums - by_room) * cut_s < homes * boxes.bottleneck_end] = 0.0
        # A microbatch takes as long as the bottleneck at least.
        seconds = np.maximum(seconds, boxes.bottleneck * self.least)
        return np.asarray(seconds + floors.least_update_s)

    def _stages_s(self, several: NDArray[np.bool_]) -> Floats:
        """Return the seconds of a sample of every stage, infinite beyond the bottleneck."""
        number = len(self.known.floors.sizes)
        seconds = np.take(self.known.ranges, several * number * number + self.sizes_at, axis=-1)
        np.copyto(seconds, np.inf, where=seconds > self.boxes.bottleneck_end * (1.0 + 1e-12))
        return seconds

    def _elsewhere(self, cut_s: Floats, home: Floats) -> Floats:
        """Return what comes on top of a stage where nodes sum its gradients, or a home holds all replicas of it.

        cut_s: of a cut that comes of as much as a node may sum, shape [boxes]; home: shape [kinds, boxes].
        """
        known, nbytes = self.known, self.known.floors.nbytes[:, :, None]
        with np.errstate(invalid="ignore"):
            limit = np.nan_to_num(self.summed * known.rates[self.boxes.pipelines].T, nan=0.0, posinf=np.inf)
            share = np.nan_to_num(cut_s / (self.summed * known.cards[:, None]), posinf=0.0)
        limit *= 1.0 + 1e-12
        found = np.empty((len(limit), *nbytes.shape[:2], len(cut_s)))
        for kind in range(len(limit)):
            np.multiply(nbytes, share[kind], out=found[kind])
            np.copyto(found[kind], np.inf, where=nbytes > limit[kind])
            np.minimum(found[kind], home[kind], out=found[kind])
        return found


def through(stages: Floats) -> tuple[Floats, Floats]:
    """Return the least sum over several stages that follow one another through all blocks, and that of one alone.

    stages: shape [4, blocks + 1, boxes].
    """
    middle, first, last, whole = stages
    blocks = len(first) - 1
    for count in range(1, blocks + 1):
        before = (first[:count] + middle[count:0:-1]).min(axis=0)
        np.minimum(first[count], before, out=first[count])
    return np.asarray((first + last[::-1]).min(axis=0)), np.asarray(whole[blocks])
