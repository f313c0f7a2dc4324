"""The machine on which the local provider's nodes run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMachine:
    """What local nodes share: cores, and the speed of one.

    `speed` is relative to the machine on which the compute profile of CPU-fast was timed; 2.0 is twice as fast.
    """

    cores: Annotated[int, Field(gt=0)]
    speed: Annotated[float, Field(gt=0)]
