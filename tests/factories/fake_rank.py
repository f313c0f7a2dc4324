"""A rank program without torch: behaves as the environment variable FAKE_RANK says."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--spec", "--rank", "--events", "--control", "--home"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    behaviour = os.environ["FAKE_RANK"]
    with Path(options.events).open("a", buffering=1) as events:

        def say(event: str, **fields: object) -> None:
            events.write(json.dumps({"ts": time.time(), "event": event, **fields}) + "\n")

        say("progress", phase="starting")
        Path(options.home, f"environment-{options.rank}.json").write_text(json.dumps(dict(os.environ)))
        say("step", step=1, loss=1.0)
        if behaviour in ("finish", "finish, then killed"):
            say("ended", reason="finished", step=1)
            if behaviour == "finish, then killed" and options.rank == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            return 0
        if behaviour == "crash" and options.rank == "1":
            print("the last words of rank 1", file=sys.stderr)  # noqa: T201
            return 7
        if behaviour == "killed" and options.rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        served = 0
        while True:
            time.sleep(0.02)
            if behaviour == "silent":
                continue
            say("progress", phase="train")
            control = Path(options.control)
            if not control.exists():
                continue
            wanted = json.loads(control.read_text())
            if wanted["checkpoint"] > served:
                served = wanted["checkpoint"]
                say("checkpoint", step=1, path="somewhere")
            if wanted["stop"]:
                say("ended", reason="requested", step=1)
                return 0


if __name__ == "__main__":
    sys.exit(main())
