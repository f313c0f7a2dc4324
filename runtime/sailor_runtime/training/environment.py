"""Process settings that must be made before torch and deepspeed are imported."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import IO

from sailor_runtime.packages import installing, library
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.stand_in import runs_on_cpu
from sailor_runtime.training.interfaces import LOOPBACK, interface_of

# The interval at which a rank reports itself alive while a node is set up.
_LOOK_S = 1.0
# Constants of glibc's malloc.h, with their maxima.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = (-1, 2**31 - 1), (-3, 2**25)


def prepare(spec: RunSpec, rank: int, home: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that torch, gloo and deepspeed read during import; add the user's own code.

    No DeepSpeed extension is compiled on first use, since such builds take minutes.
    """
    if spec.model.code is not None:
        sys.path[:0] = [str(home / spec.model.code), str(library(home))]
    node = spec.node_of(rank)
    if runs_on_cpu(node.accelerator):
        environ["DS_ACCELERATOR"] = "cpu"
        environ["CUDA_VISIBLE_DEVICES"] = ""
        environ["OMP_NUM_THREADS"] = "1"
        # If cores are shared, threads that spin at a barrier keep the awaited one from running.
        environ["OMP_WAIT_POLICY"] = "passive"
        _keep_freed_memory()
    else:
        # Streams that share a queue wait for each other, and a receive waits for another stage's send.
        environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        # When memory is short, torch frees what it caches. With cudaFree that waits for the whole device, so also for
        # receives that are posted ahead; two neighbours would wait for each other. These segments wait for one stream.
        environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    environ["DS_BUILD_OPS"] = "0"
    environ["DS_IGNORE_CUDA_DETECTION"] = "1"
    environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    environ.setdefault("TORCH_EXTENSIONS_DIR", str(home / "torch_extensions"))
    environ.setdefault("SAILOR_RUNTIME_CACHE", str(home))
    environ.setdefault("TRITON_CACHE_DIR", str(home / "triton"))
    if interface := interface_of(spec, rank):
        # Without the sign NCCL also takes interfaces whose names only begin like this.
        chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
        # A cluster's own choice stays, but nodes on one machine must use the loopback.
        environ.update(chosen if interface == LOOPBACK else {**chosen, **environ})


def _keep_freed_memory() -> None:
    """Have glibc keep freed memory: else the kernel clears the pages of gradients again in each step."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(*_M_TRIM_THRESHOLD)
        libc.mallopt(*_M_MMAP_THRESHOLD)


def set_up(spec: RunSpec, home: Path, alive: Callable[[], None]) -> None:
    """Run the job's `setup` in the folder of the user's code, once for these files on this node; other ranks wait.

    alive: called regularly meanwhile. Raises RefusedError if it fails.
    """
    command, code = spec.model.setup, spec.model.code
    if command is None or code is None:
        return
    done, wanted = home / "setup.done", json.dumps([command, code])
    with (home / "setup.lock").open("w") as lock:
        while not _taken(lock):
            time.sleep(_LOOK_S)
            alive()
        if done.exists() and done.read_text() == wanted:
            return
        # Its output goes into the rank's log.
        process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=home / code,
            env={**os.environ, **installing(home)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_LOOK_S)
            alive()
        if process.returncode != 0:
            raise RefusedError(f"setup ended with exit code {process.returncode}: {command}")
        done.write_text(wanted)
    importlib.invalidate_caches()


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
