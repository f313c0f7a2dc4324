"""`python -m sailor_runtime.training --spec FILE --rank R --events FILE --home DIR`: one rank process."""

from __future__ import annotations

import argparse
import signal
import sys
import warnings
from pathlib import Path

from sailor_runtime.object_store import leave
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import environment
from sailor_runtime.training.checkpoint.requests import Control
from sailor_runtime.training.observe.events import EventWriter

REFUSED = 2


def main() -> int:
    """Run one rank; return 0 when training ended as requested, 2 if the spec is refused (reason on stderr).

    SIGTERM is ignored: a system that shuts down sends it to all processes, while the agent has ranks save.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.training")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--events", type=Path, required=True, help="events are appended to this file")
    parser.add_argument("--control", type=Path, help="requests for checkpoints and a stop are read from this file")
    parser.add_argument("--home", type=Path, required=True, help="the node's folder")
    options = parser.parse_args()
    events = EventWriter(options.events)
    events.write("progress", phase="starting")
    try:
        spec = RunSpec.from_json(options.spec.read_text())
        environment.prepare(spec, options.rank, options.home)
        environment.set_up(spec, options.home, lambda: events.write("progress", phase="setup"))
        # torch 2.13 and deepspeed 0.19.8 warn about their own internals during import.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
        from sailor_runtime.training import trainer

        metrics = options.home / "metrics"
        trainer.run(spec, options.rank, events, Control(options.control), metrics=metrics)
    except RefusedError as error:
        print(f"sailor_runtime: {error}", file=sys.stderr)  # noqa: T201
        events.write("refused", reason=str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    leave(main())
