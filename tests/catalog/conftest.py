"""Every test here has its own home, so that no test sees the prices that another one refreshed."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(home))
    return home
