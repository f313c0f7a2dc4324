"""Markets on which instances are sold, and the precisions that their accelerators compute in."""

from __future__ import annotations

from enum import StrEnum


class Market(StrEnum):
    """How instances are sold. All but the first two have `Terms`, and their offers come from a job's `capacity`.

    `reservation`: an On-Demand Capacity Reservation of AWS, or a reservation of Compute Engine. `capacity-block`: AWS,
    with a fixed start and end, paid for as a whole. `flex-start`: Compute Engine's queue, for seven days at most.
    """

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVATION = "reservation"
    CAPACITY_BLOCK = "capacity-block"
    FLEX_START = "flex-start"

    @classmethod
    def _missing_(cls, value: object) -> Market | None:
        # As AWS and Google Cloud write them.
        return {"capacity_block": cls.CAPACITY_BLOCK, "FLEX_START": cls.FLEX_START}.get(str(value))

    @property
    def has_terms(self) -> bool:
        return self not in (Market.ON_DEMAND, Market.SPOT)

    @property
    def quota(self) -> Market | None:
        """The market whose quotas apply to its purchases; None for blocks, which EC2 limits separately.

        A reservation counts as its nodes would on demand (docs.aws.amazon.com, EC2 "On-Demand Capacity Reservations"),
        and flex-start uses the quotas of preemptible VMs (docs.cloud.google.com, "Use Dynamic Workload Scheduler");
        both looked up 2026-11-24.
        """
        if self is Market.CAPACITY_BLOCK:
            return None
        return {Market.RESERVATION: Market.ON_DEMAND, Market.FLEX_START: Market.SPOT}.get(self, self)


class Precision(StrEnum):
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
