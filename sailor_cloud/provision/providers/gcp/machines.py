"""HCL settings of Google Cloud instance types besides their row in pricing/machines.csv."""

from __future__ import annotations

from collections.abc import Collection

from sailor_cloud import catalog
from sailor_cloud.model.offer import BLACKWELL, TURING

# N1 machines take these; all other types with accelerators have them built in (cloud.google.com/compute/docs/gpus).
ATTACHABLE = {
    "V100-16": "nvidia-tesla-v100",
    "T4-16": "nvidia-tesla-t4",
    "P100-16": "nvidia-tesla-p100",
    "P4-8": "nvidia-tesla-p4",
}

# CUDA and a driver new enough for the wheels of launch/fleet/software.py that still runs Volta (580 is the last branch
# that does); listed at cloud.google.com/deep-learning-vm/docs/images (looked up 2026-11-23).
DEFAULT_GCP_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"

# Ubuntu without a driver, for devices that NVIDIA's open kernel modules do not run: the launcher installs the
# proprietary one (launch/fleet/software.py).
IMAGE_WITHOUT_DRIVER = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
# Canonical's Ubuntu with the same branch, for devices that need the open modules: public recipes for A4 and G4 machines
# boot this family (looked up 2026-11-27). Which modules the family above has is not documented.
BLACKWELL_IMAGE = (
    "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
)


def images_for(chosen: str | None, accelerators: Collection[str]) -> dict[str, str]:
    """Return the image of nodes by their accelerator; an image of AWS in the job is meant for other nodes."""
    if chosen is not None and not chosen.startswith(("ami-", "/")):
        return dict.fromkeys(accelerators, chosen)
    known = catalog.load()
    return {name: _image_of(known.accelerator(name).compute_capability) for name in accelerators}


def _image_of(capability: float | None) -> str:
    if capability is None or TURING <= capability < BLACKWELL:
        return DEFAULT_GCP_IMAGE
    return IMAGE_WITHOUT_DRIVER if capability < TURING else BLACKWELL_IMAGE


def is_attached(instance_type: str) -> bool:
    """Whether accelerators are attached, not part of the instance type."""
    return instance_type.startswith("n1-")
