"""What each layer costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.presets import PRESETS
from sailor_cloud.workload import Attention, decoder, layer_costs, parameter_count

OPT = decoder(ModelSource(preset="sailor-opt-350"))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_layers_on_one_device_hold_the_whole_model(preset: str) -> None:
    sizes = decoder(ModelSource(preset=preset))
    costs = layer_costs(sizes, 128, 1)
    assert costs.parameters.sum() - costs.tied_parameters == parameter_count(sizes)


@pytest.mark.parametrize(
    ("tp", "block"),
    # llm_info.json of Sailor's artifact, layer 1 of OPT-350.
    [(1, 12_596_224), (2, 6_301_184), (4, 3_153_664), (8, 1_579_904)],
)
def test_a_tensor_parallel_block_has_the_parameters_that_sailor_counted(tp: int, block: int) -> None:
    assert layer_costs(OPT, 2048, tp).parameters[1] == block


@given(tp=st.sampled_from([1, 2, 4, 8, 16]), tokens=st.integers(1, 4096))
def test_work_divides_by_the_tensor_parallel_degree_and_parameters_never_get_fewer_in_all(tp: int, tokens: int) -> None:
    one, cut = layer_costs(OPT, tokens, 1), layer_costs(OPT, tokens, tp)
    np.testing.assert_allclose(cut.forward_flops[1:-1] * tp, one.forward_flops[1:-1])
    assert (cut.parameters * tp >= one.parameters).all()
    assert (cut.activation_elements <= one.activation_elements).all()
    np.testing.assert_array_equal(cut.output_elements, one.output_elements)


def test_forward_flops_are_two_per_matrix_weight_and_token_plus_attention() -> None:
    tokens = 2048
    costs = layer_costs(OPT, tokens, 1)
    weights = 12 * OPT.hidden_size**2
    attention = 4 * tokens * tokens * OPT.hidden_size
    assert costs.forward_flops[1] == 2 * weights * tokens + attention
    assert costs.backward_flops[1] == 2 * costs.forward_flops[1]
    assert costs.forward_flops[-1] == 2 * tokens * OPT.hidden_size * OPT.vocab_size
    assert costs.forward_flops[0] == 0


def test_flash_attention_keeps_no_scores_and_skips_what_is_masked() -> None:
    plain, flash = (layer_costs(OPT, 2048, 1, attention=kind) for kind in (Attention.PLAIN, Attention.FLASH))
    scores = 16 * 2048 * 2048
    assert plain.activation_elements[1] - flash.activation_elements[1] == scores - 16 * 2048
    assert flash.forward_flops[1] < plain.forward_flops[1]


def test_recomputation_keeps_one_tensor_per_block() -> None:
    costs = layer_costs(OPT, 2048, 4)
    assert costs.recomputed_elements[1] == 2048 * 1024
    assert costs.recomputed_elements[-1] == costs.activation_elements[-1]


def test_gated_and_grouped_models_keep_what_their_shapes_need() -> None:
    llama = decoder(ModelSource(preset="llama-3-8b"))
    costs = layer_costs(llama, 8192, 1, attention=Attention.FLASH)
    per_token = 4 * 4096 + 2 * 4096 + 2 * 8 * 128 + 4 * 14336 + 32
    assert costs.activation_elements[1] == 8192 * per_token
    assert costs.tied_parameters == 0
    assert layer_costs(decoder(ModelSource(preset="gpt2")), 128, 1).tied_parameters == 50257 * 768


def test_opt_350m_carries_its_projections_and_no_final_norm() -> None:
    costs = layer_costs(decoder(ModelSource(preset="opt-350m")), 2048, 1)
    assert costs.parameters[0] == 50272 * 512 + 2050 * 1024 + 512 * 1024
    assert costs.parameters[-1] == 512 * 1024 + 50272 * 512
    assert costs.forward_flops[0] == 2 * 2048 * 512 * 1024
