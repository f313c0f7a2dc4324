"""A user's own module: where its weights begin, and what every plan of it must share."""

from __future__ import annotations

import random

import numpy as np
import pytest

from factories.run_specs import TINY, run_spec
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model import same_weights
from sailor_runtime.training.model.user_module import UserModule

PARTS = range(6)


def spec_of(build: str, **changes: object) -> ModelSpec:
    module = build if ":" in build else f"factories.own_modules:{build}"
    return ModelSpec(**{**TINY, "module": module, **changes})


def own(build: str, **changes: object) -> UserModule:
    return UserModule(spec_of(build, **changes))


def test_processes_build_the_same_weights_and_buffers_from_numpy_and_random() -> None:
    before = (np.random.get_state()[1].tolist(), random.getstate())
    one = own("numpy_and_random").first_hashes(PARTS)
    assert before == (np.random.get_state()[1].tolist(), random.getstate())
    random.seed(1)
    np.random.seed(1)
    assert one == own("numpy_and_random").first_hashes(PARTS)


def test_a_module_that_differs_between_ranks_is_refused_by_layer(tmp_path) -> None:
    spec = run_spec([(6, 1, [(0, 6, 1)])] * 2, directory=tmp_path, model={"module": "factories.own_modules:unseeded"})
    ranks = [own("unseeded").first_hashes(PARTS) for _ in range(2)]
    with pytest.raises(RefusedError, match=r"layer 2 of .*:unseeded starts with different weights on rank 0"):
        same_weights.compare(spec, ranks)
    same_weights.compare(spec, [ranks[0], ranks[0]])
