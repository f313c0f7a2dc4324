"""Runs Slurm's own commands and parses their output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterator, Sequence

from sailor_cloud.errors import ProvisionError

_TIMEOUT_S = 60.0
# What Slurm's commands say on a machine that belongs to no cluster.
_NO_CLUSTER = "Could not establish a configuration source"
# A suffix of a node's state: it does not answer.
NOT_ANSWERING = "*"
_DOWN = ("down", "drained", "fail", "error", "power_down", "powered_down")


class NodeRow:
    """A node as sinfo shows it, in one of its partitions."""

    __slots__ = ("cpus", "features", "gres", "max_time_s", "memory_mib", "name", "partition", "state")

    def __init__(self, line: str) -> None:
        self.name, self.state, partition, features, gres, cpus, memory, limit = line.split("|")
        self.partition = partition.rstrip("*")
        self.features = _list(features)
        # Counts and sockets follow: gpu:a100:2(S:0-1).
        self.gres = tuple(re.sub(r"\(.*?\)$", "", one) for one in _list(gres))
        # Where sinfo groups unequal nodes, it prints the least: 64+.
        self.cpus, self.memory_mib = int(cpus.rstrip("+")), int(memory.rstrip("+"))
        self.max_time_s = _seconds(limit)


def node_rows(partition: str | None = None) -> tuple[NodeRow, ...]:
    """Return all nodes, once for each of their partitions. Raises ProvisionError."""
    only = [f"--partition={partition}"] if partition else []
    shown = slurm("sinfo", "--noheader", "--Node", *only, "--format=%N|%T|%P|%f|%G|%c|%m|%l")
    return tuple(NodeRow(line) for line in shown.splitlines() if line.count("|") == 7)


def cluster_name() -> str:
    """Return the cluster's own name. Raises ProvisionError."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", slurm("scontrol", "show", "config"), re.MULTILINE)
    if found is None:
        raise ProvisionError("'scontrol show config' does not print the cluster's name; is this Slurm's scontrol?")
    return found[1]


def cancel(job_id: str) -> None:
    try:
        slurm("scancel", job_id)
    except ProvisionError as error:
        if "Invalid job id" not in str(error) and "already completing or completed" not in str(error):
            raise


def slurm(program: str, *arguments: str) -> str:
    """Run one of Slurm's commands. Raises ProvisionError with its error output."""
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise ProvisionError(f"no {program} on PATH; run this on a login node of the cluster") from error
    except OSError as error:
        raise ProvisionError(f"{program} can't be run: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ProvisionError(f"{program} did not answer within {_TIMEOUT_S:.0f} s") from error
    said = (done.stderr or done.stdout).strip()
    if done.returncode != 0 and _NO_CLUSTER in said:
        raise ProvisionError(f"{program} finds no Slurm cluster here; run this on a login node of the cluster")
    if done.returncode != 0:
        raise ProvisionError(f"{program} failed: {said or done.returncode}")
    return done.stdout


def hostnames(compact: str) -> tuple[str, ...]:
    """Return the names in a host list such as n[1-3,7]."""
    return tuple(slurm("scontrol", "show", "hostnames", compact).split()) if compact else ()


def hosts_down(hosts: Sequence[str]) -> frozenset[str]:
    """Return the machines that don't answer or take no jobs."""
    if not hosts:
        return frozenset()
    shown = slurm("sinfo", "--noheader", "--Node", f"--nodes={','.join(hosts)}", "--format=%N|%T")
    return frozenset(_names_down(shown))


def hosts_silent(hosts: Collection[str]) -> frozenset[str]:
    """Return the machines of the cluster that don't answer."""
    shown = slurm("sinfo", "--noheader", "--Node", "--format=%N|%T") if hosts else ""
    rows = (line.partition("|") for line in shown.splitlines())
    return frozenset(name for name, _, state in rows if name in hosts and state.endswith(NOT_ANSWERING))


def _names_down(shown: str) -> Iterator[str]:
    for line in shown.splitlines():
        name, _, state = line.partition("|")
        if state.endswith(NOT_ANSWERING) or state.startswith(_DOWN):
            yield name


def _seconds(limit: str) -> int | None:
    """Return a partition's time limit, such as 1-12:00:00 or 30:00; None if there is none."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    hours, minutes, seconds = [0, 0, 0, *map(int, parts)][-3:]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _list(text: str) -> tuple[str, ...]:
    return () if text in ("", "(null)") else tuple(re.split(r",(?![^(]*\))", text))
