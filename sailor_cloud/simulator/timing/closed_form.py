"""Formulas for the search: pure, vectorised over leading axes, with a tested distance from the replay.

An iteration takes (M - 1) * bottleneck + fill + gradient sync + optimizer step, M being the microbatches of a pipeline.
The bottleneck is the stage that is busy longest per microbatch; the fill is one microbatch's time forward through all
stages and back.

Distance from the replay, tested on random pipelines whose tensors take no longer than the compute next to them: the
replay is at most 1 % longer in 99 of 100, and never more than 12 %. That happens with few microbatches whose forward
and backward passes are delayed by different stages. The replay is shorter by at most 1.25 fills. Whole plans: at most 5
% longer, and shorter by at most 2.5 of the longest fill (60 random plans, and 40 that share network cards). If sums run
during the backward pass, which the closed form ignores, it is shorter by at most 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.network import Link
from sailor_cloud.simulator.engine import Engine, Transfers

Floats = NDArray[np.float64]


def in_flight(stages: ArrayLike, stage: ArrayLike, microbatches: ArrayLike) -> Any:
    """Return the most microbatches whose activations a stage holds under 1F1B: min(stages - stage, microbatches).

    With halved backward passes every stage holds as many as the first one, and gradients of outputs in addition.
    """
    return np.minimum(np.asarray(stages) - np.asarray(stage), np.asarray(microbatches))


def boundary_pairs(src_tp: int, dst_tp: int) -> int:
    """Return the number of device pairs that send simultaneously over the cut between two stages."""
    return min(src_tp, dst_tp)


def boundary_s(forward_link: Link, backward_link: Link, tensor_bytes: Any, *, engine: Engine) -> Any:
    """Return the seconds of one microbatch's activation and gradient over one cut, one after the other.

    A tensor crosses a cut once, in parts that the devices of the receiving stage then gather. That gathering takes less
    than one of a block's all-reduces and is left out.
    """
    return forward_link.transfer_s(tensor_bytes) + backward_link.transfer_s(tensor_bytes) + 2.0 * engine.message_s


def busy_s(compute_s: Floats, boundary_s: Floats, *, engine: Engine) -> Floats:
    """Return how long each stage is busy with one microbatch.

    compute_s: [..., stages]; boundary_s: [..., stages - 1]. Blocking transfers keep both ends busy. If the receiver
    waits, DeepSpeed's order applies: a stage takes its gradient before it sends its activation. A stage then waits for
    both tensors of the cut before it and for the gradient of the cut after it, counted as half. Overlapped transfers
    matter only if a run of neighbours passes microbatches around: (their compute + the cuts between them) / their
    number.
    """
    nothing = np.zeros_like(compute_s[..., :1])
    before = np.concatenate([nothing, boundary_s], axis=-1)
    after = np.concatenate([boundary_s, nothing], axis=-1)
    match engine.transfers:
        case Transfers.BLOCKING:
            return np.asarray(compute_s + before + after)
        case Transfers.RECEIVER:
            return np.asarray(compute_s + before + after / 2.0)
        case Transfers.OVERLAPPED:
            return _neighbour_means(compute_s, after)


def _neighbour_means(compute_s: Floats, after: Floats) -> Floats:
    """Return, per stage, the largest mean over runs of neighbours that start there.

    Each direction of a cut has its own limit.
    """
    stages = compute_s.shape[-1]
    spent = np.concatenate([np.zeros_like(compute_s[..., :1]), np.cumsum(compute_s + after, axis=-1)], axis=-1)
    busy = np.maximum(compute_s, after / 2.0)
    if compute_s.ndim == 1:
        # All runs of one pipeline at once, by first stage and end.
        runs = (spent[1:] - spent[:-1, None] - after) / _run_lengths(stages)
        return np.asarray(np.maximum(busy, runs.max(axis=1)))
    for length in range(2, stages + 1):
        run = spent[..., length:] - spent[..., :-length] - after[..., length - 1 :]
        busy[..., : stages - length + 1] = np.maximum(busy[..., : stages - length + 1], run / length)
    return np.asarray(busy)


@cache
def _run_lengths(stages: int) -> Floats:
    """Return the lengths of the runs of two or more stages, by first stage and last; others are infinite.

    Shape [stages, stages].
    """
    lengths = np.arange(stages) - np.arange(stages)[:, None] + 1.0
    return np.where(lengths >= 2.0, lengths, np.inf)


def fill_s(compute_s: Floats, boundary_s: Floats) -> Floats:
    """Return the seconds of one microbatch through all stages and back; shapes as in busy_s."""
    return np.asarray(compute_s.sum(axis=-1) + boundary_s.sum(axis=-1))


def pipeline_s(compute_s: Floats, boundary_s: Floats, microbatches: ArrayLike, *, engine: Engine) -> Floats:
    """Return the seconds of a pipeline's schedule without gradient sync and optimizer step; shapes as in busy_s."""
    bottleneck = busy_s(compute_s, boundary_s, engine=engine).max(axis=-1)
    return np.asarray((np.asarray(microbatches) - 1) * bottleneck + fill_s(compute_s, boundary_s))


