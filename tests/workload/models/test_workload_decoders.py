"""Sizes of models: presets, configs, inline sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.job import ModelSource
from sailor_cloud.workload import decoder, decoder_from_config, parameter_count, tp_problem

# Published counts: the sum of the tensors in each model's checkpoint, tied weights once.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "opt-30b": 29_974_540_288,
    "gpt-neo-2.7b": 2_651_307_520,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
}
# Sums over llm_info.json of Sailor's artifact at tp 1.
SAILOR = {
    "sailor-opt-350": 407_431_168,
    "sailor-gpt-neo-2.7": 134_021_120 + 32 * 78_676_480 + 5_120,
    "sailor-opt-30": 375_259_136 + 48 * 616_655_872 + 360_593_408,
    "sailor-llama-3-8": 206_045_184 + 32 * 268_496_896 + 4_096,
}


@pytest.mark.parametrize(("preset", "count"), sorted({**PUBLISHED, **SAILOR}.items()))
def test_a_preset_has_exactly_its_published_number_of_parameters(preset: str, count: int) -> None:
    assert parameter_count(decoder(ModelSource(preset=preset))) == count


@pytest.mark.parametrize(
    ("config", "count"),
    [
        # mistralai/Mistral-7B-v0.1
        (
            {
                "model_type": "mistral",
                "vocab_size": 32000,
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "max_position_embeddings": 32768,
                "tie_word_embeddings": False,
            },
            7_241_732_096,
        ),
        # Qwen/Qwen2-0.5B, tied head
        (
            {
                "model_type": "qwen2",
                "vocab_size": 151936,
                "hidden_size": 896,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "intermediate_size": 4864,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": True,
            },
            494_032_768,
        ),
    ],
)
def test_a_hugging_face_config_file_gives_the_published_count(tmp_path: Path, config: dict, count: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert parameter_count(decoder(ModelSource(config="config.json"), base=tmp_path)) == count


def test_an_unknown_preset_names_close_and_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'opt-350' is not a preset \(did you mean .*opt-350m.*known: gpt-neo-2.7b"):
        ModelSource(preset="opt-350")


def test_all_faults_of_a_config_are_reported_together() -> None:
    with pytest.raises(RequestError) as raised:
        decoder_from_config({"model_type": "llama", "hidden_size": -4, "num_hidden_layers": 0}, name="x")
    text = str(raised.value)
    assert "-4" in text
    assert "num_hidden_layers: must be an integer from 1" in text
    assert "num_hidden_layers: is missing" not in text
    assert "num_attention_heads: is missing" in text
    assert "vocab_size: is missing" in text


def test_a_family_that_is_not_supported_is_the_only_fault_and_says_what_else_trains_it() -> None:
    with pytest.raises(RequestError, match=r"'t5', which is not supported .*'run', or as layers in model") as raised:
        decoder_from_config({"model_type": "t5", "d_model": 512}, name="x")
    assert "is missing" not in str(raised.value)
    nested = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 640}}
    with pytest.raises(RequestError, match="write text_config, whose model_type is 'gemma3_text', to a file") as raised:
        decoder_from_config(nested, name="x")
    assert "is missing" not in str(raised.value)


@pytest.mark.parametrize("name", ["num_key_value_heads", "num_attention_heads", "intermediate_size", "head_dim"])
def test_a_misspelt_size_is_an_error_and_not_its_default(name: str) -> None:
    config = {key: value for key, value in {**MIXTRAL, "head_dim": 8}.items() if key != name} | {name[:-1]: 4}
    with pytest.raises(RequestError, match=f"{name[:-1]}: is not a known name .did you mean '{name}'") as raised:
        decoder_from_config(config, name="x")
    assert "is missing" not in str(raised.value)


def test_heads_that_do_not_divide_the_hidden_size_are_refused() -> None:
    with pytest.raises(RequestError, match="7 does not divide hidden_size 128"):
        decoder_from_config(
            {
                "model_type": "gpt2",
                "vocab_size": 256,
                "hidden_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 7,
            },
            name="x",
        )


def test_tp_must_divide_heads_and_key_value_heads() -> None:
    llama = decoder(ModelSource(preset="llama-3-8b"))
    assert tp_problem(llama, 8) is None
    assert tp_problem(llama, 16) == "tp 16 does not divide the 8 key-value heads of llama-3-8b"
    assert tp_problem(decoder(ModelSource(preset="gpt2")), 8) == "tp 8 does not divide the 12 attention heads of gpt2"


MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 256,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "intermediate_size": 64,
}


def test_experts_are_cut_by_their_columns_or_distributed_whole(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MIXTRAL, "num_local_experts": 6}))
    cut = decoder(ModelSource(config="config.json"), base=tmp_path)
    whole = decoder(ModelSource(config="config.json", whole_experts=True), base=tmp_path)
    assert tp_problem(cut, 3) == f"tp 3 does not divide the 64 columns of an expert of {cut.name}"
    assert tp_problem(whole, 3) is None
    assert tp_problem(whole, 4) == f"tp 4 does not divide the 6 experts of {whole.name}"
    assert parameter_count(cut) == parameter_count(whole)
    with pytest.raises(RequestError, match=r"model.whole_experts: gpt2 has no experts"):
        decoder(ModelSource(preset="gpt2", whole_experts=True))


def test_a_fault_in_a_config_file_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"vocab_size": 3}')
    with pytest.raises(RequestError, match=r"^hf/config\.json: model_type: is missing"):
        decoder(ModelSource(config="hf/config.json"), base=tmp_path)
