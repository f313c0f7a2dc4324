"""What instance types of AWS need of the HCL: images and network cards."""

from __future__ import annotations

# AWS's own Deep Learning AMI with NVIDIA's open driver: public parameters that hold the newest image of each region
# (docs.aws.amazon.com/dlami/latest/devguide, and public repositories; looked up 2026-11-21).
_DEFAULT_AWS_IMAGE = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
_ARM_FAMILIES = ("g5g",)
# NVIDIA's open driver begins with Turing, and g4ad has no NVIDIA device at all; these need an image of the user's.
_WITHOUT_DEFAULT_IMAGE = ("p2", "p3", "p3dn", "g3", "g3s", "g4ad")

# How many network cards carry EFA, by type, counted from card 0. From DescribeInstanceTypes (NetworkInfo.EfaInfo), as
# moto 5.2.5 carries it; p6-b300 has a card 0 without EFA beside its 16.
_EFA_CARDS = {
    **dict.fromkeys(("g4dn.8xlarge", "g4dn.12xlarge", "g4dn.16xlarge", "g4dn.metal", "gr6.8xlarge"), 1),
    **{f"{family}.{size}xlarge": 1 for family in ("g5", "g6") for size in (8, 12, 16, 24, 48)},
    **{f"g6e.{size}xlarge": cards for size, cards in ((8, 1), (12, 1), (16, 1), (24, 2), (48, 4))},
    **{f"g7e.{size}xlarge": cards for size, cards in ((8, 1), (12, 1), (24, 2), (48, 4))},
    "p3dn.24xlarge": 1,
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.4xlarge": 1,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
}
_EFA_BESIDE_CARD_0 = {"p6-b300.48xlarge": 16}


def efa_cards(instance_type: str) -> list[int]:
    """Return the network cards of an AWS type that carry EFA, none for most."""
    beside = _EFA_BESIDE_CARD_0.get(instance_type, 0)
    return list(range(1, beside + 1)) if beside else list(range(_EFA_CARDS.get(instance_type, 0)))


def default_image(instance_type: str) -> str | None:
    """Return the name of a public parameter that holds the image for a type; None where AWS has none with drivers."""
    family = instance_type.partition(".")[0]
    if family in _WITHOUT_DEFAULT_IMAGE:
        return None
    return _DEFAULT_AWS_IMAGE.format("arm64" if family in _ARM_FAMILIES else "x86_64")
