"""Every test here has its own home, so that no test sees the prices that another one refreshed."""

from pathlib import Path

import pytest

from sailor_cloud.catalog.refresh import public


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def no_public_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the internet; port 9 refuses."""
    for name in ("GITHUB", "SKYPILOT", "GPUHUNT", "PRICE_LIST"):
        monkeypatch.setattr(public, name, "http://127.0.0.1:9/")
