"""The batch script of a job: one component of a heterogeneous job for each node group."""

from __future__ import annotations

import math
import re
import shlex

from sailor_cloud.errors import RequestError
from sailor_cloud.provision.jobs import JOB_TOKEN, RENDEZVOUS_PORT, ClusterJob, JobGroup

# The longest comment that sbatch accepts (Slurm 22.05, tried with longer ones).
_MOST_COMMENT = 1024
# How long before the time limit a job gets SIGTERM. At the limit itself only KillWait remains, by default 30 s.
_NOTICE_S = 120


def batch_script(job: ClusterJob, *, plan: str | None = None, output: str | None = None) -> str:
    """Return the script for `sbatch`. Without the path of a `plan` file it includes the plan.

    It disables Slurm's own requeue, which would repeat the old shape: whoever submitted the job plans again.
    """
    components = [_component(job, group, output if number == 0 else None) for number, group in enumerate(job.groups)]
    lines = ["#!/bin/bash", "\n#SBATCH hetjob\n".join(components), "umask 077"]
    if job.variables:
        source = "from the environment of sbatch (--export=ALL, its default); their values are not in this script"
        lines.append(f"# The command takes {', '.join(job.variables)} {source}.")
        lines += [f': "${{{name}?is not set where sbatch was started}}"' for name in job.variables]
    nodes = "SLURM_JOB_NODELIST" if len(job.groups) == 1 else "SLURM_JOB_NODELIST_HET_GROUP_0"
    lines += [f"module load {shlex.quote(module)}" for module in job.inventory.runtime.modules]
    # Lmod reads variables that may be unset.
    lines.append("set -u")
    if job.runtime is not None:
        lines.append(f"export PYTHONPATH={shlex.quote(job.runtime)}${{PYTHONPATH:+:$PYTHONPATH}}")
    lines += ["export PYTHONDONTWRITEBYTECODE=1", f"home={shlex.quote(job.home)}", 'mkdir -p "$home"']
    if job.inventory.runtime.image is not None and job.checkpoints.startswith("/"):
        # A folder must exist before a container can mount it.
        lines.append(f"mkdir -p {shlex.quote(job.checkpoints)}")
    if plan is None:
        lines += ['plan="$home/plan-$SLURM_JOB_ID.json"', "cat > \"$plan\" <<'PLAN'", job.artefact.rstrip("\n"), "PLAN"]
        # Others may read a script; only its owner can read its job's environment.
        lines += [f"{JOB_TOKEN}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')", f"export {JOB_TOKEN}"]
    else:
        lines.append(f"plan={shlex.quote(plan)}")
    # The network may not know a node's name.
    lines += [
        f'first=$(scontrol show hostnames "${nodes}" | head -n 1)',
        """first=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')""",
        "export plan home first",
        "started=()",
    ]
    for number, group in enumerate(job.groups):
        lines += [f"{_step(job, group, number)} &", "started+=($!)"]
    # A step ends by itself once another one's ranks have ended; the worst exit code is the job's.
    lines += ["code=0", 'for step in "${started[@]}"; do wait "$step" || code=$?; done', "exit $code"]
    return "\n".join(lines) + "\n"


def _component(job: ClusterJob, group: JobGroup, output: str | None) -> str:
    """Return the options of one component. `--nodes` are whole nodes, since plans use whole nodes."""
    has, cluster = job.inventory.groups[group.name], job.inventory
    options = [
        f"--job-name={job.name}",
        f'--comment="{_comment(job, group)}"',
        "--no-requeue",
        f"--time={_minutes(job)}",
        # To all processes of the steps; the agents have a checkpoint saved.
        *([f"--signal=TERM@{notice_s}"] if (notice_s := _notice_s(job)) else []),
        f"--nodes={len(group.nodes)}",
        "--ntasks-per-node=1",
        "--exclusive",
        # Without it a job gets a partition's default memory, also on a node of its own.
        "--mem=0",
    ]
    optional = (
        ("partition", has.partition),
        ("constraint", has.constraint),
        ("gres", f"{has.gres}:{group.devices}" if has.gres else None),
        ("account", cluster.account),
        ("qos", cluster.qos),
        ("exclude", ",".join(sorted(job.avoid))),
        ("output", output),
    )
    options += [f"--{name}={value}" for name, value in optional if value]
    return "\n".join(f"#SBATCH {option}" for option in options)


