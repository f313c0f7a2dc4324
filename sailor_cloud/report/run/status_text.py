"""Runs and their state for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table
from sailor_cloud.run.progress import RunStatus
from sailor_cloud.run.state import OVER, Phase

# Below this many columns, a table of runs leaves out loss, TTL and the controller's process.
NARROW = 72


# The terms of the glossary for the names in reports of ranks.
_NAMES = {"sync": "all-reduce"}


def runs_report(
    runs: Sequence[RunStatus], *, now: datetime, width: int = 120, folder: Path | None = None
) -> RenderableType:
    """Return a table with a row per run, newest last; narrow terminals leave out details of single runs.

    `folder` is where runs are searched.
    """
    if not runs:
        where = "" if folder is None else f" in {folder}"
        return Text(f"no runs yet{where}; start one with 'sailor-cloud up JOB'")
    more = ("loss", "TTL in", "pid") if width >= NARROW else ()
    table = plain_table("run", "phase", "step", "spent USD", *more, whole=("run",))
    for run in runs:
        loss = f"{run.loss:.3f}" if run.loss is not None else "-"
        table.add_row(
            run.run_id,
            _phase(run),
            _step(run),
            text.usd(run.spent_usd),
            *((loss, _ttl(run, now), _controller(run)) if more else ()),
        )
    advice = [line for run in runs for line in _advice(run)]
    return Group(table, *(Text(line, style="bold yellow") for line in advice)) if advice else table


def _advice(run: RunStatus) -> list[str]:
    """Return what is wrong with a run's files, and else what to do with a run that nobody controls."""
    told = [str(harm) for harm in run.damage]
    return [*told, _next_step(run)] if run.abandoned and not _unusable(run) else told


def _unusable(run: RunStatus) -> str:
    """Return the damaged file for which a run can't continue, or an empty text; ledger and events are restored."""
    return next((harm.file for harm in run.damage if harm.file not in ("ledger", "events")), "")


def _next_step(run: RunStatus) -> str:
    resume = "" if run.state.phase in OVER else f"'sailor-cloud resume {run.run_id}' continues it, "
    down = f"'sailor-cloud down {run.run_id}' tears it down"
    step = ", so its step is that of the last look," if run.state.phase is Phase.TRAINING else ""
    return f"{run.run_id} has no controller{step} and is not torn down: {resume}{down}"


def run_report(run: RunStatus, *, now: datetime) -> RenderableType:
    """Return one run with its resources."""
    resources = plain_table("resource", "created", "gone")
    for row in run.state.resources:
        resources.add_row(f"{row.resource} {row.key}", _moment(row.created_at), _moment(row.gone_at))
    checks = "ranks start, the plan is compared with one process, and an iteration is timed before the first step"
    lines = [
        Text(line) for line in (run.state.message, checks if run.checking else None, _pace(run)) if line is not None
    ]
    return Group(runs_report([run], now=now), *lines, resources)


def _phase(run: RunStatus) -> str:
    """Return the phase of a run: `checking` before the first step, its outcome in the end, or its damaged file."""
    ended = run.state.phase is Phase.GONE and run.state.outcome
    if file := _unusable(run):
        return f"{file} damaged"
    if run.checking:
        return "checking"
    return f"{run.state.outcome}, gone" if ended else run.state.phase.words


def _step(run: RunStatus) -> str:
    """Return the newest step; a command may report none, which differs from zero steps done."""
    if run.step == 0 and (not run.steps or run.state.outcome == "completed"):
        return "-"
    return f"{run.step}/{run.steps}" if run.steps else str(run.step)


def _pace(run: RunStatus) -> str | None:
    """Return iteration times against the plan, and the parts of the last one."""
    if run.iteration_s is None:
        return None
    planned = "" if run.planned_iteration_s is None else f", {text.seconds(run.planned_iteration_s)} planned"
    whole = sum(run.parts.values())
    parts = run.parts.items() if whole else ()
    shares = ", ".join(f"{_NAMES.get(name, name)} {text.share(part / whole)}" for name, part in parts)
    usd = "" if run.usd_per_step is None else f"; {text.usd(run.usd_per_step)} USD each"
    if run.usd_per_million_tokens is not None:
        usd += f", {text.usd(run.usd_per_million_tokens)} USD per million tokens"
    where = f"; rank 0's last: {shares}" if shares else ""
    return f"iteration {text.seconds(run.iteration_s)} measured{planned}{usd}{where}"


def _ttl(run: RunStatus, now: datetime) -> str:
    if run.state.expires_at is None or run.state.phase is Phase.GONE:
        return "-"
    left = (run.state.expires_at - now).total_seconds()
    return text.seconds(round(left)) if left > 0 else "expired"


def _controller(run: RunStatus) -> str:
    if run.controller is not None:
        return str(run.controller.pid)
    return "none" if run.abandoned else "-"


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")
