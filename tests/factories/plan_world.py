"""A test world: imports torch once, forks its ranks, joins once per case and trains it; rank 0 writes what came out.

Usage: plan_world.py CASES.json RESULTS.json RANKS. A case is {name, kind, spec, ...}; ranks beyond its world skip it.
Each rank writes to rank<number>.log beside the cases. The first rank that fails ends the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from sailor_runtime.spec import RunSpec
from sailor_runtime.training import environment
from sailor_runtime.training.pipeline import layout

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    cases = json.loads(Path(sys.argv[1]).read_text())
    folder = Path(sys.argv[1]).parent
    environment.prepare(RunSpec.from_json(json.dumps(cases[0]["spec"])), 0, folder)
    from sailor_runtime.training import trainer  # noqa: F401

    children = []
    for rank in range(int(sys.argv[3])):
        child = os.fork()
        if child == 0:
            _rank(cases, rank, folder)
        children.append(child)
    failed = False
    while children:
        child, status = os.wait()
        children.remove(child)
        if status != 0:
            failed = True
            for other in children:
                os.kill(other, signal.SIGKILL)
    return int(failed)


def _rank(cases: list[dict[str, Any]], rank: int, folder: Path) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        from sailor_runtime.training.pipeline import process_groups

        results = {}
        shared = _store(RunSpec.from_json(json.dumps(cases[0]["spec"])), rank)
        for number, case in enumerate(cases):
            spec = RunSpec.from_json(json.dumps(case["spec"]))
            if rank < spec.world_size:
                environment.prepare(spec, rank, folder)
                process_groups.open_store = partial(_of_case, number, shared)
                with _limits(case.get("limits", {})):
                    results[case["name"]] = KINDS[case["kind"]](case, spec, rank)
        if rank == 0:
            Path(sys.argv[2]).write_text(json.dumps(results))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _store(spec: RunSpec, rank: int) -> Any:
    """Return a store for all cases: ranks that open one for each case wait long between their attempts."""
    from datetime import timedelta

    from sailor_runtime.training.pipeline.store import open_store

    return open_store(
        spec.master_address, spec.master_port, rank=rank, size=int(sys.argv[3]), timeout=timedelta(minutes=30)
    )


def _of_case(number: int, shared: Any, *_: Any, **__: Any) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(str(number), shared)


class Member:
    """One rank of one case."""

    def __init__(self, spec: RunSpec, rank: int, atoms: tuple[layout.Atom, ...] | None = None) -> None:
        from sailor_runtime.training import trainer
        from sailor_runtime.training.data.samples import open_samples
        from sailor_runtime.training.pipeline.devices import device_of
        from sailor_runtime.training.pipeline.process_groups import World

        trainer.check(spec)
        self.spec = spec
        self.place = layout.places(spec)[rank]
        self.atoms = layout.atoms(spec) if atoms is None else atoms
        stage = spec.pipelines[self.place.pipeline].stages[self.place.stage]
        self.device = device_of(spec.node_of(rank), stage.devices[self.place.tp_index])
        self.samples = open_samples(spec)
        self.world = World(spec, rank, self.atoms, backend="gloo")

    def engine(self) -> Any:
        from sailor_runtime.training.engine import Engine
        from sailor_runtime.training.optimizer.precision import precision_of

        precision = precision_of(self.spec.training.precision)
        return Engine(self.spec, self.place, self.world, self.atoms, self.samples, self.device, precision)


def equality(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, float]:
    """Train under the plan and in one process; return the differences."""
    from sailor_runtime.training import verify

    atoms = layout.atoms(spec)
    if case.get("mutation") == "double contribution":
        atoms = tuple(replace(atom, contributors=frozenset(atom.holders)) for atom in atoms)
    member = Member(spec, rank, atoms)
    engine = member.engine()
    if mutation := case.get("mutation"):
        MUTATIONS[mutation](engine)
    outcome = verify.verify(
        engine, member.world, member.samples, steps=spec.training.steps, tolerance=0.0, alive=lambda: None
    )
    member.world.close()
    return {
        "weights": outcome.max_abs_difference,
        "losses": outcome.loss_difference,
        "norms": outcome.norm_difference,
        "first_loss": outcome.losses[0],
    }


@contextlib.contextmanager
def _limits(wanted: dict[str, Any]) -> Iterator[None]:
    """Let what a real model needs many messages or blocks for need them with a small one, and compile it fast."""
    from sailor_runtime.training.model import attention, loss
    from sailor_runtime.training.optimizer import gradients
    from sailor_runtime.training.pipeline import stage

    places = {
        "bucket": (gradients, "BUCKET_ELEMENTS"),
        "attention": (attention, "BLOCK_ELEMENTS"),
        "logits": (loss, "CHUNK_ELEMENTS"),
        "compiler": (stage, "COMPILER"),
    }
    before = {what: getattr(*places[what]) for what in wanted}
    for what, limit in wanted.items():
        setattr(*places[what], limit)
    yield
    for what, limit in before.items():
        setattr(*places[what], limit)


def _mean_instead_of_sum(engine: Any) -> None:
    """Let each pipeline average over its own samples, then average over pipelines."""
    original, pipeline = engine._microbatch, engine._pipeline
    share = pipeline.microbatch_size * pipeline.microbatches / engine.spec.training.global_batch_size
    factor = 1.0 / (share * len(engine.spec.pipelines))
    weighted = lambda given: replace(given, weight=given.weight * factor)  # noqa: E731
    engine._microbatch = lambda number, with_tokens: weighted(original(number, with_tokens))


def _norm_over_all_holders(engine: Any) -> None:
    sums = engine._gradients
    sums.buckets = [
        replace(bucket, parts=tuple(replace(part, counts=True) for part in bucket.parts)) for bucket in sums.buckets
    ]


def _doubled_norm(engine: Any) -> None:
    original = engine._gradients.finish
    engine._gradients.finish = lambda: 4.0 * original()


def _untied_copy(engine: Any) -> None:
    sums = engine._gradients
    kept = [
        replace(bucket, parts=tuple(part for part in bucket.parts if part.parameter != "transformer.wte.weight"))
        for bucket in sums.buckets
    ]
    sums.buckets = [bucket for bucket in kept if bucket.parts]


def _first_step_of_a_cuda_device(engine: Any) -> None:
    """Let nothing run ahead or beside the passes before all kernels are loaded."""
    engine._overlaps = False


MUTATIONS: dict[str, Callable[[Any], None]] = {
    "double contribution": lambda engine: None,
    "mean instead of sum": _mean_instead_of_sum,
    "norm over all holders": _norm_over_all_holders,
    "untied copy": _untied_copy,
    "doubled norm": _doubled_norm,
    "first step of a CUDA device": _first_step_of_a_cuda_device,
}


def resumption(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, Any]:
    """Train half of the steps, or continue from another case's checkpoint; return the largest error of the weights."""
    from sailor_runtime.training import verify
    from sailor_runtime.training.checkpoint.checkpoint import Checkpoints

    member = Member(spec, rank)
    engine = member.engine()
    checkpoints = Checkpoints(spec.checkpoint.directory, spec.checkpoint.keep, member.world, member.atoms)
    if case.get("damaged") and rank == 0:
        _flip_a_byte(next(Path(spec.checkpoint.directory, case["damaged"]).glob("__1_*")))
    start, _ = checkpoints.latest()
    if start is not None:
        checkpoints.load(engine, start)
    first = engine.next_step
    for _ in range(case["steps"]):
        engine.step()
    checkpoints.begin(engine)
    checkpoints.wait()
    expected = None
    if rank == 0:
        expected = verify.reference_of(spec, member.samples.read, steps=engine.next_step)
    difference = verify.weight_difference(engine, member.world, expected)
    member.world.close()
    return {"first_step": first, "last_step": engine.next_step, "weights": difference}


