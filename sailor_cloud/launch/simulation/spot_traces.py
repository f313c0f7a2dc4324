"""Reads recorded spot availability: a folder of JSON files, one per zone, as skypilot-org/spot-traces has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.untrusted import read_at_most

_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTrace:
    """The number of instances in one zone at each sample, `gap_s` apart."""

    zone: str
    gap_s: float
    counts: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return self.gap_s * len(self.counts)

    @property
    def most(self) -> int:
        return max(self.counts)


def read_spot_traces(path: Path) -> tuple[ZoneTrace, ...]:
    """Return the zones of a folder, sorted by name, or the one zone of a file. Raises RequestError with all faults."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise RequestError(f"folder {path} holds no availability traces: one JSON file per zone is needed")
    problems: list[Problem] = []
    zones = [zone for file in files if (zone := _zone(file, problems)) is not None]
    if problems:
        raise RequestError(problems)
    return tuple(zones)


def _zone(file: Path, problems: list[Problem]) -> ZoneTrace | None:
    try:
        content = json.loads(read_at_most(file, _MOST_BYTES))
        gap, counts = content["metadata"]["gap_seconds"], content["data"]
    except OSError as error:
        problems.append(Problem(path=str(file), message=f"can't be read: {error.strerror}"))
        return None
    except (ValueError, RecursionError) as error:
        problems.append(Problem(path=str(file), message=f"is not JSON: {error}"))
        return None
    except (KeyError, TypeError):
        problems.append(Problem(path=str(file), message="lacks metadata.gap_seconds or data"))
        return None
    if not _is_number(gap) or not 0 < gap < 1e6:
        problems.append(Problem(path=str(file), message=f"metadata.gap_seconds must be seconds above 0, not {gap!r}"))
        return None
    listed = counts if isinstance(counts, list) and counts else [counts]
    faulty = [one for one in listed if not _is_number(one) or one < 0 or one != int(one)]
    if listed is not counts or faulty:
        shown = faulty[:1] or counts
        problems.append(Problem(path=str(file), message=f"data must be a list of numbers of instances, not {shown!r}"))
        return None
    if max(counts) == 0:
        problems.append(Problem(path=str(file), message="no sample has an instance; leave the file out"))
        return None
    return ZoneTrace(zone=file.stem, gap_s=float(gap), counts=tuple(int(one) for one in counts))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def availability(traces: tuple[ZoneTrace, ...], *, nodes: int, tick_s: float) -> NDArray[np.bool_]:
    """Return where capacity for `nodes` nodes exists at each tick: shape [ticks, zones], length of the shortest trace.

    A trace that never counted that many nodes counts as enough while at its maximum.
    """
    ticks = int(min(trace.seconds for trace in traces) / tick_s)
    columns = []
    for trace in traces:
        samples = (np.arange(ticks) * tick_s / trace.gap_s).astype(int)
        columns.append(np.array(trace.counts)[samples] >= min(nodes, trace.most))
    return np.stack(columns, axis=1)
