"""Training under a plan equals training in one process."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factories.run_specs import SHORT_TRAINING, TINY, run_spec
from factories.scenarios import GCP, chain, make_job, make_plan, make_scenario, offer_in
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.simulator import Scenario
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.iteration import run_iteration
from sailor_cloud.workload import decoder
from sailor_runtime.spec import DataSpec, ModelSpec, TrainingSpec
from sailor_runtime.training import export, reference
from sailor_runtime.training.data.samples import open_samples
from sailor_runtime.training.model import weights as saved_weights
from sailor_runtime.training.model.architecture import range_parameters
from sailor_runtime.training.model.weights import SavedWeights
from sailor_runtime.training.narrow import narrowed

# One world trains all cases, so all tests belong to one worker.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.xdist_group("runtime equality")]

ROOT = Path(__file__).resolve().parents[2]

UNEQUAL_TP = [(4, 2, [(0, 3, 2), (3, 6, 1)]), (2, 2, [(0, 6, 1)])]
UNEQUAL_DEPTH = [(2, 4, [(0, 2, 1), (2, 4, 1), (4, 6, 1)]), (4, 1, [(0, 6, 1)])]
UNEQUAL_CUT = [(4, 2, [(0, 4, 1), (4, 6, 1)]), (1, 4, [(0, 2, 1), (2, 6, 1)])]
THREE_AGAINST_ONE = [(4, 2, [(0, 6, 3)]), (2, 2, [(0, 6, 1)])]
THREE_AGAINST_TWO = [(4, 2, [(0, 6, 3)]), (2, 2, [(0, 6, 2)])]
ONE_INTO_TWO = [(3, 4, [(0, 2, 1), (2, 6, 2)])]
TURNS = [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))]
GROUPED = {"heads": 6, "kv_heads": 3, "ffn_size": 40, "tied_head": False}
OPT_350M = {"model_type": "opt", "embedding_size": 12}


def family(model_type: str, **config: Any) -> dict[str, Any]:
    """Return a small model of a family with some settings of its configuration in transformers."""
    return {"model_type": model_type, "config": json.dumps(config)}


TWO_ZONES: dict[str, Any] = {"node_of_rank": ["one", "two", "two", "two"], "zones": {"one": "a", "two": "b"}}
APART: dict[str, Any] = {"node_of_rank": ["one", "one", "two", "two"], "zones": {"one": "a", "two": "b"}}
THREE_PIPELINES = [(1, 4, [(0, 6, 1)]), (2, 2, [(0, 6, 1)]), (4, 1, [(0, 6, 1)])]

# Some tokens' logits and scores at a time.
IN_BLOCKS = {"logits": 600, "attention": 500}

# As wide as the published model, of which a copy is trained; a few of its blocks.
NARROW_LLAMA: dict[str, Any] = {
    "pipelines": [(4, 6, [(0, 3, 2), (3, 6, 1)]), (1, 3, [(0, 6, 1)])],
    "model": {**dataclasses.asdict(model_spec(decoder(ModelSource(preset="llama-3-8b")))), "blocks": 4},
    "narrow": True,
}

EQUAL_CASES: dict[str, dict[str, Any]] = {
    "tp 2 beside tp 1, tied": {"pipelines": UNEQUAL_TP},
    "first step of a CUDA device": {
        "pipelines": [(2, 4, [(0, 3, 2), (3, 6, 1)]), (4, 1, [(0, 6, 1)])],
        "training": {"gradient_clipping": 0.5},
        "mutation": "first step of a CUDA device",
    },
    "first step of a CUDA device, interleaved, zero-1": {
        "pipelines": [(2, 3, TURNS), (6, 1, [(0, 6, 1)])],
        "pipeline_schedule": "interleaved",
        "zero_stage": 1,
        "mutation": "first step of a CUDA device",
    },
    "a narrow copy, zero-1, clipping": {**NARROW_LLAMA, "zero_stage": 1, "training": {"gradient_clipping": 0.5}},
    "tp 2 beside tp 1, dropout and clipping": {
        "pipelines": UNEQUAL_TP,
        "training": {"dropout": 0.1, "gradient_clipping": 0.5},
        "limits": IN_BLOCKS,
    },
    "unequal depth, untied": {
        "pipelines": UNEQUAL_DEPTH,
        "model": {"tied_head": False},
        "limits": IN_BLOCKS,
    },
    "unequal depth, clipping": {"pipelines": UNEQUAL_DEPTH, "training": {"gradient_clipping": 0.5}},
    "unequal cuts, recomputed": {"pipelines": UNEQUAL_CUT, "recompute": 1, "training": {"dropout": 0.1}},
    "tp 3 beside tp 1": {"pipelines": THREE_AGAINST_ONE, "training": {"gradient_clipping": 0.5}},
    "tp 1 into tp 2, ragged vocabulary": {"pipelines": ONE_INTO_TWO, "model": {"vocab_size": 67}},
    "slow devices": {
        "pipelines": UNEQUAL_CUT,
        "node_of_rank": ["fast", "slow", "slow", "fast"],
        "accelerators": {"slow": "CPU-slow"},
    },
    "llama, tp 3 beside tp 2, clipping": {
        "pipelines": THREE_AGAINST_TWO,
        "model": {"model_type": "llama", **GROUPED},
        "training": {"gradient_clipping": 0.5},
    },
    "mistral, window, dropout": {
        "pipelines": UNEQUAL_TP,
        "model": family("mistral", sliding_window=5) | GROUPED,
        "training": {"dropout": 0.1},
        "limits": IN_BLOCKS,
    },
    "qwen2, tied, every second block recomputed": {
        "pipelines": UNEQUAL_TP,
        "model": {"model_type": "qwen2", **GROUPED, "tied_head": True},
        "recompute": 2,
    },
    "opt": {"pipelines": UNEQUAL_CUT, "model": {"model_type": "opt"}},
    "opt-350m, norms behind and projections": {"pipelines": UNEQUAL_TP, "model": OPT_350M},
    "gpt-neo, local attention": {"pipelines": ONE_INTO_TWO, "model": family("gpt_neo", window_size=4)},
    "zero-1, tp 3 beside tp 2, clipping": {
        "pipelines": THREE_AGAINST_TWO,
        "zero_stage": 1,
        "training": {"gradient_clipping": 0.5},
    },
    "zero-1, tp 2 beside tp 1, tied, gathered in many rounds": {
        "pipelines": UNEQUAL_TP,
        "zero_stage": 1,
        "limits": {"bucket": 500},
    },
    "zero bubble, tp 2 beside tp 1, tied, dropout, zero-1": {
        "pipelines": UNEQUAL_TP,
        "pipeline_schedule": "zero-bubble",
        "training": {"dropout": 0.1, "gradient_clipping": 0.5},
        "zero_stage": 1,
        "limits": IN_BLOCKS,
    },
    "zero bubble, three stages, every second block recomputed": {
        "pipelines": UNEQUAL_DEPTH,
        "pipeline_schedule": "zero-bubble",
        "recompute": 2,
    },
    "zero bubble, tp 1 into tp 2, llama": {
        "pipelines": ONE_INTO_TWO,
        "pipeline_schedule": "zero-bubble",
        "model": {"model_type": "llama", **GROUPED},
    },
    "zero bubble, slow devices": {
        "pipelines": UNEQUAL_CUT,
        "pipeline_schedule": "zero-bubble",
        "node_of_rank": ["fast", "slow", "slow", "fast"],
        "accelerators": {"slow": "CPU-slow"},
    },
    "interleaved, two replicas cut differently, clipping": {
        "pipelines": [(2, 4, TURNS), (1, 4, [(0, 1, 1, (2, 4)), (1, 2, 1, (4, 6))])],
        "pipeline_schedule": "interleaved",
        "training": {"gradient_clipping": 0.5},
    },
    "interleaved, tp 2, tied, recomputed, dropout": {
        "pipelines": [(3, 4, [(0, 2, 2, (3, 4)), (2, 3, 2, (4, 6))])],
        "pipeline_schedule": "interleaved",
        "recompute": 1,
        "training": {"dropout": 0.1, "gradient_clipping": 0.5},
    },
    "interleaved, tp 2 into tp 1, beside one device, zero-1, untied": {
        "pipelines": [(2, 4, [(0, 2, 2, (3, 4)), (2, 3, 1, (4, 6))]), (4, 1, [(0, 6, 1)])],
        "pipeline_schedule": "interleaved",
        "model": {"tied_head": False},
        "zero_stage": 1,
        "limits": {"bucket": 500},
    },
    "interleaved, three ranges, llama": {
        "pipelines": [(3, 4, [(0, 1, 1, (2, 3), (4, 5)), (1, 2, 1, (3, 4), (5, 6))])],
        "pipeline_schedule": "interleaved",
        "model": {"model_type": "llama", **GROUPED},
    },
    "interleaved, three stages, every second block recomputed": {
        "pipelines": [(2, 6, [(0, 1, 1, (3, 4)), (1, 2, 1, (4, 5)), (2, 3, 1, (5, 6))])],
        "pipeline_schedule": "interleaved",
        "recompute": 2,
    },
    "interleaved, rounds of three in two stages, compiled layers": {
        "pipelines": [(4, 3, TURNS)],
        "pipeline_schedule": "interleaved",
        "training": {"compile": True},
        "limits": {"compiler": "aot_eager"},
    },
    "interleaved islands that meet every second step": {
        "pipelines": [(2, 4, TURNS), (1, 4, [(0, 1, 1, (2, 4)), (1, 2, 1, (4, 6))])],
        "pipeline_schedule": "interleaved",
        **APART,
        "training": {"sync_every": 2},
    },
    "one device": {"pipelines": [(3, 4, [(0, 6, 1)])]},
    "sums over two zones": {"pipelines": UNEQUAL_CUT, **TWO_ZONES},
    "zero-1 over two zones, clipping": {
        "pipelines": THREE_PIPELINES,
        **TWO_ZONES,
        "zero_stage": 1,
        "training": {"gradient_clipping": 0.5},
    },
    "islands that meet every second step, clipping and dropout": {
        "pipelines": UNEQUAL_CUT,
        **APART,
        "training": {"sync_every": 2, "gradient_clipping": 0.5, "dropout": 0.1},
    },
    "islands of unequal tp, tied, zero-1": {
        "pipelines": UNEQUAL_TP,
        "node_of_rank": ["one", "one", "one", "two"],
        "zones": APART["zones"],
        "training": {"sync_every": 3},
        "zero_stage": 1,
    },
    "an island of two pipelines beside one of one": {
        "pipelines": THREE_PIPELINES,
        **TWO_ZONES,
        "training": {"sync_every": 2},
        "zero_stage": 1,
    },
    "compiled layers, tp 2 beside tp 1": {
        "pipelines": UNEQUAL_TP,
        "training": {"compile": True, "gradient_clipping": 0.5},
        "limits": {"compiler": "aot_eager"},
    },
    "many sums beside the backward pass": {
        "pipelines": [(4, 2, [(0, 2, 2), (2, 6, 1)]), (2, 2, [(0, 6, 1)])],
        "training": {"gradient_clipping": 0.5},
        "limits": {"bucket": 500},
    },
}

# Unequal shares of three key-value heads, stages of unequal depth, and beside them the model on one device.
CUT_TWICE = [(3, 2, [(0, 2, 2), (2, 6, 2)]), (6, 1, [(0, 6, 1)])]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 15}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": family("qwen3", head_dim=8),
    "gemma2": family("gemma2", head_dim=8, sliding_window=5, query_pre_attn_scalar=8) | {"tied_head": True},
    "gemma3_text": family(
        "gemma3_text",
        head_dim=8,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    | {"tied_head": True},
    "phi3": family("phi3"),
    "phi3, part of each head rotated": family(
        "phi3", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    ),
    "olmo2": family("olmo2"),
    "granite": family(
        "granite", embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.3
    ),
    "mixtral": family("mixtral", num_local_experts=4, sliding_window=5),
    "qwen2_moe": family("qwen2_moe", shared_expert_intermediate_size=24, **EXPERTS),
    "qwen3_moe": family("qwen3_moe", head_dim=8, **EXPERTS),
}
FAMILY_CASES: dict[str, dict[str, Any]] = {
    name: {"pipelines": CUT_TWICE, "model": {**GROUPED, **model}, "training": {"gradient_clipping": 0.5}}
    for name, model in FAMILIES.items()
}
FAMILY_CASES["qwen3_moe, whole experts"] = {
    "pipelines": CUT_TWICE,
    "model": {**GROUPED, **FAMILIES["qwen3_moe"], "whole_experts": True},
}
FAMILY_CASES["mixtral, whole experts"] = {
    "pipelines": [(4, 1, [(0, 6, 3)]), (4, 2, [(0, 6, 2)])],
    "model": {**GROUPED, **FAMILIES["mixtral"], "whole_experts": True},
    "zero_stage": 1,
}
FAMILY_CASES["gemma3_text"] |= {"zero_stage": 1, "recompute": 1}
FAMILY_CASES["phi3"] |= {"zero_stage": 1}
FAMILY_CASES["mixtral"] |= {"zero_stage": 1}
# Experts hand their weights to many products, a per-head norm its weight to one.
for _name in ("mixtral", "qwen3_moe"):
    FAMILY_CASES[_name] |= {"pipeline_schedule": "zero-bubble"}
FAMILY_CASES["olmo2"]["training"] = {"dropout": 0.1}
FAMILY_CASES["qwen3"]["training"] = {"dropout": 0.1}
FAMILY_CASES["gemma2"] |= {"limits": IN_BLOCKS}

CASES_OF_MODULES: dict[str, dict[str, Any]] = {
    "a user's own module": {
        "pipelines": CUT_TWICE,
        "model": {"module": "factories.layered_module:build"},
        "training": {"gradient_clipping": 0.5, "dropout": 0.1},
    },
    "adapters beside frozen weights": {
        "pipelines": [(3, 2, [(0, 1, 1), (1, 6, 2)]), (6, 1, [(0, 6, 1)])],
        "model": {"module": "factories.layered_module:build_with_adapters"},
        "training": {"gradient_clipping": 0.5},
    },
    "adapters beside frozen weights, interleaved, rounds of three in two stages": {
        "pipelines": [(2, 3, TURNS), (6, 1, [(0, 6, 1)])],
        "pipeline_schedule": "interleaved",
        "model": {"module": "factories.layered_module:build_with_adapters"},
    },
    "adapters beside frozen weights, zero-1, zero bubble": {
        "pipelines": CUT_TWICE,
        "pipeline_schedule": "zero-bubble",
        "model": {"module": "factories.layered_module:build_with_adapters"},
        "zero_stage": 1,
    },
}

SUMS = {"sums": "bf16", "precision": "fp32"}
LOW_CASES: dict[str, dict[str, Any]] = {
    "bf16": {"pipelines": UNEQUAL_TP},
    "fp16": {"pipelines": UNEQUAL_TP},
    "fp16, zero-1, llama": {"pipelines": UNEQUAL_TP, "zero_stage": 1, "model": {"model_type": "llama", **GROUPED}},
    "bf16, zero bubble": {"pipelines": UNEQUAL_TP, "pipeline_schedule": "zero-bubble"},
    "bf16, interleaved": {"pipelines": [(3, 4, TURNS)], "pipeline_schedule": "interleaved"},
    "bf16 sums of fp32, zero-1": {"pipelines": THREE_PIPELINES, "zero_stage": 1, "training": SUMS},
    "bf16 sums of fp32 over two zones": {"pipelines": UNEQUAL_CUT, **TWO_ZONES, "training": SUMS},
    "bf16, zero-1, recomputed, slow devices": {
        "pipelines": UNEQUAL_CUT,
        "zero_stage": 1,
        "recompute": 1,
        "node_of_rank": ["fast", "slow", "slow", "fast"],
        "accelerators": {"slow": "CPU-slow"},
    },
}

MUTATED_CASES: dict[str, dict[str, Any]] = {
    "double contribution": {"pipelines": UNEQUAL_TP},
    "mean instead of sum": {"pipelines": UNEQUAL_TP},
    "norm over all holders": {"pipelines": UNEQUAL_TP, "training": {"gradient_clipping": 0.5}},
    "untied copy": {"pipelines": UNEQUAL_TP},
    "doubled norm": {"pipelines": UNEQUAL_TP},
    "mean instead of sum, narrow": {**NARROW_LLAMA, "mutation": "mean instead of sum"},
}

SINGLE_CASES: dict[str, dict[str, Any]] = {
    name: {**EQUAL_CASES[name]}
    for name in (
        "tp 2 beside tp 1, tied",
        "tp 2 beside tp 1, dropout and clipping",
        "unequal depth, untied",
        "unequal cuts, recomputed",
        "tp 1 into tp 2, ragged vocabulary",
        "llama, tp 3 beside tp 2, clipping",
        "opt-350m, norms behind and projections",
        "zero-1, tp 3 beside tp 2, clipping",
        "many sums beside the backward pass",
    )
}


def run_world(cases: list[dict[str, Any]], folder: Path, *, timeout_s: float = 800.0) -> dict[str, dict[str, Any]]:
    """Run all cases in one world of as many ranks as the largest needs; return rank 0's results by case."""
    ranks = 0
    for case in cases:
        ranks = max(ranks, case["spec"].world_size)
        case["spec"] = dataclasses.asdict(case["spec"])
    (folder / "cases.json").write_text(json.dumps(cases))
    path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "tests")])
    program = ROOT / "tests" / "factories" / "plan_world.py"
    command = [sys.executable, str(program), str(folder / "cases.json"), str(folder / "results.json"), str(ranks)]
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, timeout=timeout_s, check=False)
    assert done.returncode == 0, _logs(folder)
    return json.loads((folder / "results.json").read_text())


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(folder.glob("rank*.log")))


