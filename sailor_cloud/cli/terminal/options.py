"""Options and argument types that several commands share."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sailor_cloud import resources
from sailor_cloud.cli.echo import echo
from sailor_cloud.clock import Clock, DatedClock, SystemClock
from sailor_cloud.errors import DataError, Problem, RequestError
from sailor_cloud.model import provider

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from sailor_cloud.model.document import PlanDocument
    from sailor_cloud.model.job import Cloud, Job

_Command = TypeVar("_Command", bound=Callable[..., Any])

# The umask of commands that write into run folders: keys, logs and checkpoints are private.
PRIVATE = 0o077

# Training programs that plans are for or are simulated under: those of the simulator, whose import would take time.
ENGINES = ("sailor", "deepspeed", "megatron", "fsdp", "nanotron", "sailor-artifact")
# Those whose plans have a bound.
BOUNDED_ENGINES = (ENGINES[0], "sailor-artifact")

# The report formats by file suffix.
_FORMS = {".json": "json", ".html": "html", ".htm": "html", ".md": "markdown", ".txt": "table"}

_FIRST_DAY = date(2020, 1, 1)

JOB_FILE = click.Path(dir_okay=False, path_type=Path)

# The key of the context's `meta` for the name of the job file that the command has read.
JOB_IN = "sailor_cloud.job_file"


class Amount(click.FloatRange):
    """A number that is neither infinite nor NaN: comparisons would not reject these."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


POSITIVE, NOT_NEGATIVE = Amount(min=0, min_open=True), Amount(min=0)


class ProviderName(click.ParamType):  # type: ignore[type-arg]
    """The name of a provider; the names are loaded only to show or check them."""

    name = "provider"

    def __init__(self, names: Callable[[], Sequence[str]] = provider.names) -> None:
        self._names = names

    def get_metavar(self, *args: Any, **kwargs: Any) -> str | None:
        return click.Choice(self._names()).get_metavar(*args, **kwargs)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> provider.Provider:
        return provider.Provider(click.Choice(self._names()).convert(value, param, ctx))

    def shell_complete(self, *args: Any) -> list[CompletionItem]:
        return click.Choice(self._names()).shell_complete(*args)


def providers_with_account() -> Sequence[str]:
    from sailor_cloud.catalog.providers import with_account

    return with_account()


def cloud_of(project: str | None) -> Cloud:
    """Return the accounts that --project names."""
    from sailor_cloud.model.job import Cloud, GcpAccount

    return Cloud(gcp=GcpAccount(project=project) if project else None)


def job_argument(command: _Command) -> _Command:
    return click.argument("job_file", metavar="JOB", type=JOB_FILE)(command)


def run_argument(*, required: bool = True) -> Callable[[_Command], _Command]:
    """Return a decorator that adds RUN: a run's id or unique prefix, which shells complete."""
    return click.argument("run", required=required, shell_complete=_runs)


def runs_argument(command: _Command) -> _Command:
    """Add RUN…: any number of runs, including none."""
    return click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=_runs)(command)


def _runs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from sailor_cloud.run.folder import run_ids

    return [run_id for run_id in reversed(run_ids()) if run_id.startswith(incomplete)]


