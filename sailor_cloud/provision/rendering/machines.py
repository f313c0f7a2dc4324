"""What instance types need of the HCL: accelerators to attach, images, network cards, neighbours."""

from __future__ import annotations

from sailor_cloud.model.offer import Offer, Provider

# N1 machines take these; all other types that carry accelerators have them built in
# (cloud.google.com/compute/docs/gpus).
ATTACHABLE = {
    "V100-16": "nvidia-tesla-v100",
    "T4-16": "nvidia-tesla-t4",
    "P100-16": "nvidia-tesla-p100",
    "P4-8": "nvidia-tesla-p4",
}
# Series with accelerators that may be placed compactly
# (cloud.google.com/compute/docs/instances/placement-policies-overview).
_COMPACT_SERIES = ("a2-", "a3-", "a4-", "g2-")

# CUDA and a driver new enough for the wheels of launch/fleet/software.py that still runs Volta (580 is the last branch
# that does); listed at cloud.google.com/deep-learning-vm/docs/images (looked up 2026-11-23).
DEFAULT_GCP_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
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


def is_attached(offer: Offer) -> bool:
    """Tell whether the accelerators are no part of the instance type."""
    return offer.provider is Provider.GCP and offer.instance_type.startswith("n1-")


def may_be_compact(offer: Offer) -> bool:
    """Tell whether instances of the type can be placed close together. On AWS all types with accelerators can."""
    return offer.provider is Provider.AWS or offer.instance_type.startswith(_COMPACT_SERIES)


def efa_cards(instance_type: str) -> list[int]:
    """Return the network cards of an AWS type that carry EFA, none for most."""
    beside = _EFA_BESIDE_CARD_0.get(instance_type, 0)
    return list(range(1, beside + 1)) if beside else list(range(_EFA_CARDS.get(instance_type, 0)))


def default_image(offer: Offer) -> str | None:
    """Return the image for a type, on AWS the name of a public parameter that holds it; None where there is none."""
    if offer.provider is Provider.GCP:
        return DEFAULT_GCP_IMAGE
    family = offer.instance_type.partition(".")[0]
    if family in _WITHOUT_DEFAULT_IMAGE:
        return None
    return _DEFAULT_AWS_IMAGE.format("arm64" if family in _ARM_FAMILIES else "x86_64")
