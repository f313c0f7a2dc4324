"""`sailor-cloud completion`: a shell script that completes commands, options and files."""

from __future__ import annotations

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option

PROGRAM = "sailor-cloud"
VARIABLE = "_SAILOR_CLOUD_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
def completion(shell: str, as_json: bool) -> None:
    """Print the script that completes commands, options, files and runs in SHELL.

    \b
    sailor-cloud completion bash >> ~/.bashrc
    sailor-cloud completion zsh >> ~/.zshrc
    sailor-cloud completion fish > ~/.config/fish/completions/sailor-cloud.fish
    """
    import json

    from click.shell_completion import get_completion_class

    from sailor_cloud.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, PROGRAM, VARIABLE).source()
    echo(json.dumps({"shell": shell, "script": script}, indent=2) if as_json else script)
