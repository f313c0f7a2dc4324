"""A user's own module: where its weights begin, and what every plan of it must share."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from factories.run_specs import TINY, run_spec
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model import same_weights
from sailor_runtime.training.model.user_module import UserModule
from sailor_runtime.training.model.weights import first_weights

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


@pytest.mark.parametrize("build", ["numpy_and_random", "factories.layered_module:build"])
def test_the_seed_of_the_job_gives_other_weights(build: str) -> None:
    found = []
    for seed in (0, 1):
        module = own(build, seed=seed)
        found.append(first_weights(spec_of(build, seed=seed), seed)(module.parameters(0)[0], torch.float32))
    assert not torch.equal(*found)


def test_a_module_that_differs_between_ranks_is_refused_by_layer(tmp_path) -> None:
    spec = run_spec([(6, 1, [(0, 6, 1)])] * 2, directory=tmp_path, model={"module": "factories.own_modules:unseeded"})
    ranks = [own("unseeded").first_hashes(PARTS) for _ in range(2)]
    with pytest.raises(RefusedError, match=r"layer 2 of .*:unseeded starts with different weights on rank 0"):
        same_weights.compare(spec, ranks)
    same_weights.compare(spec, [ranks[0], ranks[0]])


def test_ends_of_a_pipeline_compare_the_weight_that_they_share(tmp_path) -> None:
    spec = run_spec([(12, 1, [(0, 3, 1), (3, 6, 1)])], directory=tmp_path, model={"module": "own:build"})
    first, last = (own("factories.layered_module:build", seed=seed) for seed in (0, 1))
    with pytest.raises(RefusedError, match=r"layers\.0\.tokens\.weight of own:build starts with different weights"):
        same_weights.compare(spec, [first.first_hashes([0, 1, 2]), last.first_hashes([3, 4, 5])])
