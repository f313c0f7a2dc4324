"""Emulates `gcloud compute start-iap-tunnel` and `aws ssm start-session`; standard library only.

Called as `tunnel_program.py ROOT NAME ARGUMENT…`; it accepts only the arguments that the real programs need.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

LOG = "tunnels.log"


def _target(name: str, arguments: list[str]) -> tuple[str, int]:
    """Return machine and port. Raises ValueError if the real program would not start."""
    if name == "gcloud":
        machine, port, *options = arguments[2:]
        known = {option.partition("=")[0] for option in options}
        if not {"--listen-on-stdin", "--project", "--zone"} <= known:
            raise ValueError("start-iap-tunnel needs --listen-on-stdin, --project and --zone")
        return machine, int(port)
    given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    if given.get("--document-name") != "AWS-StartSSHSession" or not given.get("--region"):
        raise ValueError("start-session needs --document-name AWS-StartSSHSession and --region")
    return given["--target"], int(given["--parameters"].removeprefix("portNumber="))


def _carry(connection: socket.socket) -> None:
    def send() -> None:
        while data := os.read(0, 65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    while data := connection.recv(65536):
        while data:
            data = data[os.write(1, data) :]


def _main(root: Path, name: str, arguments: list[str]) -> int:
    try:
        machine, port = _target(name, arguments)
        about = json.loads((root / machine / "node.json").read_text())
        with open(root / LOG, "a") as log:
            log.write(f"{machine}\n")
        with socket.create_connection((about["address"], port)) as connection:
            _carry(connection)
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"ERROR: ({name}) no tunnel: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
