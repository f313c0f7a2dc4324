"""The `sailor-cloud` command: finds the subcommand, runs it, and turns expected errors into messages and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import discard_output, print_error
from sailor_cloud.errors import RequestError, SailorError, of_system, printable
from sailor_cloud.report.encoding import make_writable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

INTERRUPTED = 130
# New containers, and rounds of the previous generation, before a collection. Python's own 700 suits programs that
# allocate less at once.
CYCLES_LOOKED_FOR_EVERY = (20_000, 20, 50)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The module of a command, and its line in `--help`, which must not import it."""

    module: str
    attribute: str
    summary: str


COMMANDS: dict[str, _Entry] = {
    "plan": _Entry("planning.plan", "plan", "Find the best plan and show its cost; buys nothing."),
    "up": _Entry("runs.up", "up", "Plan, buy, train, tear down, and show the receipt."),
    "down": _Entry("runs.down", "down", "Tear a run down, in whatever state it is."),
    "reap": _Entry("runs.reap", "reap", "Delete tagged resources that no live run owns."),
    "resume": _Entry("runs.resume", "resume", "Take over a run whose controller died."),
    "status": _Entry("runs.status", "status", "Show runs and their progress."),
    "logs": _Entry("runs.logs", "logs", "Show the output of a run's ranks."),
    "ssh": _Entry("runs.ssh", "ssh", "Log in to a node of a run."),
    "cost": _Entry("runs.cost", "cost", "Show what a run has cost and will cost."),
    "history": _Entry("runs.history", "history", "Show past runs: time, money, outcome."),
    "dashboard": _Entry("runs.dashboard", "dashboard", "Serve a web page that follows runs, on this machine only."),
    "replay": _Entry("planning.replay", "replay", "Run a job against an availability trace, in simulated time."),
    "simulate": _Entry("planning.simulate", "simulate", "Simulate a plan or a layout on nodes: time, memory, money."),
    "explain": _Entry(
        "planning.explain", "explain", "Explain a plan: its limits, what it leaves out, what would improve it."
    ),
    "compare": _Entry("planning.compare", "compare", "Compare our plan of a job with those of published planners."),
    "diff": _Entry("planning.diff", "diff", "Show what the change from one plan to another costs."),
    "profile": _Entry("inputs.profile", "profile", "Measure layers, memory and links on this machine."),
    "import": _Entry(
        "inputs.interchange", "import_data", "Read profiles, clusters or reserved capacity into our formats."
    ),
    "export": _Entry("inputs.interchange", "export", "Write a plan in another tool's format."),
    "prices": _Entry("inputs.prices", "prices", "Show, refresh and compare prices."),
    "quota": _Entry("inputs.quota", "quota", "Show what the account may buy, against what a job needs."),
    "bandwidth": _Entry("inputs.bandwidth", "bandwidth", "Show bandwidth and traffic prices between zones."),
    "init": _Entry("setup.init", "init", "Write a commented job file."),
    "schema": _Entry("setup.schema", "schema", "Print the JSON Schema of job files or of plans."),
    "completion": _Entry("setup.completion", "completion", "Print a shell's completion script."),
    "doctor": _Entry("setup.doctor", "doctor", "Check that this machine has what sailor-cloud needs."),
}


class _ClosedPipeError(Exception):
    """The reader of stdout has closed it; click would end with 1 at a BrokenPipeError."""


@contextlib.contextmanager
def _tolerate_closed_pipes() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _ClosedPipeError from error


class _LazyGroup(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _tolerate_closed_pipes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _tolerate_closed_pipes():
                return super().invoke(ctx)
        except RequestError as error:
            from sailor_cloud.cli.terminal.options import JOB_IN
            from sailor_cloud.model.job_file import of_file

            if JOB_IN not in ctx.meta:
                raise
            raise of_file(error, ctx.meta[JOB_IN]) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"sailor_cloud.cli.{entry.module}")
        command: click.Command = getattr(module, entry.attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=COMMANDS[name].summary) for name in COMMANDS if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            raise click.UsageError(_unknown_command(args[0]), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


def _unknown_command(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "see 'sailor-cloud --help'"
    return f"no command '{name}'; {hint}"


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sailor-cloud", prog_name="sailor-cloud")
def cli() -> None:
    """Train on the best mix of GPUs that a budget buys, and prove that everything bought is gone.

    \b
    sailor-cloud plan examples/gcp-a100-v100.yaml    what it would cost; no account needed
    sailor-cloud up examples/quickstart.yaml         everything, on this machine only
    """


def _print_usage_error(error: click.ClickException) -> None:
    """Print a usage error like every other error, below a usage hint."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage = "" if context is None else f"{context.get_usage()}\nsee '{context.command_path} --help'\n\n"
    print_error(f"{usage}error: {printable(error.format_message())}")


def _start_and_end_quickly() -> None:
    """Spare every command unnecessary work: searching for plugins, and repeated garbage collection."""
    # Otherwise pydantic reads the metadata of every installed package, to find plugins for job files.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(*CYCLES_LOOKED_FOR_EVERY)
    # Objects that still exist at the end are freed with the process.
    atexit.register(gc.freeze)


def main() -> None:
    """Run the command line and exit with the code that docs/design.md gives to each outcome."""
    _start_and_end_quickly()
    for name in ("stdout", "stderr"):
        # Python has no stream if the caller closed it, as some daemons do.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        make_writable(stream)
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        print_error("interrupted")
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        _print_usage_error(error)
        sys.exit(error.exit_code)
    except SailorError as error:
        print_error(f"error: {error}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, _ClosedPipeError):
        # The reader of a pipe has closed it. Python would fail again when it flushes at exit.
        discard_output(sys.stdout)
        discard_output(sys.stderr)
        sys.exit(0)
    except OSError as error:
        discard_output(sys.stdout)
        # A write that fails, unlike an open, doesn't say where.
        where = ", on standard output or in a file" if error.filename is None and error.errno == errno.ENOSPC else ""
        print_error(f"error: {printable(of_system(error))}{where}")
        sys.exit(SailorError.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
