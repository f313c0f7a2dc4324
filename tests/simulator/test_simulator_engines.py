"""Engines by name."""

from __future__ import annotations

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.simulator import ENGINES, Engine, engine_named


def test_an_engine_is_found_by_its_name() -> None:
    assert {name: engine_named(name).name for name in ENGINES} == {name: name for name in ENGINES}


def test_the_default_engine_is_our_own_runtime() -> None:
    assert engine_named("sailor") == Engine()


def test_an_unknown_engine_is_told_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"'jax' is not known; known: sailor, deepspeed, megatron, fsdp, nanotron"):
        engine_named("jax")


def test_every_engine_supports_its_own_default_zero_stage() -> None:
    assert all(engine.default_zero_stage in engine.zero_stages for engine in ENGINES.values())
