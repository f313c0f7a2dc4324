"""A user's own module: where its weights begin, and what every plan of it must share."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch

from factories import layered_module, own_modules
from factories.run_specs import SHORT_TRAINING, TINY, run_spec
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, TrainingSpec
from sailor_runtime.training import reference
from sailor_runtime.training.model import same_weights
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.loss_check import LossCheck
from sailor_runtime.training.model.tensor_parallel import TensorParallel
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
    one = own("numpy_and_random").first_sums(PARTS)
    assert before == (np.random.get_state()[1].tolist(), random.getstate())
    random.seed(1)
    np.random.seed(1)
    assert one == own("numpy_and_random").first_sums(PARTS)


def test_first_weights_do_not_depend_on_the_cores_of_a_node() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(own("orthogonal").root.get_parameter("layers.2.matrix"))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize("build", ["numpy_and_random", "factories.layered_module:build"])
def test_the_seed_of_the_job_gives_other_weights(build: str) -> None:
    found = []
    for seed in (0, 1):
        module = own(build, seed=seed)
        found.append(first_weights(spec_of(build, seed=seed), seed)(module.parameters(0)[0], torch.float32))
    assert not torch.equal(*found)


def test_a_module_that_differs_between_ranks_is_refused_by_layer(tmp_path) -> None:
    spec = run_spec([(6, 1, [(0, 6, 1)])] * 2, directory=tmp_path, model={"module": "factories.own_modules:unseeded"})
    ranks = [own("unseeded").first_sums(PARTS) for _ in range(2)]
    with pytest.raises(RefusedError, match=r"layer 2 of .*:unseeded starts with different weights on rank 0"):
        same_weights.compare(spec, ranks)
    rounded = {part: [(one * (1 + 1e-7), two) for one, two in sums] for part, sums in ranks[0].items()}
    same_weights.compare(spec, [ranks[0], rounded])
    # The same values in another order are other weights.
    moved = [own("numpy_and_random"), own("numpy_and_random")]
    weight = moved[1].root.get_parameter("layers.0.tokens.weight")
    with torch.no_grad():
        weight.copy_(weight.flip(0))
    with pytest.raises(RefusedError, match="layer 0 of"):
        same_weights.compare(spec, [module.first_sums([0]) for module in moved])


def test_ends_of_a_pipeline_compare_the_weight_that_they_share(tmp_path) -> None:
    spec = run_spec([(12, 1, [(0, 3, 1), (3, 6, 1)])], directory=tmp_path, model={"module": "own:build"})
    first, last = (own("factories.layered_module:build", seed=seed) for seed in (0, 1))
    with pytest.raises(RefusedError, match=r"layers\.0\.tokens\.weight of own:build starts with different weights"):
        same_weights.compare(spec, [first.first_sums([0, 1, 2]), last.first_sums([3, 4, 5])])


# Samples with no, some and many tokens of padding.
TARGETS = torch.tensor([[1, 2, 3, 4], [5, 0, 0, 6], [7, 0, 0, 0]])


def microbatches(size: int) -> list[Microbatch]:
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(size))
    return [Microbatch(tokens=part, targets=part, weight=1.0, dropout=dropout) for part in TARGETS.split(size)]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("loss", "exact"),
    [
        (layered_module.loss, True),
        (own_modules.masked, True),
        (own_modules.mean_of_unmasked, False),
        (own_modules.with_a_term_of_the_batch, False),
        (own_modules.with_a_hidden_term, False),
    ],
)
def test_a_loss_that_depends_on_the_microbatch_is_refused(loss, exact, dtype, size) -> None:
    check = LossCheck(loss, "own:build")
    outputs = torch.randn((*TARGETS.shape, 8), generator=torch.Generator().manual_seed(0)).to(dtype).split(size)

    def compare() -> None:
        for output, batch in zip(outputs, microbatches(size), strict=True):
            check(output, batch)

    if exact:
        compare()
        return
    with pytest.raises(RefusedError, match="the loss of own:build is no mean over samples"):
        compare()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 3])
def test_a_small_loss_in_16_bits_passes(dtype: torch.dtype, size: int) -> None:
    check = LossCheck(layered_module.loss, "own:build")
    for batch in microbatches(size):
        output = torch.zeros((*batch.targets.shape, 512), dtype=dtype).scatter_(-1, batch.targets[..., None], 12.0)
        check(output, batch)


def test_the_last_stage_checks_its_loss() -> None:
    alone = TensorParallel(None, 1, 0)
    stage = own("padded").stage([5], alone, torch.device("cpu"), torch.float32, dropout=False)
    for name, parameter in stage.parameters.items():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(len(name)))
    hidden = torch.randn((3, 4, 24), generator=torch.Generator().manual_seed(0))
    with pytest.raises(RefusedError, match=r"the loss of factories\.own_modules:padded is no mean over samples"):
        stage(5, hidden, microbatches(3)[0])


def test_later_steps_are_not_checked() -> None:
    def loss(output: torch.Tensor, batch: Microbatch) -> torch.Tensor:
        # From step 9 on, it depends on the number of samples.
        return output.mean() if batch.dropout.step < 9 else output.new_tensor(len(output))

    check, output = LossCheck(loss, "own:build"), torch.zeros((3, 4, 8))
    [batch] = microbatches(3)
    found = [
        check(output, dataclasses.replace(batch, dropout=dataclasses.replace(batch.dropout, step=step))).item()
        for step in (7, 8, 9)
    ]
    assert found == [0.0, 0.0, 3.0]


@pytest.mark.parametrize("size", [1, 3])
def test_a_loss_may_change_the_output_in_place(size: int) -> None:
    def loss(output: torch.Tensor, batch: Microbatch) -> torch.Tensor:
        return layered_module.loss(output.div_(2.0), batch)

    check, outputs = LossCheck(loss, "own:build"), torch.randn((3, 4, 8), generator=torch.Generator().manual_seed(0))
    for output, batch in zip(outputs.split(size), microbatches(size), strict=True):
        expected = layered_module.loss(output / 2.0, batch)
        assert torch.equal(check(output.clone(), batch), expected)


def test_the_reference_treats_samples_of_a_module_one_by_one() -> None:
    training = TrainingSpec(**{**SHORT_TRAINING, "global_batch_size": 3, "sequence_length": 4})

    def read(numbers: range) -> torch.Tensor:
        return TARGETS[[number % 3 for number in numbers]][:, [0, 1, 2, 3, 3]]

    together, alone = (reference.train(spec_of(build), training, read, steps=1) for build in ("averaged", "one_by_one"))
    assert together.losses == pytest.approx(alone.losses, rel=1e-12)


def test_layers_that_are_one_module_have_the_gradients_of_plain_torch() -> None:
    module, drawn = own("shared"), torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(0))
    alone = TensorParallel(None, 1, 0)
    stage = module.stage(range(6), alone, torch.device("cpu"), torch.float32, dropout=False)
    first = first_weights(spec_of("shared"), 0)
    whole, weights = module.full_model(lambda spec: first(spec, torch.float32), torch.float32, dropout=False)
    with torch.no_grad():
        for name, parameter in stage.parameters.items():
            parameter.copy_(weights[name])
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(2))
    batch = Microbatch(tokens=drawn[:, :-1], targets=drawn[:, 1:], weight=1.0, dropout=dropout)
    value = None
    for layer in range(6):
        value = stage(layer, value, batch)
    value.backward()

    plain = own_modules.shared().layers()
    torch.nn.ModuleList(plain).load_state_dict(torch.nn.ModuleList(module.root.layers).state_dict())
    output = batch.tokens
    for part in plain:
        output = part.eval()(output)
    (layered_module.loss(output, batch) * 32).backward()
    module.loss_sum(whole, batch.tokens, batch.targets, None).backward()
    for name, parameter in torch.nn.ModuleList(plain).named_parameters():
        for other in (stage.parameters, weights):
            torch.testing.assert_close(other[f"layers.{name}"].grad.view(parameter.shape), parameter.grad)
