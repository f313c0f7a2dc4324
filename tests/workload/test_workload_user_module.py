"""A user's own module is built before it is planned: its parameters count, and what can't be trained is an error."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories.scenarios import chain, gcp_scenario, make_job, make_plan, offer_in
from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Counted
from sailor_cloud.model.job import ModelSource
from sailor_cloud.simulator import evaluate
from sailor_cloud.workload import decoder, layer_costs, parameter_count
from sailor_cloud.workload.models import user_module
from sailor_cloud.workload.models.decoders import decoder_from_config, dropout_note, tp_problem
from sailor_cloud.workload.models.user_module import with_module
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.describe import described

TESTS = Path(__file__).parents[1]
SIZES = {"model_type": "gpt2", "vocab_size": 64, "hidden_size": 24, "max_position_embeddings": 16}
SOURCE = ModelSource.model_validate({**SIZES, "num_hidden_layers": 4, "num_attention_heads": 6})
SPEC = ModelSpec(
    model_type="gpt2",
    vocab_size=64,
    hidden_size=24,
    blocks=4,
    heads=6,
    kv_heads=6,
    ffn_size=96,
    max_positions=16,
    embedding_size=24,
    tied_head=True,
    module="factories.layered_module:build",
)


def test_parameters_of_each_layer_are_those_of_the_built_module_at_each_degree() -> None:
    adapted = with_module(decoder(SOURCE), "factories.layered_module:build_with_adapters", TESTS)
    whole, cut = layer_costs(adapted, 16, 1), layer_costs(adapted, 16, 2)
    # By hand: 64 x 24 tokens and 16 x 24 positions; four 24 x 24 with biases, 24 x 96 and back, two norms, a gate,
    # adapters of rank 3.
    block = 4 * (24 * 24 + 24) + (24 * 96 + 96) + (96 * 24 + 24) + 2 * 48 + 1 + (24 * 3 + 3 * 96)
    assert whole.parameters.tolist() == [80 * 24, *[block] * 4, 48 + 64 * 24]
    assert whole.trainable.tolist() == [0, *[24 * 3 + 3 * 96] * 4, 0]
    assert cut.trainable.tolist() == [0, *[24 * 3 + 3 * 48] * 4, 0]
    assert (whole.tied_parameters, whole.tied_trainable) == (64 * 24, 0)
    assert parameter_count(adapted) == 80 * 24 + 4 * block + 48
    assert tp_problem(adapted, 4) == "tp 4 does not divide what the tp_plan of " + adapted.name + " cuts"
    assert np.array_equal(layer_costs(decoder(SOURCE), 16, 1).forward_flops, whole.forward_flops)


def test_frozen_parameters_have_neither_gradients_nor_optimizer_state_nor_sums() -> None:
    trained = gcp_scenario(batch=64)
    costs = layer_costs(trained.decoder, 2048, 1)
    assert costs.trainable.sum() == costs.parameters.sum()
    frozen = Counted(
        tp=1,
        parameters=tuple(costs.parameters.tolist()),
        trainable=tuple((costs.parameters // 100).tolist()),
        tied=costs.tied_parameters,
        tied_trainable=costs.tied_parameters // 100,
    )
    adapted = replace(trained, decoder=replace(trained.decoder, counted=(frozen,)))
    offer = offer_in(trained, "us-central1-a", "A100-40")
    chains = [chain(p, [offer, offer], (0, 13, 26), microbatch_size=2, microbatches=16) for p in range(2)]
    before, after = (evaluate(make_plan(scenario, chains), scenario) for scenario in (trained, adapted))
    for whole, few in zip(before.prediction.memory, after.prediction.memory, strict=True):
        assert few.parts["weights"] == whole.parts["weights"]
        for part in ("gradients", "optimizer"):
            assert few.parts[part] == pytest.approx(0.01 * whole.parts[part], rel=0.01)
    assert after.prediction.iteration_s_replay < before.prediction.iteration_s_replay


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 5}, "has 6 layers, its sizes say 7: embedding, 5 blocks, head"),
        ({"hidden_size": 32}, r"layer 0 .* gives \(2, 8, 24\), and \[samples, tokens, hidden_size\] is \(2, 8, 32\)"),
        ({"module": "factories.layered_module:nothing"}, "has no attribute 'nothing'"),
        ({"module": "factories.layered_module:Head"}, "has no layers"),
        ({"module": "factories.layered_module:with_a_broken_loss"}, r"the loss of .* has shape \(2, 8\)"),
        ({"module": "factories.layered_module:with_a_broken_block"}, "layer 1 of .* fails: RuntimeError"),
        ({"module": "factories.own_modules:batch_norm"}, r"layers\.2\.norm of .* is a BatchNorm1d: the statistics"),
        (
            {"module": "factories.own_modules:unused"},
            r"layers\.2\.other\.weight and 1 more of .* have no effect",
        ),
        ({"module": "factories.own_modules:sparse"}, r"layers\.0\.tokens\.weight of .* has a sparse gradient"),
        ({"module": "factories.own_modules:branch"}, "layer 2 of .* depends on values of tensors, as with 'if mask"),
        ({"module": "factories.own_modules:boolean_index"}, r"layer 2 of .* depends on values .* x\[mask\]"),
        ({"module": "factories.own_modules:noise"}, r"layer 2 of .* draws random numbers \(aten\.randn_like"),
        ({"module": "factories.own_modules:careless_dropout"}, "layer 2 of .* draws random numbers"),
        ({"module": "factories.own_modules:careless_attention"}, "layer 2 of .* draws random numbers"),
    ],
)
def test_an_untrainable_model_names_the_part(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        described(replace(SPEC, **changes), 8)


def test_a_parameter_that_only_long_samples_use_is_accepted() -> None:
    found = described(replace(SPEC, module="factories.own_modules:pooled"), 8)
    counted = found["degrees"]["1"]
    assert counted["trainable"] == counted["parameters"]


def test_layers_may_be_one_module() -> None:
    assert set(described(replace(SPEC, module="factories.own_modules:shared"), 8)["degrees"]) == {"1", "2"}
    with pytest.raises(RefusedError, match=r"layer 0 .* gives \(2, 8, 24\), and .* is \(2, 8, 32\)"):
        described(replace(SPEC, module="factories.own_modules:shared", hidden_size=32), 8)


def test_dropout_that_training_does_not_apply_is_named() -> None:
    built = with_module(decoder(SOURCE), "factories.own_modules:several_dropouts", TESTS)
    every = "dropout 0.5 in layers 1, 2, 4, multi_head_attention_forward 0.3 in layer 2, dropout 0.2 in layer 2"
    assert dropout_note(make_job(), built) == (
        f"the dropout in {built.name} is not applied: {every}; training.dropout sets the only dropout, and is 0"
    )
    note = dropout_note(make_job(dropout=0.1), built)
    assert note is not None
    assert "is not applied: multi_head_attention_forward 0.3 in layer 2; training.dropout 0.1 " in note


def test_dropout_in_a_configuration_is_named_unless_the_job_sets_its_own() -> None:
    sizes = {**SIZES, "num_hidden_layers": 4, "num_attention_heads": 6}
    found = decoder_from_config({**sizes, "resid_pdrop": 0.1, "attn_pdrop": 0.0}, name="mine")
    assert "the dropout in mine is not applied: resid_pdrop 0.1;" in dropout_note(make_job(), found)
    assert dropout_note(make_job(dropout=0.1), found) is None
    assert dropout_note(make_job(), decoder(SOURCE)) is None


def test_a_module_that_is_missing_is_an_error_of_the_job() -> None:
    with pytest.raises(RequestError, match=r"model\.module: module nowhere\.model:build: No module named 'nowhere'"):
        with_module(decoder(SOURCE), "nowhere.model:build", TESTS)


ANSWER = """
import json
row = {{"parameters": [{}], "trainable": [0], "tied": 0, "tied_trainable": 0}}
print(json.dumps({{"degrees": {{"1": row}}}}))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in of the program that builds modules, without torch."""
    monkeypatch.setattr(user_module, "_PROGRAM", "stand_in")
    return tmp_path / "stand_in.py"


def test_output_of_a_module_itself_is_no_answer(program: Path) -> None:
    program.write_text(f"print('hello'){ANSWER.format(7)}print('[1]')\nprint('goodbye')")
    (counted,) = with_module(decoder(SOURCE), "own:build", program.parent).counted
    assert counted.parameters == (7,)


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "print('nothing'); print('{}'); print(3)"])
def test_a_module_that_ends_python_is_an_error_of_the_job(program: Path, code: str) -> None:
    program.write_text(code)
    with pytest.raises(RequestError, match=r"own:build ends Python before it is built; it must not call sys\.exit"):
        with_module(decoder(SOURCE), "own:build", program.parent)


def test_a_module_is_rebuilt_once_a_file_of_its_folder_has_changed(program: Path) -> None:
    part = program.parent / "package" / "part.py"
    part.parent.mkdir()
    part.write_text("")
    found = []
    for written, parameters in enumerate((7, 7, 80)):
        program.write_text(ANSWER.format(parameters) + "open('times', 'a').write('.')")
        os.utime(program, (1e9, 1e9))
        os.utime(part, (1e9, 1e9 + written // 2))
        found.append(with_module(decoder(SOURCE), "own:build", program.parent).counted[0].parameters)
    assert found == [(7,), (7,), (80,)]
    assert (program.parent / "times").read_text() == ".."