def interleaved_s(compute_s: Floats, boundary_s: Floats, microbatches: int) -> float:
    """Return the seconds of a pipeline whose stages alternate between several layer ranges.

    compute_s: shape [chunks, stages]; boundary_s: of each cut in the microbatch's order. The fill of 1F1B is divided by
    the number of chunks: exact for even stages without transfers, after Narayanan et al. (SC'21).
    """
    chunks = len(compute_s)
    bottleneck = float(compute_s.sum(axis=0).max())
    return (microbatches - 1.0 / chunks) * bottleneck + float(compute_s.sum() + boundary_s.sum()) / chunks


def filled_s(weights_s: Floats, microbatches: int) -> float:
    """Return the bubble seconds of a pipeline that a zero-bubble schedule fills with gradients of weights.

    weights_s: shape [stages], of one microbatch. The gradients of weights of every stage except the first no longer
    delay the return of the last microbatch, and as many fill the stages' waits at the start. Exact for even stages
    without transfers.
    """
    later = float(weights_s[1:].sum())
    return later * (1.0 + min(1.0, (microbatches - 1) / max(1, len(weights_s) - 1)))


def ring_s(nbytes: Any, holders: int, link: Link, *, bucket_bytes: float, passes: int = 2) -> Any:
    """Return the seconds of a ring over `holders` members whose slowest link is `link`; 0 for one member.

    `passes` * (holders - 1) steps move nbytes / holders each, in messages of at most `bucket_bytes` / holders. An
    all-reduce takes two passes, a reduce-scatter or an all-gather one.
    """
    steps = passes * (holders - 1)
    if isinstance(nbytes, (int, float)):
        return steps * _messages_s(float(nbytes), holders, link, bucket_bytes)
    size = np.asarray(nbytes, dtype=np.float64)
    if holders < 2:
        return np.zeros_like(size)
    whole = np.floor(size / bucket_bytes)
    rest = size - whole * bucket_bytes
    full = np.where(whole > 0, link.transfer_s(np.full_like(size, bucket_bytes / holders)), 0.0)
    last = np.where(rest > 0, link.transfer_s(np.maximum(rest, 1.0) / holders), 0.0)
    return steps * (whole * full + last)


def _messages_s(nbytes: float, holders: int, link: Link, bucket_bytes: float) -> float:
    """Return the seconds of one ring step for a single size; the planner calls it thousands of times."""
    if holders < 2:
        return 0.0
    whole = nbytes // bucket_bytes
    rest = nbytes - whole * bucket_bytes
    full = link.transfer_s(bucket_bytes / holders) if whole else 0.0
    last = link.transfer_s(max(rest, 1.0) / holders) if rest > 0 else 0.0
    return whole * full + last


def zone_sync_s(
    nbytes: Any, zones: Sequence[int], inside: Sequence[Link], across: Sequence[Link], bucket: float
) -> Any:
    """Return the seconds to sum gradients zone by zone, by the slowest of the links `inside` zones and `across`.

    `zones`: the number of members of each. Inside a zone every member collects an equal share of the sum, as in a ring.
    Then each sends the shares that others own to them, and its own share back to each other zone.
    """
    members = sum(zones)
    near: Any = 0.0
    if max(zones) > 1:
        near = np.max([ring_s(nbytes, max(zones), link, bucket_bytes=bucket) for link in inside], axis=0)
    far = np.max([ring_s(nbytes, members, link, bucket_bytes=bucket, passes=1) for link in across], axis=0)
    return near + far * ((members / min(zones) + len(zones) - 2) / (members - 1))


def gradient_sync_s(
    gradient_bytes: Any, holders: int, slowest: Link, *, engine: Engine, bucket_bytes: float | None = None
) -> Any:
    """Return the seconds to sum gradients over the pipelines that have them; 0 for one.

    `gradient_bytes` are those of all tensor-parallel shards together, since their rings run in parallel over `slowest`.
    That is the slowest link, for as many pairs, of a ring that visits regions, zones and nodes one after the other. A
    message has at most `bucket_bytes`, by default the engine's.
    With trees a message takes the shorter of the ring and twice the way through a tree.
    """
    bucket = engine.bucket_bytes if bucket_bytes is None else bucket_bytes
    ring = ring_s(gradient_bytes, holders, slowest, bucket_bytes=bucket)
    if engine.trees and holders > 1:
        buckets = np.ceil(np.asarray(gradient_bytes) / bucket)
        latency_s = math.log2(holders) * slowest.rtt_s / 2.0
        tree = 2.0 * (np.asarray(gradient_bytes) / slowest.max_bytes_per_s + buckets * latency_s)
        ring = np.minimum(ring, tree)
    return engine.all_reduce_slowdown * ring
