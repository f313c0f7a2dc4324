"""A small artifact in the layout of Sailor's data files, with made-up figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BLOCKS, LAYERS = 24, 26
HIDDEN, VOCABULARY, TOKENS = 1024, 50304, 2048
SENT = {"act_output_floats": TOKENS * HIDDEN}
CURVE = [[-0.01, 0.3, 2.0], 5.0e9]
ZONES = ("us-central1-a", "us-central1-b", "us-west1-b")


def block_seconds(microbatch_size: int, tp: int, speed: float) -> tuple[float, float]:
    """A law that the fit's features can express: overhead plus work over devices."""
    forward = 1e-4 + 8e-3 * microbatch_size / tp / speed
    return forward, 2.0 * forward


def write_artifact(folder: Path, *, gpus: dict[str, float] | None = None) -> Path:
    """Write the files for OPT-350 on some GPUs, by relative speed; return the folder."""
    gpus = gpus or {"A100-40": 4.0, "V100-16": 1.0, "Titan-RTX": 0.5}
    (folder / "configs").mkdir(parents=True)
    sizes = {str(tp): _sizes(tp) for tp in (1, 2, 4)}
    _write(folder / "llm_info.json", {"OPT-350": sizes})
    times = {
        gpu: {str(m): {str(tp): _times(m, tp, speed) for tp in (1, 2, 4)} for m in (1, 2, 4)}
        for gpu, speed in gpus.items()
    }
    _write(folder / "simulator_profiles.json", {"OPT-350": times})
    _write(
        folder / "communication_cost.json",
        {src: {dst: _cost(src, dst) for dst in ZONES} for src in ZONES},
    )
    per_pair = {str(n): CURVE for n in (1, 2, 4)}
    ends = {zone: dict.fromkeys(gpus, per_pair) for zone in ZONES}
    between = {zone: {gpu: {str(n): ends for n in (1, 2, 4)} for gpu in gpus} for zone in ZONES}
    _write(folder / "multizone_bandwidths_het.json", between)
    _write(folder / "intra_node_bandwidths.json", {gpu: {"2": CURVE, "4": CURVE} for gpu in gpus})
    nodes: dict[str, Any] = {gpu: {"gpus_per_node": 4, "mem_per_gpu": 2**34} for gpu in gpus}
    _write(folder / "configs" / "basic_cluster_config.json", {**nodes, "zone": ZONES[0]})
    _write(folder / "configs" / "training_config_opt_350.json", {"model": "OPT-350", "global_batch_size": 64})
    (folder / "configs" / "gpu_trace_mixed.csv").write_text(
        ",Timestamp,A100-40_us-central1-a,V100-16_us-central1-b\n0,1.0,8,16\n1,2.0,0,4\n"
    )
    return folder


def write_public_tree(folder: Path) -> Path:
    """Write the same files as they lie in the artifact's public repository; return its root.

    The planner's profiles are a file each; that of the V100 differs from the simulator's, and only the planner has the
    Titan's.
    """
    flat = write_artifact(folder / "flat")
    planner, providers = folder / "repository/sailor/Planner", folder / "repository/sailor/providers"
    times = json.loads((flat / "simulator_profiles.json").read_text())["OPT-350"]
    simulator = {"OPT-350": {gpu: table for gpu, table in times.items() if gpu != "Titan-RTX"}}
    _write(planner / "simulations/profiles_tmp.json", simulator)
    times["V100-16"]["1"]["1"]["1"][0] *= 2.0
    for gpu, table in times.items():
        _write(planner / f"sailor_planner/profiles/OPT-350/{gpu}/profile.json", table)
    for source, target in (
        ("llm_info.json", planner),
        ("multizone_bandwidths_het.json", providers),
        ("intra_node_bandwidths.json", providers),
        ("communication_cost.json", providers / "gcp"),
    ):
        target.mkdir(parents=True, exist_ok=True)
        (flat / source).rename(target / source)
    (flat / "configs").rename(planner / "simulations/configs")
    return folder / "repository"


def _cost(src: str, dst: str) -> float:
    if src == dst:
        return 0.0
    return 0.01 if src[:-2] == dst[:-2] else 0.02


def _times(microbatch_size: int, tp: int, speed: float) -> dict[str, list[float]]:
    forward, backward = block_seconds(microbatch_size, tp, speed)
    table = {str(layer): [forward, backward, 2e-3 / tp] for layer in range(1, BLOCKS + 1)}
    return {"0": [5e-4, 1e-6, 2e-3 / tp], **table, str(LAYERS - 1): [3 * forward, 3 * backward, 2e-3 / tp]}


def _sizes(tp: int) -> dict[str, dict[str, int]]:
    block = {"params_floats": 12 * HIDDEN * HIDDEN // tp, "act_mem_floats": 40_000_000 // tp, **SENT}
    embedding = {"params_floats": VOCABULARY * HIDDEN // tp, "act_mem_floats": TOKENS * HIDDEN, **SENT}
    head = {"params_floats": VOCABULARY * HIDDEN // tp, "act_mem_floats": 2 * TOKENS * VOCABULARY // tp, **SENT}
    return {"0": embedding, **{str(i): block for i in range(1, BLOCKS + 1)}, str(LAYERS - 1): head}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