def exchange(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, Any]:
    """Take in the weights that the spec names, and save them as a checkpoint before the first step."""
    from sailor_runtime.training.checkpoint.checkpoint import Checkpoints, Saved

    member = Member(spec, rank)
    checkpoints = Checkpoints(spec.checkpoint.directory, spec.checkpoint.keep, member.world, member.atoms)
    checkpoints.begin(member.engine())
    saved = checkpoints.wait()
    assert isinstance(saved, Saved), saved
    member.world.close()
    return {"checkpoint": saved.path}


def half(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, Any]:
    """Train `steps` steps in fp16, from what another case has saved if there is something, and save.

    Returns the loss scale before and after, and all master weights that this rank 0 holds of what was loaded.
    """
    from sailor_runtime.training.checkpoint.checkpoint import Checkpoints, Saved

    member = Member(spec, rank)
    engine = member.engine()
    engine.scale.scale = case["first_scale"]
    checkpoints = Checkpoints(spec.checkpoint.directory, spec.checkpoint.keep, member.world, member.atoms)
    start, _ = checkpoints.latest()
    notes = {} if start is None else checkpoints.load(engine, start)
    found = {"scale_at_start": engine.scale.scale, "good_at_start": engine.scale.good_steps, "notes": notes}
    found |= {"first_step": engine.next_step, "updates_at_start": engine.updates}
    losses = [engine.step().loss for _ in range(case["steps"])]
    checkpoints.begin(engine, {"kept": "beside"})
    assert isinstance(checkpoints.wait(), Saved)
    member.world.close()
    found |= {"scale": engine.scale.scale, "good": engine.scale.good_steps, "updates": engine.updates}
    return {**found, "losses": losses}


