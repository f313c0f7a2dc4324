"""What a profile measures, and that nothing is measured twice."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from factories.run_specs import SHORT_TRAINING, TINY, free_port
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.workload import Attention, layer_costs
from sailor_cloud.workload.models.decoders import decoder_from_config
from sailor_runtime.profile import links, memory
from sailor_runtime.profile.layers import kept_bytes
from sailor_runtime.profile.links import sizes
from sailor_runtime.profile.operations import forward_flops
from sailor_runtime.profile.results import Results
from sailor_runtime.profile.task import LinkTask, ProfileTask, layer_spec
from sailor_runtime.spec import ModelSpec, StageSpec, TrainingSpec
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.stage import StageModule

MODEL = ModelSpec(**{**TINY, "blocks": 12, "tied_head": False})
TASK = ProfileTask(
    model=MODEL,
    sequence_length=16,
    precision="fp32",
    optimizer="adamw",
    accelerator="CPU-fast",
    microbatch_sizes=(1, 2),
    tps=(1, 2),
    together=1,
    link=LinkTask(),
)


def test_a_task_survives_writing_and_its_key_covers_what_layers_depend_on():
    assert ProfileTask.from_json(TASK.to_json()) == TASK
    assert dataclasses.replace(TASK, microbatch_sizes=(4,), tps=(1,), link=None).key == TASK.key
    for other in ({"precision": "bf16"}, {"together": 2}, {"sequence_length": 8}, {"accelerator": "T4-16"}):
        assert dataclasses.replace(TASK, **other).key != TASK.key


@pytest.mark.parametrize(
    ("tp", "together", "ranks"), [(1, 1, 1), (2, 1, 2), (1, 3, 3), (2, 3, 3), (2, 4, 4), (3, 2, 3)]
)
def test_a_world_for_layers_keeps_all_devices_busy_with_a_plan_that_trains(tmp_path, tp, together, ranks):
    task = dataclasses.replace(TASK, together=together)
    spec = layer_spec(task, tp=tp, microbatch_size=2, directory=str(tmp_path), port=1)
    layout.check(spec)
    assert spec.world_size == ranks
    assert all(len(stage.ranks) == tp for stage in spec.pipelines[0].stages)
    assert spec.model.blocks < MODEL.blocks


def test_measurements_of_an_interrupted_run_are_kept_except_for_a_torn_line(tmp_path):
    path = tmp_path / "measurements.jsonl"
    Results(path, "a").add(kind="layers", tp=1, microbatch_size=2)
    Results(path, "b").add(kind="layers", tp=1, microbatch_size=4)
    with path.open("a") as file:
        file.write('{"task": "a", "kind": "layers", "tp": 2')
    again = Results(path, "a")
    assert again.has(kind="layers", tp=1, microbatch_size=2)
    assert not again.has(kind="layers", tp=1, microbatch_size=4)
    assert not again.has(kind="layers", tp=2)
    again.add(kind="layers", tp=2, microbatch_size=2)
    assert [row["tp"] for row in Results(path, "a").rows] == [1, 2]


def test_peak_memory_is_found_without_allocating_and_grows_with_the_microbatch():
    model = dataclasses.replace(MODEL, blocks=3)
    training = TrainingSpec(**{**SHORT_TRAINING, "precision": "fp32"})
    parameters = sum(parameter.numel() for parameter in _module(model, torch.float32).parameters.values())
    small, large = (memory.peak_bytes(model, training, size) for size in (1, 8))
    # Weights, gradients and two moments in fp32, and activations on top.
    assert 16 * parameters < small < 24 * parameters
    assert large > small
    half = memory.peak_bytes(model, dataclasses.replace(training, precision="bf16"), 1)
    # 2 bytes of weights beside 4 of master weights, 4 of gradients, 8 of moments.
    assert 18 * parameters < half


def test_a_layer_keeps_its_output_and_what_its_backward_needs_but_not_its_input():
    module = _module(MODEL, torch.float32)
    shape = (2, 16, MODEL.hidden_size)
    tokens = torch.zeros((2, 16), dtype=torch.int64)
    nothing = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(2))
    microbatch = Microbatch(tokens=tokens, targets=tokens, weight=1.0, dropout=nothing)
    value = torch.randn(shape, requires_grad=True)
    hidden = 2 * 16 * MODEL.hidden_size * 4
    # And the numbers of the positions.
    assert kept_bytes(module, 0, None, microbatch) == hidden + 16 * 8
    block = kept_bytes(module, 1, value, microbatch)
    # Two norms' outputs, q, k, v, the heads' outputs, the sum after attention, four times the width before and after
    # the activation, and the output; a few statistics more.
    assert 16 * hidden <= block <= 18 * hidden


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_neo"],
)
def test_a_block_of_transformers_keeps_what_the_planner_counts(family, dtype):
    tokens, hidden = 128, 512
    config = {"model_type": family, "vocab_size": 64, "hidden_size": hidden, "max_position_embeddings": tokens}
    if family == "gpt_neo":
        config |= {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 32}
    else:
        config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        config |= {"intermediate_size": 3 * hidden, "head_dim": 128}
        config |= {"num_experts": 4, "num_experts_per_tok": 2, "num_local_experts": 4}
        config |= {"moe_intermediate_size": hidden, "shared_expert_intermediate_size": hidden}
    decoder = decoder_from_config(config, name=family)
    costs = layer_costs(decoder, tokens, 1, attention=Attention.FLASH, module_bytes=dtype.itemsize)
    module = _module(model_spec(decoder), dtype)
    inputs = torch.zeros((1, tokens), dtype=torch.int64)
    nothing = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(1))
    microbatch = Microbatch(tokens=inputs, targets=inputs, weight=1.0, dropout=nothing)
    value = torch.zeros((1, tokens, hidden), dtype=dtype, requires_grad=True)
    kept = kept_bytes(module, 1, value, microbatch) / dtype.itemsize
    # Rotations, which all blocks share, masks and statistics of the norms are left out.
    assert costs.activation_elements[1] == pytest.approx(kept, rel=0.035)
    assert costs.activation_elements[1] < kept


def test_operations_counted_by_deepspeed_are_those_of_the_matrices():
    module = _module(MODEL, torch.float32)
    samples, tokens, hidden = 2, 16, MODEL.hidden_size
    inputs = torch.zeros((samples, tokens), dtype=torch.int64)
    nothing = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(samples))
    microbatch = Microbatch(tokens=inputs, targets=inputs, weight=1.0, dropout=nothing)
    value = torch.randn((samples, tokens, hidden))
    linear, products = torch.nn.functional.linear, 2 * samples * tokens
    block = products * (4 * hidden**2 + 2 * hidden * MODEL.ffn_size) + 2 * products * tokens * hidden
    # Norms, activation and additions come on top; in so small a model they are a few hundredths.
    assert block < forward_flops(module, 1, value, microbatch) < 1.06 * block
    head = products * hidden * MODEL.vocab_size
    assert head <= forward_flops(module, MODEL.layers - 1, value, microbatch) < 1.06 * head
    assert forward_flops(module, 0, None, microbatch) == 0
    assert torch.nn.functional.linear is linear


def test_a_link_is_timed_from_an_empty_message_to_the_largest():
    found = list(sizes(LinkTask(least_bytes=2**16, most_bytes=2**18)))
    assert found == [8, 2**16, 2**17, 2**18]


def test_a_link_is_timed_between_two_ends_that_each_name_the_address_of_the_first():
    task = dataclasses.asdict(LinkTask(least_bytes=2**16, most_bytes=2**16, port=free_port()))
    code = (
        "import json, os, torch\n"
        "from sailor_runtime.profile import links\n"
        "from sailor_runtime.profile.task import LinkTask\n"
        "end = int(os.fork() == 0)\n"
        f"task = LinkTask(**{{**{task}, 'end': end}})\n"
        "points = links.measure(task, end, torch.device('cpu'))\n"
        "print(json.dumps(points), flush=True) if end == 0 else os._exit(0)\n"
        "print(os.wait()[1])"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(links.__file__).parents[2]), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=200, check=True)
    points, ended = done.stdout.splitlines()
    assert [point["bytes"] for point in json.loads(points)] == [8, 2**16]
    assert all(point["seconds"] > 0 for point in json.loads(points))
    assert ended == "0"


def _module(model: ModelSpec, dtype: torch.dtype) -> StageModule:
    stage = StageSpec(first_layer=0, end_layer=model.layers, node="", devices=(0,), ranks=(0,))
    device = Device(torch_device=torch.device("cpu"), kernel_runs=1)
    return StageModule(model, stage, TensorParallel(None, 1, 0), device, dtype)
