"""HCL settings of AWS instance types besides their row in pricing/machines.csv, such as the image."""

from __future__ import annotations

from sailor_cloud.catalog.machine_types import machine_type
from sailor_cloud.model.offer import Offer

# AWS's own Deep Learning AMI with NVIDIA's open driver: public parameters that hold the newest image of each region
# (docs.aws.amazon.com/dlami/latest/devguide, and public repositories; looked up 2026-11-21).
_DEFAULT_AWS_IMAGE = "/aws/service/deeplearning/ami/{}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"

# The branch of its driver, by the release notes of 2026-10-06.
AWS_IMAGE_DRIVER = 595


def efa_cards(offer: Offer) -> list[int]:
    """Return the network cards of a type that carry EFA; empty for most."""
    known = machine_type(offer)
    return [] if known is None else list(known.efa_cards)


def default_image(offer: Offer) -> str | None:
    """Return the public parameter that names a type's image; None if AWS has none with drivers.

    NVIDIA's open driver requires Turing or newer, and some types have no NVIDIA device at all.
    """
    known = machine_type(offer)
    if known is None:
        return _DEFAULT_AWS_IMAGE.format("x86_64")
    return None if known.image == "own" else _DEFAULT_AWS_IMAGE.format(known.image.removeprefix("aws-"))