class Day(click.DateTime):
    """A day from 2020 to ten years from now: no price is that old, and for others an age means nothing."""

    def __init__(self) -> None:
        super().__init__(["%Y-%m-%d"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        day: datetime = super().convert(value, param, ctx)
        last = SystemClock().now().date() + timedelta(days=3652)
        if not _FIRST_DAY <= day.date() <= last:
            self.fail(f"{value} is not between {_FIRST_DAY} and {last}, ten years from now", param, ctx)
        return day


def as_of_option(command: _Command) -> _Command:
    return click.option(
        "--as-of",
        metavar="DATE",
        type=Day(),
        help="Compute the age of prices as of this day instead of today.",
    )(command)


class DataFolder(click.Path):
    """An existing folder of data; one without any file of its kind is a mistake, not an empty catalog."""

    def __init__(self, *endings: str) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)
        self._endings = endings or (".csv",)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        folder = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not any(file.suffix in self._endings for depth in ("*", "*/*") for file in folder.glob(depth)):
            kinds = " or ".join(ending.removeprefix(".").upper() for ending in self._endings)
            self.fail(f"{folder} holds no {kinds} file; docs/data.md names those that are read", param, ctx)
        return folder


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --profiles, --network and --pricing: folders with files that are used before the shipped ones."""

    @functools.wraps(command)
    def within(*, profiles: Path | None, network: Path | None, pricing: Path | None, **options: Any) -> Any:
        with resources.data_folders(profiles=profiles, network=network, pricing=pricing):
            return command(**options)

    found: Callable[..., Any] = within
    for name, use, folder in (
        (
            "--pricing",
            "prices. Its offers replace all shipped ones, other files those of their name",
            DataFolder(),
        ),
        ("--network", "bandwidth profiles to use before the shipped ones", DataFolder()),
        ("--profiles", "compute profiles to use before the shipped ones", DataFolder(".json", ".csv")),
    ):
        option = click.option(name, metavar="DIR", type=folder, help=f"A folder of {use}.")
        found = option(found)
    return found


def cluster_options(command: _Command) -> _Command:
    """Add --on and --cluster: existing machines that replace those of the job's resources."""
    for option in (
        click.option(
            "--cluster",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The inventory for --on (cluster.yaml), unless the job names one.",
        ),
        click.option(
            "--on",
            type=click.Choice(provider.CLUSTERS),
            help="Use the nodes of a cluster instead of the job's resources.",
        ),
    ):
        command = option(command)
    return command


def json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")(command)


def choose_option(command: _Command) -> _Command:
    return click.option(
        "--choose",
        type=click.Choice(("cheapest", "balanced", "fastest")),
        help="Choose this one of the three plans; by default the goal decides.",
    )(command)


def read_job(path: Path, *, on: str | None = None, cluster: Path | None = None) -> Job:
    """Return the job in a file, with its inventory; `on` and `cluster` are as in `with_inventory`.

    Raises RequestError if a file can't be read or is wrong.
    """
    from sailor_cloud import catalog
    from sailor_cloud.catalog.capacity import with_capacity
    from sailor_cloud.catalog.clusters import with_inventory
    from sailor_cloud.catalog.job_check import unknown_names
    from sailor_cloud.model.job_file import job_of_values, read_values

    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta[JOB_IN] = str(path)
    values = read_values(path)
    try:
        job = job_of_values(values, origin=str(path), on=on)
    except RequestError as error:
        raise RequestError([*error.problems, *unknown_names(values, str(path), catalog.load())]) from error
    return with_inventory(with_capacity(job, path.parent), path.parent, on=on, cluster=cluster)


def clock_for(as_of: datetime | None) -> Clock:
    """Return the system's clock, or one fixed at midnight UTC of a given day."""
    if as_of is None:
        return SystemClock()
    day: date = as_of.date()
    return DatedClock(datetime(day.year, day.month, day.day, tzinfo=UTC))


def read_document(path: Path) -> PlanDocument:
    """Return the plan in a file. Raises RequestError if it can't be read or is wrong."""
    from sailor_cloud.catalog.clusters import register_inventory
    from sailor_cloud.model.document import PlanDocument

    document = PlanDocument.read(path)
    register_inventory(document.job)
    return document


def refuse_on_a_plan(path: Path, on: str | None, cluster: Path | None) -> None:
    """Raise RequestError for a plan with cluster options: its nodes are already chosen."""
    if on is not None or cluster is not None:
        raise RequestError(
            f"--on and --cluster belong to a job file, and {path} is a plan with its nodes; leave them out"
        )


def check_output(path: Path | None) -> None:
    """Raise RequestError early if a result could not be written to a file."""
    if path == Path("-"):
        raise RequestError("can't write -: leave -o out for standard output, and give --format or --json")
    if path is not None and not path.absolute().parent.is_dir():
        raise RequestError(f"can't write {path}: there is no folder {path.parent}")


def form_of(path: Path, asked: str | None, *, alone: bool = True) -> str:
    """Return a file's format: the requested one for a single file, else by suffix, else the requested one.

    Devices and pipes get JSON. Raises RequestError if nothing says the format.
    """
    if asked is not None and alone:
        return asked
    form = _FORMS.get(path.suffix, asked)
    if form is None and path.exists() and not path.is_file():
        return "json"
    if form is None:
        known = ", ".join(sorted(_FORMS))
        raise RequestError(f"can't tell the format of {path}; give it a suffix ({known}), or give --format")
    return form


def write_output(path: Path | None, content: str) -> None:
    """Write a result to a file, or to stdout without one. Raises RequestError if that fails."""
    if path is None:
        echo(content, nl=False)
        return
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"can't write {path}: {error.strerror}") from error


def look_up_argument(look_up: Callable[..., object], *names: object) -> None:
    """Look up a name of the command line. Raises RequestError if it doesn't exist."""
    try:
        look_up(*names)
    except DataError as error:
        raise RequestError(str(error)) from error


def with_constraints(job: Job, changes: dict[str, Any]) -> Job:
    """Return the job with some constraints replaced. Raises RequestError if a value is wrong."""
    from pydantic import ValidationError

    from sailor_cloud.model.job import Constraints

    try:
        limits = Constraints.model_validate({**job.constraints.model_dump(), **changes})
    except ValidationError as error:
        faults = [(str(fault["loc"][0]), fault["msg"].removeprefix("Value error, ")) for fault in error.errors()]
        problems = [Problem(path=f"--{name.removesuffix('_usd')}", message=message) for name, message in faults]
        raise RequestError(problems) from error
    return job.model_copy(update={"constraints": limits})
