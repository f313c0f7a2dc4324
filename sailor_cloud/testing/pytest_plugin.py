"""Fixtures for tests of code that uses sailor-cloud: name this module in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sailor_cloud.model.offer import Provider
from sailor_cloud.testing.mock_cloud import MockCloud, in_environment, mock_cloud


@pytest.fixture
def mock_gcp(tmp_path: Path) -> Iterator[MockCloud]:
    """Google Cloud on this machine, in the environment of this process and its children."""
    with mock_cloud(Provider("gcp"), tmp_path / "mock-gcp") as mocked, in_environment(mocked.environment):
        yield mocked


@pytest.fixture
def mock_aws(tmp_path: Path) -> Iterator[MockCloud]:
    """AWS on this machine, in the environment of this process and its children."""
    with mock_cloud(Provider("aws"), tmp_path / "mock-aws") as mocked, in_environment(mocked.environment):
        yield mocked