def _minutes(job: ClusterJob) -> int:
    """Return the time limit: the run's own, or the shortest that a group's nodes have."""
    groups = (job.inventory.groups[group.name] for group in job.groups)
    limits = [math.floor(group.max_time / 60) for group in groups if group.max_time is not None]
    return max(1, min([math.ceil(job.seconds / 60), *limits]))


def _notice_s(job: ClusterJob) -> int:
    """Return when the job gets its signal, in seconds before its time limit; 0 if it needs none.

    A controller ends its run shortly before the run's own TTL. An earlier signal would have it look for new nodes.
    """
    minutes = _minutes(job)
    if job.expires_at is not None and minutes >= math.ceil(job.seconds / 60):
        return 0
    return min(_NOTICE_S, 15 * minutes)


def check_image(image: str | None) -> None:
    """Raise RequestError for an image whose registry Pyxis would not recognize: it takes REGISTRY#IMAGE."""
    registry, slash, rest = (image or "").partition("/")
    if slash and re.search(r"[.:]", registry.strip(".")) and "#" not in registry:
        raise RequestError(
            f"the inventory's runtime.image is {image}, which Pyxis looks for on Docker Hub; write {registry}#{rest}"
        )


def _mounts(job: ClusterJob) -> list[str]:
    """Return the paths of a node that its container needs: the run's folders, the job's files, and the user's own."""
    return sorted({job.home, *job.paths, *job.inventory.runtime.mounts})


def _comment(job: ClusterJob, group: JobGroup) -> str:
    """Return the labels of a component, without the names of its nodes if they are too long for a comment."""
    full, short = (
        " ".join(f"{name}={value}" for name, value in labels.items())
        for labels in (job.labels(group.nodes), job.labels())
    )
    return full if len(full) <= _MOST_COMMENT else short


def _step(job: ClusterJob, group: JobGroup, number: int) -> str:
    """Return the step that starts the agents of a group; SLURM_NODEID is a node's index in it."""
    step = ["srun"]
    if len(job.groups) > 1:
        step.append(f"--het-group={number}")
    if job.inventory.runtime.image is not None:
        step.append(f"--container-image={job.inventory.runtime.image}")
        # Pyxis shows a container nothing of its node but what is named here.
        step.append(f"--container-mounts={shlex.quote(','.join(f'{path}:{path}' for path in _mounts(job)))}")
    step += ["--kill-on-bad-exit=0", "--cpu-bind=none"]
    # Quoted for the batch script, which expands $plan, $home and $first, and then for the node, which expands its
    # index.
    agent = job.command(group, index="$SLURM_NODEID", meeting=f"$first:{RENDEZVOUS_PORT}", plan="$plan", home="$home")
    if _notice_s(job) == _NOTICE_S:
        # Some of it is left for the journal. Agents of shorter jobs keep their default.
        agent += ["--shutdown-s", str(_NOTICE_S - 10)]
    words = [f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in agent]
    return f"{' '.join(step)} bash -c {shlex.quote('exec ' + ' '.join(words))}"


def check_groups(job: ClusterJob) -> None:
    """Raise RequestError if the plan has a group that the inventory lacks."""
    missing = [group.name for group in job.groups if group.name not in job.inventory.groups]
    if missing:
        raise RequestError(
            f"the plan has nodes in {', '.join(missing)}, which the inventory {job.inventory.name} does not have"
        )
