"""Stands for a program that `factories.warm` forks: `python warm_stub.py ADDRESS MODULE [ARGUMENT]...`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Of the number that comes before the wish.
SIZE = 16


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    _, address, module, *arguments = sys.argv
    umask = os.umask(0)
    os.umask(umask)
    wish = {"module": module, "arguments": arguments, "cwd": os.getcwd(), "umask": umask, "environment": {**os.environ}}
    content = json.dumps(wish).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [f"{len(content):{SIZE}}".encode()], [0, 1, 2])
        connection.sendall(content)
        with connection.makefile("r") as told:
            program = int(told.readline())

            def forward(sent: int, frame: object) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program, sent)

            for number in FORWARDED:
                signal.signal(number, forward)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
            status = int(told.readline())
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
