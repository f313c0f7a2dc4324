"""`sailor-cloud dashboard`: a web page that follows a run."""

from __future__ import annotations

import json
from contextlib import suppress

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.options import json_option, run_argument


@click.command(short_help="Serve a web page that follows a run, on this machine only.")
@run_argument()
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="A port; a free one by default.")
@json_option
def dashboard(run: str, port: int, as_json: bool) -> None:
    """Serve a page with the progress, loss, pace, money, nodes and timeline of RUN until Ctrl-C.

    It listens on 127.0.0.1 only, answers only who has the token in the address, and changes nothing. With --json it
    serves nothing and prints what the page would show.

    \b
    sailor-cloud dashboard RUN
    """
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.errors import RequestError
    from sailor_cloud.launch.spend.prices import UsePrices
    from sailor_cloud.launch.watch.status import snapshot
    from sailor_cloud.report.dashboard import Dashboard
    from sailor_cloud.run.folder import RunFolder

    folder, clock, prices = RunFolder.open(run), SystemClock(), UsePrices()
    if as_json:
        echo(json.dumps(snapshot(folder, clock=clock), indent=2))
        return
    try:
        server = Dashboard(lambda: snapshot(folder, clock=clock, prices=prices), port=port)
    except OSError as error:
        raise RequestError(f"can't listen on port {port}: {error.strerror}") from error
    with server, suppress(KeyboardInterrupt):
        echo(server.url)
        echo("press Ctrl-C to end", err=True)
        server.serve_forever()
