"""Programs of this package as forks of a process that has imported them already, because imports take seconds.

`warm(COMMAND_LINE)` is the beginning of a command line, for `subprocess`. It starts a stub in milliseconds. The stub
passes on its arguments, environment, folder, streams and signals, and ends as the fork does. If the stub is killed, the
fork is killed. /proc shows the fork with the arguments and the environment of the process that forked it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from factories import warm_stub

COMMAND_LINE = "sailor_cloud.cli.main"
_READY = b"ready\n"
_IMPORTED = (
    "boto3",
    "factories.local_controller",
    "factories.quick_command",
    "factories.quick_main",
    "google.cloud.compute_v1",
    COMMAND_LINE,
    "sailor_cloud.cli.runs.down",
    "sailor_cloud.cli.runs.logs",
    "sailor_cloud.cli.runs.resume",
    "sailor_cloud.cli.runs.status",
    "sailor_cloud.cli.runs.up",
)


def warm(module: str) -> list[str]:
    """Return the command that calls a module's `main`; arguments may follow."""
    return [sys.executable, "-I", "-S", warm_stub.__file__, _address(), module]


@cache
def _address() -> str:
    """Start the process that forks, which ends with this one, and return the address at which it listens."""
    folder = tempfile.TemporaryDirectory()
    address = f"{folder.name}/forks"
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    # A process whose imports start threads can't be forked; plugins of pydantic only take time.
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    process = subprocess.Popen(
        [sys.executable, "-c", "from factories import warm; warm.main()", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **single, "PYTHONPATH": path},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == _READY, "the imports failed"

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return address


def _wish(address: str) -> dict[str, Any] | None:
    """Fork for every stub until standard input ends. Returns the stub's wish in each fork, and None at the end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        # The forks that watch the programs need not be waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.write(1, _READY)
        while 0 not in select.select([0, listener], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return _watched(connection)
    return None


def _watched(connection: socket.socket) -> dict[str, Any]:
    """Return a stub's wish in a fork with its streams; this process tells the stub how that ends, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, warm_stub.SIZE, 3)
    with connection.makefile("rb") as sent:
        wish: dict[str, Any] = json.loads(sent.read(int(size)))
    program = os.fork()
    if program == 0:
        _enter(wish, streams)
        return wish
    for stream in (0, 1, 2, *streams):
        os.close(stream)
    # A killed stub has told nothing when its connection ends.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(f"{program}\n".encode())
    descriptor = os.pidfd_open(program)
    ready, _, _ = select.select([descriptor, connection], [], [])
    if descriptor not in ready:
        os.kill(program, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _enter(wish: dict[str, Any], streams: list[int]) -> None:
    """Make this process the one that the stub was to be."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(wish["cwd"])
    os.umask(wish["umask"])
    os.environ.clear()
    os.environ.update(wish["environment"])
    # What `--help` and usage errors call the program.
    sys.argv = ["sailor-cloud", *wish["arguments"]]


def main() -> None:
    for module in _IMPORTED:
        importlib.import_module(module)
    wish = _wish(sys.argv[1])
    if wish is not None:
        importlib.import_module(wish["module"]).main()
