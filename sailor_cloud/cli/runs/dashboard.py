"""`sailor-cloud dashboard`: a web page that follows runs."""

from __future__ import annotations

import json
from contextlib import suppress

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option, runs_argument


@click.command(short_help="Serve a web page that follows runs, on this machine only.")
@runs_argument
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="A port; a free one by default.")
@json_option
def dashboard(runs: tuple[str, ...], port: int, as_json: bool) -> None:
    """Serve a page with the progress, loss, pace, money, nodes and timeline of RUNs until Ctrl-C.

    Without RUN it shows the newest 20. The losses of several runs are drawn in one chart. The server listens on
    127.0.0.1 only, requires the token in the address, and changes nothing. With --json it prints what the page would
    show: everything about one RUN, a list for several or none.

    \b
    sailor-cloud dashboard
    sailor-cloud dashboard RUN RUN
    """
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.errors import RequestError
    from sailor_cloud.launch.watch.status import WatchedRuns
    from sailor_cloud.report.run.dashboard import Dashboard
    from sailor_cloud.run.folder import RunFolder

    folders = [RunFolder.open(run) for run in runs]
    watched = WatchedRuns(folders, clock=SystemClock())
    if as_json:
        echo(json.dumps(watched.snapshot(folders[0].run_id) if len(folders) == 1 else watched.rows(), indent=2))
        return
    try:
        server = Dashboard(watched, port=port)
    except OSError as error:
        raise RequestError(f"can't listen on port {port}: {error.strerror}") from error
    with server, suppress(KeyboardInterrupt):
        echo(server.url)
        echo("press Ctrl-C to end", err=True)
        server.serve_forever()
