"""What tests with a real Terraform share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sailor_cloud.testing.mock_cloud import in_environment

# Memory is collected where it would grow beyond this only.
_GO = {"GOMAXPROCS": "1", "GOGC": "off", "GOMEMLIMIT": "512MiB"}


@pytest.fixture(scope="session", autouse=True)
def _one_thread_for_each_terraform() -> Iterator[None]:
    """Have each Terraform compute on one core, since as many tests run as there are cores.

    Its threads would get into each other's way, and nearly all of its garbage is as young as its process: both
    together take a fifth of its processor time.
    """
    with in_environment({name: value for name, value in _GO.items() if name not in os.environ}):
        yield