def _flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def closeness(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, float]:
    """Return how far weights are from those of one process in float64, as a share of how far they have moved."""
    import torch
    import torch.distributed as dist

    from sailor_runtime.training import reference

    member = Member(spec, rank)
    engine = member.engine()
    for _ in range(spec.training.steps):
        engine.step()
    start, end = (
        reference.train(spec.model, spec.training, member.samples.read, steps=steps).weights
        for steps in (0, spec.training.steps)
    )
    largest = torch.zeros(2, dtype=torch.float64)
    for piece in engine.weights.pieces:
        shard = engine.module.shards[piece.parameter]
        for offsets, held in piece.boxes(shard, piece.value.detach()):
            box = tuple(slice(offset, offset + size) for offset, size in zip(offsets, held.shape, strict=True))
            for index, expected in enumerate((start, end)):
                difference = (held - expected[piece.parameter][box]).abs().max()
                largest[index] = torch.maximum(largest[index], difference)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    member.world.close()
    return {"share": (largest[1] / largest[0]).item()}


def overflow(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, Any]:
    """Train from a given loss scale, by default far too large; in one step the last rank has an infinite gradient.

    Returns what each rank has decided in each step, whether it was skipped, the scale and the number of updates, and
    what its weights add up to.
    """
    import torch.distributed as dist

    member = Member(spec, rank)
    engine = member.engine()
    engine.scale.scale = first_scale = case.get("first_scale", 2.0**36)
    steps = []
    for step in range(case["steps"]):
        if step == case["poisoned"] and rank == spec.world_size - 1:
            _poison(engine)
        skipped = engine.step().skipped
        steps.append((skipped, engine.scale.scale, engine.updates))
    engine.weights.wait_for_all()
    weights = sum(parameter.double().sum().item() for parameter in engine.module.parameters.values())
    everyone: list[Any] = [None] * spec.world_size
    dist.all_gather_object(everyone, (steps, math.isfinite(weights), weights), group=member.world.everyone)
    member.world.close()
    return {
        "first_scale": first_scale,
        "ranks": [each[:2] for each in everyone],
        "weights": [each[2] for each in everyone],
    }


def _poison(engine: Any) -> None:
    """Make a gradient of the head infinite once."""
    original = engine._gradients.layer_done

    def layer_done(layer: int) -> None:
        engine._gradients.layer_done = original
        engine.module.gradient("transformer.ln_f.weight")[0] = math.inf
        original(layer)

    engine._gradients.layer_done = layer_done


def traffic(case: dict[str, Any], spec: RunSpec, rank: int) -> dict[str, Any]:
    """Return the bytes that the ranks of each node send to other nodes in `steps` steps, by the kernel's account.

    Without what TCP sends again: on a busy machine, one repeat of 64 KiB is 2 % of these few steps.
    """
    import torch.distributed as dist

    from sailor_runtime.training.observe.traffic import Connection, TrafficMeter, connections

    def without_repeats() -> Iterator[Connection]:
        for one in connections():
            yield one._replace(sent_bytes=one.sent_bytes - one.repeated_bytes)

    member = Member(spec, rank)
    engine, meter = member.engine(), TrafficMeter(spec, rank)
    engine.step()
    engine.weights.wait_for_all()
    meter.connect(member.world)
    with mock.patch("sailor_runtime.training.observe.traffic.connections", without_repeats):
        before = meter.read(now=True) or {}
        for _ in range(case["steps"]):
            engine.step()
        engine.weights.wait_for_all()
        # What was sent is counted once the other end has it.
        dist.barrier(group=member.world.everyone)
        after = meter.read(now=True) or {}
    everyone: list[Any] = [None] * spec.world_size
    own = spec.node_of(rank).id
    sent = [(own, node, nbytes - before.get(node, 0)) for node, nbytes in after.items()]
    dist.all_gather_object(everyone, sent, group=member.world.everyone)
    member.world.close()
    return {"sent": [each for of_rank in everyone for each in of_rank], "kept": _kept(engine)}


def _kept(engine: Any) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state that a rank has between two steps."""
    import torch

    parameters = engine.module.parameters.values()
    states = [value for state in engine.optimizer.state.values() for value in state.values()]
    of_passes = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {
        "weights": sum(parameter.untyped_storage().nbytes() for parameter in parameters),
        "gradients": sum(each.nbytes for each in [*of_passes, *engine._gradients._sums_of_shares]),
        "optimizer": sum(piece.value.nbytes for piece in engine.weights.pieces)
        + sum(value.nbytes for value in states if isinstance(value, torch.Tensor)),
    }


KINDS: dict[str, Callable[[dict[str, Any], RunSpec, int], dict[str, Any]]] = {
    "equality": equality,
    "resumption": resumption,
    "closeness": closeness,
    "overflow": overflow,
    "exchange": exchange,
    "half": half,
    "traffic": traffic,
}


if __name__ == "__main__":
    sys.exit(main())
