"""Runs the runtime's profiler as a process on this machine and follows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor_cloud import resources
from sailor_cloud.errors import LaunchError, RequestError
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Job
from sailor_cloud.workload import tp_problem
from sailor_runtime.profile.results import Results
from sailor_runtime.profile.task import LinkTask, ProfileTask

MEASUREMENTS = "measurements.jsonl"
_LOCAL = "CPU-"
_SLOW = {"CPU-slow": "CPU-fast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """The measurements that a user asks for; None leaves the choice to the job."""

    accelerator: str | None = None
    microbatch_sizes: tuple[int, ...] | None = None
    tps: tuple[int, ...] = (1,)
    together: int = 1
    link: LinkTask | None = None


def task_of(job: Job, decoder: Decoder, wanted: ProfileRequest) -> ProfileTask:
    """Return the measurements for a job. Raises RequestError if the job can't be trained like that."""
    batch = job.training.global_batch_size
    sizes = wanted.microbatch_sizes or tuple(2**power for power in range(4) if 2**power <= batch)
    for size in sizes:
        if size > batch:
            raise RequestError(f"microbatch size {size} is larger than the job's global batch of {batch}")
    for tp in wanted.tps:
        fault = tp_problem(decoder, tp)
        if fault is not None:
            raise RequestError(fault)
    return ProfileTask(
        model=model_spec(decoder),
        sequence_length=job.training.sequence_length,
        precision=job.training.precision.value,
        optimizer=job.training.optimizer.value,
        accelerator=_accelerator(job, wanted.accelerator),
        microbatch_sizes=tuple(sorted(set(sizes))),
        tps=tuple(sorted(set(wanted.tps))),
        together=wanted.together,
        link=wanted.link or LinkTask(),
    )


def _accelerator(job: Job, chosen: str | None) -> str:
    """Return the accelerator to measure; CPU-slow is defined as twice CPU-fast and never measured."""
    known = {name for resource in job.resources for name in resource.accelerators}
    if chosen is not None and chosen not in known:
        raise RequestError(f"the job does not use {chosen}; it uses {', '.join(sorted(known))}")
    names = {_SLOW.get(name, name) for name in ({chosen} if chosen else known)}
    if len(names) > 1:
        raise RequestError(
            f"the job uses {', '.join(sorted(known))}; name the one that this machine has with --accelerator"
        )
    return names.pop()


def is_local(accelerator: str) -> bool:
    return accelerator.startswith(_LOCAL)


def run_profile(task: ProfileTask, folder: Path, progress: Callable[[int, int, str], None]) -> list[dict[str, Any]]:
    """Measure what `folder` lacks and return all rows of the task.

    progress: called with the number of measurements done, their total, and the current one. Finished measurements
    survive an interrupt. Raises LaunchError with the profiler's error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sailor-profile-") as name:
        file = Path(name) / "task.json"
        file.write_text(task.to_json(), encoding="utf-8")
        command = [sys.executable, "-m", "sailor_runtime.profile", "--task", str(file)]
        command += ["--results", str(folder / MEASUREMENTS)]
        process = subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        with process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                for line in process.stdout:
                    step = json.loads(line)
                    progress(step["done"], step["of"], step["what"])
                reason = process.stderr.read().strip()
            except BaseException:
                # This signal makes the profiler end its ranks.
                process.terminate()
                raise
    if process.returncode != 0:
        raise LaunchError(f"measuring failed: {reason.splitlines()[-1] if reason else 'no reason given'}")
    rows: list[dict[str, Any]] = Results(folder / MEASUREMENTS, task.key).rows
    return rows


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(resources.runtime_root()), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}