def case_of(name: str, folder: Path, *, training: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    training = {**settings.pop("training", {}), **(training or {})}
    mutation, kind = settings.pop("mutation", None), settings.pop("kind", "equality")
    limits = settings.pop("limits", {})
    narrow = settings.pop("narrow", False)
    spec = run_spec(settings.pop("pipelines"), directory=folder, training=training, **settings)
    spec = narrowed(spec) if narrow else spec
    return {"name": name, "kind": kind, "spec": spec, "mutation": mutation, "limits": limits}


def _checkpoint(folder: Path) -> str:
    model = ModelSpec(**TINY)
    generator = torch.Generator().manual_seed(11)
    saved_weights.save(model, lambda spec: torch.randn(spec.shape, generator=generator) * 0.1, folder)
    return str(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("world")
    single = {"precision": "fp32", "optimizer": "sgd"}
    equal = {**EQUAL_CASES, **FAMILY_CASES, **CASES_OF_MODULES}
    cases = [case_of(name, folder, **settings) for name, settings in equal.items()]
    cases += [
        case_of(f"fp32 {name}", folder, **{**settings, "training": {**settings.get("training", {}), **single}})
        for name, settings in {**SINGLE_CASES, **FAMILY_CASES}.items()
    ]
    cases += [case_of(name, folder, **{"mutation": name, **settings}) for name, settings in MUTATED_CASES.items()]
    weights = _checkpoint(folder / "first")
    cases.append(case_of("weights from a checkpoint", folder, pipelines=UNEQUAL_TP, model={"weights": weights}))
    for name, settings in LOW_CASES.items():
        low = {"optimizer": "sgd", "gradient_clipping": 1.0, "precision": name[:4], **settings.get("training", {})}
        cases.append(case_of(name, folder, **{**settings, "training": low}, kind="closeness"))
    cases += _overflows(folder)
    # First, since it has ranks of its own, which would otherwise wait for the other cases.
    cases = [*metered(METERED, folder), *cases]
    found: dict[str, dict[str, Any]] = run_world(
        [*cases, *_interrupted(folder / "interrupted"), *_interrupted_islands(folder)], folder
    )
    found["interrupted"] = {"folder": folder / "interrupted"}
    return found


# Plans over two zones whose traffic is compared with the bill's: each pipeline's zones and cuts.
METERED: dict[str, dict[str, Any]] = {
    "tp 4 into tp 4": {"devices": 4, "pipelines": [("ab", (0, 3, 6))]},
    "interleaved, tp 2 into tp 2": {"devices": 2, "pipelines": [("ab", (0, 2, 3))], "later": [((3, 4),), ((4, 6),)]},
    "zero-1 moves as much as plain sums": {"devices": 1, "pipelines": [("a", (0, 6)), ("b", (0, 6))], "zero_stage": 1},
    "zones that meet every third step": {"devices": 1, "pipelines": [("a", (0, 6)), ("b", (0, 6))], "sync_every": 3},
    "sums in bf16": {"devices": 1, "pipelines": [("a", (0, 6)), ("b", (0, 6))], "sums": "bf16"},
    "two pipelines in each zone": {"devices": 1, "pipelines": [(zone, (0, 6)) for zone in "abab"]},
    "two pipelines in a zone, one in the other, zero-1": {
        "devices": 1,
        "pipelines": [(zone, (0, 6)) for zone in "aab"],
        "zero_stage": 1,
    },
}
METERED_MODEL = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
METERED_STEPS = 3


def metered_scenario(case: dict[str, Any]) -> tuple[Scenario, Plan]:
    """Return the scenario and the plan of a metered case."""
    training = {"sequence_length": 256, "precision": "fp32", "sync_every": case.get("sync_every")}
    training |= {"sums": case.get("sums", "fp32")}
    # Cuts carry the more the more microbatches there are, sums whatever the batch.
    size, count = (4, 6) if len(case["pipelines"]) == 1 else (1, case.get("microbatches", 1))
    job = make_job(model=METERED_MODEL, resources=[GCP], batch=size * count * len(case["pipelines"]), **training)
    scenario = make_scenario(job)
    offers = {
        zone: offer_in(scenario, f"us-central1-{zone}", "A100-40", devices=case["devices"]) for zone in ("a", "b")
    }
    chains = [
        chain(p, [offers[zone] for zone in zones], cuts, microbatch_size=size, microbatches=count)
        for p, (zones, cuts) in enumerate(case["pipelines"])
    ]
    plan = make_plan(scenario, chains, zero_stage=case.get("zero_stage", 0))
    if "later" in case:
        [pipeline] = plan.pipelines
        both = zip(pipeline.stages, case["later"], strict=True)
        stages = tuple(dataclasses.replace(stage, later_ranges=later) for stage, later in both)
        pipelines = (dataclasses.replace(pipeline, stages=stages),)
        plan = dataclasses.replace(plan, pipelines=pipelines, pipeline_schedule=PipelineSchedule.INTERLEAVED)
    return scenario, plan


def metered(metered_cases: dict[str, dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    cases = []
    for name, case in metered_cases.items():
        scenario, plan = metered_scenario(case)
        stages = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
        spec = run_spec(
            [
                (
                    pipeline.microbatch_size,
                    pipeline.microbatches,
                    [(stage.first_layer, stage.end_layer, stage.tp, *stage.later_ranges) for stage in pipeline.stages],
                )
                for pipeline in plan.pipelines
            ],
            directory=folder,
            pipeline_schedule=plan.pipeline_schedule.value,
            training={
                "global_batch_size": scenario.job.training.global_batch_size,
                "sequence_length": 256,
                "precision": "fp32",
                "sync_every": case.get("sync_every"),
                "sums": case.get("sums", "fp32"),
            },
            node_of_rank=[stage.node for stage in stages for _ in range(stage.tp)],
            zones={node.id: scenario.offers[node.offer].zone for node in plan.nodes},
            zero_stage=plan.zero_stage,
        )
        spec = dataclasses.replace(spec, model=model_spec(scenario.decoder))
        cases.append({"name": name, "kind": "traffic", "steps": METERED_STEPS, "spec": spec})
    return cases


def _overflows(folder: Path) -> list[dict[str, Any]]:
    """Return a case of one overflow among many steps, and one in the last of two steps, after which islands meet."""
    half = {"precision": "fp16"}
    many = case_of("overflow", folder, pipelines=UNEQUAL_TP, kind="overflow", training=half)
    apart = {
        "pipelines": [(6, 1, [(0, 6, 1)])] * 2,
        "node_of_rank": ["one", "two"],
        "zones": APART["zones"],
        "training": {**half, "sync_every": 2, "steps": 2, "warmup_steps": 0},
    }
    last = case_of("overflow in the last step", folder, kind="overflow", **apart)
    return [
        {**many, "steps": 25, "poisoned": POISONED},
        {**last, "steps": 2, "poisoned": 1, "first_scale": 1024.0},
    ]


def _interrupted_islands(folder: Path) -> list[dict[str, Any]]:
    """Return two cases of islands that meet every second step; the first stops between two such steps."""
    training = {"sync_every": 2, "steps": 6, "gradient_clipping": 0.5}
    return [
        {
            "name": f"islands {part}",
            "kind": "resumption",
            "steps": 3,
            "spec": run_spec(
                UNEQUAL_CUT, directory=folder, checkpoint_directory=str(folder / "islands"), training=training, **APART
            ),
        }
        for part in ("before", "after")
    ]


def test_islands_that_were_killed_between_two_meetings_continue_as_if_never_killed(results):
    before, after = results["islands before"], results["islands after"]
    assert (before["last_step"], after["first_step"], after["last_step"]) == (3, 3, 6)
    assert before["weights"] <= 1e-10, "each island is compared with its own reference"
    assert after["weights"] <= 1e-10


@pytest.mark.parametrize("name", METERED)
def test_the_egress_across_zones_is_that_of_the_bill(results, name):
    assert_metered_as_billed(METERED[name], results[name]["sent"])


def assert_metered_as_billed(case, every):
    scenario, plan = metered_scenario(case)
    zones = {node.id: scenario.offers[node.offer].zone for node in plan.nodes}
    sent: dict[tuple[str, str], float] = {}
    for src, dst, nbytes in every:
        if zones[src] != zones[dst]:
            key = zones[src], zones[dst]
            sent[key] = sent.get(key, 0.0) + nbytes / METERED_STEPS
    counted = run_iteration(lay_out(plan, scenario)).traffic
    assert sent == {key: pytest.approx(nbytes, rel=0.02) for key, nbytes in counted.items()}


POISONED = 22
INTERRUPTED = {"dropout": 0.1, "gradient_clipping": 0.5, "steps": 6}


def _data(folder: Path) -> DataSpec:
    return DataSpec(source=str(folder / "tokens.npy"), format="tokens", tokenizer=None)


def _interrupted(folder: Path) -> list[dict[str, Any]]:
    """Return cases that follow each other in one folder of checkpoints, each under another plan."""
    folder.mkdir()
    plans = {
        "first": ([(2, 4, TURNS), (1, 4, TURNS)], 1, "interleaved"),
        "second": (UNEQUAL_CUT, 0, "1f1b"),
        "third": ([(2, 4, [(0, 2, 2, (3, 4)), (2, 3, 1, (4, 6))]), (4, 1, [(0, 6, 1)])], 1, "interleaved"),
    }
    # Twenty samples are read three times over and more, so that epochs end within steps and within generations.
    np.save(folder / "tokens.npy", np.random.default_rng(3).integers(0, 64, 20 * 16 + 1, dtype=np.uint16))
    common = {"directory": folder, "training": INTERRUPTED, "data": _data(folder)}
    cases = [
        {
            "name": name,
            "kind": "resumption",
            "steps": 2,
            "limits": IN_BLOCKS,
            "spec": run_spec(pipelines, zero_stage=zero_stage, pipeline_schedule=schedule, **common),
        }
        for name, (pipelines, zero_stage, schedule) in plans.items()
    ]
    # The last one finds the newest checkpoint damaged, and continues from the one before.
    spec = run_spec(UNEQUAL_CUT, pipeline_schedule="zero-bubble", **common)
    cases.append({**cases[1], "name": "fourth", "damaged": "step-6", "spec": spec})
    return cases


@pytest.mark.parametrize("name", [*EQUAL_CASES, *FAMILY_CASES, *CASES_OF_MODULES])
def test_weights_in_float64_equal_those_of_one_process(results, name):
    assert results[name]["weights"] <= 1e-10
    assert results[name]["losses"] <= 1e-10
    assert results[name]["norms"] <= 1e-10


def test_training_begins_from_the_weights_of_a_checkpoint_under_any_plan(results):
    assert results["weights from a checkpoint"]["weights"] <= 1e-10
    assert results["weights from a checkpoint"]["first_loss"] != results["tp 2 beside tp 1, tied"]["first_loss"]


@pytest.mark.parametrize("name", SINGLE_CASES)
def test_weights_in_float32_equal_those_of_one_process_with_sgd(results, name):
    assert results[f"fp32 {name}"]["weights"] <= 1e-6


@pytest.mark.parametrize("name", FAMILY_CASES)
def test_weights_of_a_family_in_float32_equal_those_of_transformers_in_one_process(results, name):
    assert results[f"fp32 {name}"]["weights"] <= 1e-5


@pytest.mark.parametrize("name", MUTATED_CASES)
def test_the_comparison_catches_a_wrong_gradient_rule(results, name):
    assert max(results[name]["weights"], results[name]["norms"]) > 1e-4


@pytest.mark.parametrize("name", LOW_CASES)
def test_sixteen_bits_stay_close_to_float64(results, name):
    # 8 bits of mantissa in bf16 and 11 in fp16, through a few layers and five steps.
    assert results[name]["share"] < (0.03 if name.startswith("bf16") else 0.005)


def test_steps_that_overflow_fp16_are_skipped_by_all_ranks_until_the_scale_fits(results):
    ranks = results["overflow"]["ranks"]
    assert len(ranks) == 4
    assert all(found == ranks[0] for found in ranks), "all ranks decide alike"
    steps, finite = ranks[0]
    skipped, scales, updates = zip(*steps, strict=True)
    assert skipped[0]
    assert scales[-1] < results["overflow"]["first_scale"]
    # Two of the ranks do not hold what was infinite on the last one.
    assert skipped[POISONED - 1 : POISONED + 2] == (False, True, False)
    assert scales[POISONED] == scales[POISONED - 1] / 2
    assert finite
    assert updates[-1] == skipped.count(False)


def test_islands_meet_after_the_last_step_even_if_it_overflows(results):
    found = results["overflow in the last step"]
    assert [[skipped for skipped, _, _ in steps] for steps, _ in found["ranks"]] == [[False, True]] * 2
    one, two = found["weights"]
    assert one == two


def test_training_continues_under_another_plan_as_if_never_interrupted(results, tmp_path, monkeypatch, capsys):
    folder = results["interrupted"]["folder"]
    found = [results[name] for name in ("first", "second", "third", "fourth")]
    assert [(each["first_step"], each["last_step"]) for each in found] == [(0, 2), (2, 4), (4, 6), (4, 6)]
    assert all(each["weights"] <= 1e-10 for each in found), found
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["latest", "step-4", "step-6"]
    assert (folder / "checkpoints" / "latest").read_text() == "step-6"
    model, training = ModelSpec(**TINY), TrainingSpec(**{**SHORT_TRAINING, **INTERRUPTED})
    samples = open_samples(run_spec(UNEQUAL_CUT, directory=folder, training=INTERRUPTED, data=_data(folder)))
    expected = reference.train(model, training, samples.read, steps=6).weights
    step = str(folder / "checkpoints" / "step-6")
    monkeypatch.setattr("sys.argv", ["export", "--checkpoint", step, "--out", str(tmp_path / "model")])
    assert export.main() == 0
    assert "parameters of a gpt2 model" in capsys.readouterr().out
    saved = SavedWeights(tmp_path / "model")
    for name, spec in range_parameters(model, range(model.layers)).items():
        torch.testing.assert_close(saved.full_parameter(spec, torch.float64), expected[name], atol=1e-6, rtol=0)
