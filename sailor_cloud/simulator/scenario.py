"""The context of a plan: the job, the offers, and the data for time, memory and money."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Accelerator, Hardware, Offer
from sailor_cloud.network import Link, Network, Place
from sailor_cloud.simulator.engine import SAILOR, Engine
from sailor_cloud.workload import ComputeProfiles, layer_costs
from sailor_cloud.workload.features import ELEMENT_BYTES

if TYPE_CHECKING:
    from sailor_cloud.simulator.stage_table import StageTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything except the plan. `as_of` determines the age of prices; `unpriced` are nodes without a price."""

    job: Job
    decoder: Decoder
    offers: Mapping[str, Offer]
    catalog: Catalog
    network: Network
    profiles: ComputeProfiles
    as_of: datetime
    engine: Engine = SAILOR
    unpriced: Mapping[str, Hardware] = field(default_factory=dict)
    # Cached tables of stages, by their distinguishing properties.
    tables: dict[tuple[object, ...], StageTable] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def machine(self) -> LocalMachine | None:
        """The machine whose cores local nodes share."""
        return self.profiles.machine

    def offer(self, offer_id: str) -> Offer:
        """Return an offer by id. Raises RequestError for one that is not in the scenario."""
        offer = self.offers.get(offer_id)
        if offer is None:
            raise RequestError([Problem(path="plan.nodes", message=f"names unknown offer {offer_id!r}")])
        return offer

    def hardware(self, name: str) -> Hardware:
        """Return an offer or a node without a price by id. Raises RequestError for an unknown one."""
        return self.unpriced[name] if name in self.unpriced else self.offer(name)

    def link(self, src: Place, dst: Place, *, pairs: int, flows: int = 1) -> Link:
        """Return the link between two places as measured by a link test.

        `flows` such transfers share the network card of either node. The owner's own runs correct the link.
        """
        link = self.network.link(src, dst, pairs=pairs, flows=flows)
        belief = self.profiles.own.network(src.zone, dst.zone)
        if not belief.runs or (src.node is not None and src.node == dst.node):
            return link
        errors = self.profiles.errors
        return link.scaled(math.exp(-math.hypot(errors.network, errors.half_of(link.error)) * belief.mean))

    def ring_bytes_per_s(self, accelerator: str, devices: int) -> float | None:
        """Return the measured rate of a ring over `devices` of one node; two are a ring, and no other was measured."""
        return self.network.pair_bytes_per_s(accelerator) if devices == 2 else None

    def bucket_bytes(self, zero_stage: int) -> float:
        """Return the bytes of a message between pipelines, of all tensor-parallel shards together.

        Sums have at most so many. With ZeRO-3 it is the mean over the gathers and the scatter of a block.
        """
        engine, training = self.engine, self.job.training
        if zero_stage < 3 or engine.shard_messages is None:
            return engine.bucket_bytes
        blocks = layer_costs(self.decoder, training.sequence_length, 1).trainable[1:-1]
        width, parameters = ELEMENT_BYTES[training.precision], float(blocks.mean())
        if not parameters:
            return engine.bucket_bytes
        return engine.shard_messages.mean_bytes(
            parameters * width, parameters * max(engine.reduce_bytes, width), engine.bucket_bytes
        )

    def stage_link(self, link: Link, *, same_node: bool) -> Link:
        """Return the effective link for tensors between stages: the engine may not saturate one between nodes."""
        return link if same_node else link.at_most(self.engine.pair_bytes_per_s * link.pairs)

    def accelerator(self, offer_id: str) -> Accelerator:
        return self.catalog.accelerator(self.hardware(offer_id).accelerator)


def place_of(hardware: Hardware, node: str | None) -> Place:
    """Return the place of a node's device in the network."""
    return Place(zone=hardware.zone, node=node, accelerator=hardware.accelerator, instance_type=hardware.instance_type)
