"""What a plan is judged against: the job, the offers, and the data that time, memory and money come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Accelerator, Offer
from sailor_cloud.network import Link, Network, Place
from sailor_cloud.workload import Attention, ComputeProfiles


class Transfers(StrEnum):
    """Who waits while a tensor travels between stages: both ends, the receiver, or nobody (posted ahead)."""

    BLOCKING = "blocking"
    RECEIVER = "receiver"
    OVERLAPPED = "overlapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How the training program behaves where programs differ; the defaults are sailor_runtime's.

    It sends a tensor as soon as it is computed and has a receive per direction posted ahead. Its buckets hold 16 MiB
    per rank; ranks of a stage side by side and layers with larger matrices make that 64 MiB. `split_transfers`:
    tensor-parallel senders send one slice each instead of every receiver taking the whole tensor. `overlap_sync`:
    gradients are reduced, bucket by bucket, while the last backward pass of a stage runs. A reduction message has at
    most `bucket_bytes`.
    """

    transfers: Transfers = Transfers.OVERLAPPED
    split_transfers: bool = False
    overlap_sync: bool = True
    bucket_bytes: float = 4.0 * 16 * 2**20
    attention: Attention = Attention.FLASH


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything but the plan. `as_of` judges the age of prices."""

    job: Job
    decoder: Decoder
    offers: Mapping[str, Offer]
    catalog: Catalog
    network: Network
    profiles: ComputeProfiles
    as_of: datetime
    execution: Execution = field(default_factory=Execution)

    def offer(self, offer_id: str) -> Offer:
        """Return an offer by id. Raises RequestError for one that is not among the scenario's."""
        offer = self.offers.get(offer_id)
        if offer is None:
            raise RequestError([Problem(path="plan.nodes", message=f"names unknown offer {offer_id!r}")])
        return offer

    def link(self, src: Place, dst: Place, *, pairs: int, flows: int = 1) -> Link:
        """Return the link between two places as training sees it: between nodes slower than in a link test.

        `flows` such transfers share the network card of either node.
        """
        link = self.network.link(src, dst, pairs=pairs, flows=flows)
        if src.node is not None and src.node == dst.node:
            return link
        slowdown = max(self.profiles.stack(place.accelerator).transfer_slowdown for place in (src, dst))
        return link if slowdown == 1.0 else link.scaled(1.0 / slowdown)

    def accelerator(self, offer_id: str) -> Accelerator:
        return self.catalog.accelerator(self.offer(offer_id).accelerator)


def place_of(offer: Offer, node: str | None) -> Place:
    """Return where a device of a node stands in the network."""
    return Place(zone=offer.zone, node=node, accelerator=offer.accelerator, instance_type=offer.instance_type)
