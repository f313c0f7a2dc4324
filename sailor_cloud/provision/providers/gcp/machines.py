"""HCL settings of Google Cloud instance types besides their row in pricing/machines.csv."""

from __future__ import annotations

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


def image_for(chosen: str | None) -> str:
    """Return the image of nodes; an image of AWS in the job is meant for other nodes."""
    return DEFAULT_GCP_IMAGE if chosen is None or chosen.startswith(("ami-", "/")) else chosen


def is_attached(instance_type: str) -> bool:
    """Whether accelerators are attached, not part of the instance type."""
    return instance_type.startswith("n1-")
