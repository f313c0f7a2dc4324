"""Process settings that must stand before torch and deepspeed are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from sailor_runtime.spec import NodeSpec, RunSpec
from sailor_runtime.stand_in import runs_on_cpu


def prepare(spec: RunSpec, rank: int, home: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that torch, gloo and deepspeed read while they are imported; find the user's own code.

    Every DeepSpeed extension that would be compiled on first use stays off, since such builds take minutes.
    """
    if spec.model.code is not None:
        sys.path.insert(0, str(home / spec.model.code))
    node = node_of(spec, rank)
    if runs_on_cpu(node.accelerator):
        environ["DS_ACCELERATOR"] = "cpu"
        environ["CUDA_VISIBLE_DEVICES"] = ""
        environ["OMP_NUM_THREADS"] = "1"
        # Where cores are shared, threads that spin at a barrier keep the one they wait for from running.
        environ["OMP_WAIT_POLICY"] = "passive"
    environ["DS_BUILD_OPS"] = "0"
    environ["DS_IGNORE_CUDA_DETECTION"] = "1"
    environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    environ.setdefault("TORCH_EXTENSIONS_DIR", str(home / "torch_extensions"))
    environ.setdefault("SAILOR_RUNTIME_CACHE", str(home))
    environ.setdefault("TRITON_CACHE_DIR", str(home / "triton"))
    if all(other.address.startswith("127.") for other in spec.nodes):
        environ["GLOO_SOCKET_IFNAME"] = "lo"


def node_of(spec: RunSpec, rank: int) -> NodeSpec:
    """Return the node on which a rank runs. Raises KeyError for an unknown rank or node."""
    for pipeline in spec.pipelines:
        for stage in pipeline.stages:
            if rank in stage.ranks:
                return next(node for node in spec.nodes if node.id == stage.node)
    raise KeyError(f"rank {rank} is in no stage of the spec")
