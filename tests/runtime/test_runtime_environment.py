"""What a node runs before the ranks of a user's own module: once, and with its packages in the node's folder."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import environment
from sailor_runtime.training.refusal import RefusedError


def _spec(folder: Path, setup: str) -> RunSpec:
    (folder / "code").mkdir(exist_ok=True)
    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=folder)
    return dataclasses.replace(spec, model=dataclasses.replace(spec.model, code="code", setup=setup))


def test_setup_runs_once_where_the_code_lies_while_other_ranks_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_LOOK_S", 0.01)
    spec = _spec(tmp_path, "echo $PIP_PREFIX >> ran")
    ranks = [threading.Thread(target=environment.set_up, args=(spec, tmp_path, lambda: None)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert (tmp_path / "code" / "ran").read_text() == f"{tmp_path / 'packages'}\n"
    environment.set_up(_spec(tmp_path, "echo other >> ran"), tmp_path, lambda: None)
    assert (tmp_path / "code" / "ran").read_text().endswith("other\n"), "another setup runs again"


def test_a_setup_that_fails_says_how_and_is_tried_again(tmp_path):
    spec = _spec(tmp_path, "test -f there || exit 5")
    with pytest.raises(RefusedError, match="setup ended with exit code 5: test -f there"):
        environment.set_up(spec, tmp_path, lambda: None)
    (tmp_path / "code" / "there").touch()
    environment.set_up(spec, tmp_path, lambda: None)
    assert (tmp_path / "setup.done").exists()
