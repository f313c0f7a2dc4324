"""The artifact's own cases, with what its planner finds on them and what a long blind search found.

Figures of the planner: its simulator's iterations per second and USD per iteration (SOSP'25 artifact, commit cf2c8e3,
run in 2026-11). Figures of the blind search: half an hour over all cases, by the same formulas; not proven.
"""

from __future__ import annotations

from dataclasses import dataclass

A, V, G = "A100-40", "V100-16", "GH-96"
CENTRAL = "us-central1-a"
TWO = (CENTRAL, "us-central1-b")
FIVE = (*TWO, "us-central1-c", "us-central1-f", "us-west1-b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Devices by GPU and zone; at most `budget` USD per iteration; with `least_rate` iterations/s it minimises cost.

    sailor and blind: iterations/s, or USD per iteration where cost is minimised; None where there is no figure.
    """

    name: str
    devices: dict[tuple[str, str], int]
    sailor: float | None
    blind: float | None = None
    budget: float | None = None
    least_rate: float | None = None
    within: float = 0.001

    @property
    def cheapest(self) -> bool:
        return self.least_rate is not None

    @property
    def mixed(self) -> bool:
        return len({gpu for gpu, _ in self.devices}) > 1


def _all(count: int, zones: tuple[str, ...], *gpus: str) -> dict[tuple[str, str], int]:
    return {(gpu, zone): count for gpu in gpus for zone in zones}


def _mixed(fast: int, slow: int) -> dict[tuple[str, str], int]:
    return {(A, CENTRAL): fast, (V, CENTRAL): slow}


_PAIR = _all(128, TWO, A, V)

CASES = (
    Case(name="32 A100", devices=_all(32, (CENTRAL,), A), sailor=0.1251, blind=0.1297),
    Case(name="80 A100", devices=_all(80, (CENTRAL,), A), sailor=0.2722, blind=0.2722),
    Case(name="128 A100", devices=_all(128, (CENTRAL,), A), sailor=0.4175, blind=0.4175),
    Case(name="32 A100 + 96 V100", devices=_mixed(32, 96), sailor=0.1700, blind=0.2015),
    Case(name="80 A100 + 240 V100", devices=_mixed(80, 240), sailor=0.3609, blind=0.4117),
    Case(name="128 A100 + 384 V100", devices=_mixed(128, 384), sailor=0.5229, blind=0.5862),
    Case(name="5 zones x 32 A100", devices=_all(32, FIVE, A), sailor=0.4149, blind=0.4153, within=0.01),
    Case(name="5 zones x 80 A100", devices=_all(80, FIVE, A), sailor=0.7278, blind=0.7431, within=0.01),
    # Sailor's 1.0198 iterations/s take 132 devices of a zone that has 128.
    Case(name="5 zones x 128 A100", devices=_all(128, FIVE, A), sailor=1.0198, blind=1.0293, within=0.01),
    Case(name="2 zones x (128 A100 + 128 V100)", devices=_PAIR, sailor=0.6629, blind=0.7224),
    Case(name="same, at least 0.2 it/s", devices=_PAIR, sailor=0.2779, least_rate=0.2, within=0.01),
    Case(name="same, at least 0.4 it/s", devices=_PAIR, sailor=0.3145, blind=0.3128, least_rate=0.4, within=0.01),
    Case(name="same, at least 0.66 it/s", devices=_PAIR, sailor=None, least_rate=0.66, within=0.01),
    Case(name="same, at least 0.7 it/s", devices=_PAIR, sailor=None, least_rate=0.7, within=0.01),
    Case(name="same, at least 0.8 it/s", devices=_PAIR, sailor=None, least_rate=0.8, within=0.01),
    Case(name="same, at most 1.2 USD", devices=_PAIR, sailor=0.6629, blind=0.7210, budget=1.2, within=0.01),
    Case(name="same, at most 0.4 USD", devices=_PAIR, sailor=0.4153, budget=0.4, within=0.01),
    Case(name="same, at most 0.3 USD", devices=_PAIR, sailor=0.2350, blind=0.3013, budget=0.3, within=0.01),
    Case(name="512 A100 + 512 V100", devices=_mixed(512, 512), sailor=0.851),
    Case(name="32 A100 + 32 V100 + 32 GH", devices=_all(32, (CENTRAL,), A, V, G), sailor=None),
)
