"""`sailor-cloud profile`: measures on this machine what plans are based on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import as_of_option, clock_for, job_argument, json_option, read_job

if TYPE_CHECKING:
    from rich.console import Console

    from sailor_cloud.launch.profiling.files import Profile
    from sailor_runtime.profile.task import LinkTask


class _Numbers(click.ParamType):  # type: ignore[type-arg]
    """Positive integers, separated by commas."""

    name = "N,N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not a list of positive numbers such as 1,2,4", param, ctx)
        return tuple(int(part) for part in parts)


@click.command(short_help="Measure layers, memory and links on this machine.")
@job_argument
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the profiles go; default: profiles/NAME of the job. Measurements already there are kept.",
)
@click.option("--accelerator", metavar="NAME", help="The accelerator of this machine, if the job uses several.")
@click.option("--microbatch-sizes", metavar="N,N", type=_Numbers(), help="Default: 1,2,4,8, up to the batch size.")
@click.option("--tp", "tps", metavar="N,N", type=_Numbers(), default="1", help="Tensor-parallel degrees; default 1.")
@click.option(
    "--together",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Devices that train at the same time, if they share something, as threads share cores.",
)
@click.option(
    "--link-to", metavar="ADDRESS:PORT", help="Time the link to another node; run this on both, with the same ADDRESS."
)
@click.option(
    "--link-end", type=click.IntRange(0, 1), help="0 on the node with the ADDRESS of --link-to, 1 on the other."
)
@click.option("--link-zones", metavar="ZONE,ZONE", help="The zones of both ends of --link-to.")
@as_of_option
@json_option
def profile(
    job_file: Path,
    output: Path | None,
    accelerator: str | None,
    microbatch_sizes: tuple[int, ...] | None,
    tps: tuple[int, ...],
    together: int,
    link_to: str | None,
    link_end: int | None,
    link_zones: str | None,
    as_of: datetime | None,
    as_json: bool,
) -> None:
    """Train a few steps of JOB's model in every requested shape, and write times and memory.

    \b
    sailor-cloud profile job.yaml -o measured
    sailor-cloud plan job.yaml --profiles measured --network measured

    Takes minutes. After an interruption, a second call continues where the first stopped. On a cloud, run it on a node
    of the type that the plan will buy.
    """
    from sailor_cloud import catalog, workload
    from sailor_cloud.catalog.job_check import resource_problems
    from sailor_cloud.errors import RequestError
    from sailor_cloud.launch.profiling import files, profiler
    from sailor_cloud.report.console import result_console

    job, prices = read_job(job_file), catalog.load()
    problems = resource_problems(job, prices)
    if problems:
        raise RequestError(problems)
    link, zones = _link(link_to, link_end, link_zones)
    wanted = profiler.ProfileRequest(
        accelerator=accelerator, microbatch_sizes=microbatch_sizes, tps=tps, together=together, link=link
    )
    decoder = workload.job_decoder(job, base=job_file.parent)
    task = profiler.task_of(job, decoder, wanted)
    folder = output or Path("profiles") / job.name
    with _progress() as show:
        rows = profiler.run_profile(task, folder, show)
    found = files.profile_of(rows, task, decoder, prices.accelerator(task.accelerator))
    written = files.write(found, task, folder, today=clock_for(as_of).now().date(), zones=zones)
    if as_json:
        echo(json.dumps(_as_json(found, written), indent=2))
        return
    _print(found, task.accelerator, result_console())
    echo(f"\nwrote {', '.join(path.name for path in written)} to {folder}; next:")
    echo(f"  sailor-cloud plan {job_file} --profiles {folder} --network {folder}")


def _link(to: str | None, end: int | None, zones: str | None) -> tuple[LinkTask | None, tuple[str, str] | None]:
    from sailor_cloud.errors import RequestError
    from sailor_runtime.profile.task import LinkTask

    if to is None and end is None and zones is None:
        return None, None
    if to is None or end is None or zones is None:
        raise RequestError("--link-to, --link-end and --link-zones go together")
    address, _, port = to.rpartition(":")
    if not address or not port.isdecimal():
        raise RequestError(f"--link-to: {to!r} is not ADDRESS:PORT")
    pair = tuple(zones.split(","))
    if len(pair) != 2 or not all(pair):
        raise RequestError(f"--link-zones: {zones!r} is not two zones separated by a comma")
    return LinkTask(address=address, port=int(port), end=end), (pair[0], pair[1])


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on a terminal, else a line per measurement; both on stderr."""
    from sailor_cloud.cli.terminal.bars import progress_bar
    from sailor_cloud.report.console import progress_console

    console = progress_console()
    if not console.is_terminal:
        yield lambda done, of, what: echo(f"{done}/{of} {what}", err=True)
        return
    with progress_bar(console) as bar:
        shown = bar.add_task("measuring", total=None)
        yield lambda done, of, what: bar.update(
            shown, completed=done, total=of, description=f"measuring {what}, {done} of {of}"
        )


def _as_json(found: Profile, written: tuple[Path, ...]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "layers": [asdict(row) for row in found.layers],
        "work": [asdict(row) for row in found.work],
        "error_p50": found.fitted.error_p50,
        "error_p90": found.fitted.error_p90,
        "peaks": list(found.peaks),
        "link": None if found.curve is None else asdict(found.curve),
        "files": [str(path) for path in written],
    }


def _print(found: Profile, accelerator: str, console: Console) -> None:
    from sailor_cloud.report.tables import plain_table, print_report

    numbers = ("tp", "microbatch", "forward ms", "backward ms", "update ms", "kept MiB")
    table = plain_table("layer", *numbers, numbers=numbers)
    for row in sorted(found.layers, key=lambda row: (row.tp, row.microbatch_size)):
        seconds = (f"{1e3 * value:.3f}" for value in (row.forward_s, row.backward_s, row.update_s))
        kept = "" if row.activation_bytes is None else f"{row.activation_bytes / 2**20:.2f}"
        table.add_row(row.layer_kind.value, str(row.tp), str(row.microbatch_size), *seconds, kept)
    console.print(f"{accelerator}, one microbatch of each layer")
    print_report(table, console)
    for work in found.work:
        where = f"{work.layer_kind.value}, tp {work.tp}, microbatch {work.microbatch_size}"
        off = work.counted_flops / work.closed_form_flops - 1.0
        console.print(
            f"work of {where}: {work.counted_flops / 1e9:.3f} GFLOP forward, {off:+.1%} against the formula, "
            f"{work.counted_flops / work.forward_s / 1e9:,.1f} GFLOP/s"
        )
    for peak in found.peaks:
        size = f"{peak['peak_bytes'] / 2**20:,.1f} MiB"
        console.print(f"peak memory, tp {peak['tp']}, microbatch {peak['microbatch_size']}: {size} ({peak['how']})")
    if found.curve is not None:
        rtt = "" if found.curve.rtt_ms is None else f", round trip {found.curve.rtt_ms:.3f} ms"
        console.print(f"link: up to {found.curve.max_bytes_per_s / 1e9:.2f} GB/s{rtt}")
