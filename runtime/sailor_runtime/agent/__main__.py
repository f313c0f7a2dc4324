"""`python -m sailor_runtime.agent --home DIR [--detach]`: the agent of one node.

With `--plan FILE --group NAME --index N --rendezvous HOST:PORT` it is one of the agents of a scheduler's job. Such an
agent ends with the job's only generation; see rendezvous.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
from pathlib import Path

from sailor_runtime.agent.agent import SHUTDOWN_S, Agent, Settings
from sailor_runtime.agent.generation import Limits
from sailor_runtime.agent.power import power_off
from sailor_runtime.agent.preemption import PreemptionWatch, Provider
from sailor_runtime.agent.rendezvous import JOIN_S, Artefact, RendezvousError
from sailor_runtime.spec import HOLD_S
from sailor_runtime.stand_in import METADATA

_HELLO_TIMEOUT_S = 30.0


def main() -> int:
    """Run the agent; return 1 if another agent serves the same folder or a detached one does not begin."""
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.agent")
    parser.add_argument("--home", type=Path, required=True, help="the node's folder")
    parser.add_argument("--node", help="the node's id in the spec (default: from the start command or the folder)")
    parser.add_argument("--detach", action="store_true", help="return once the agent runs in the background")
    parser.add_argument("--rank-module", default="sailor_runtime.training", help="module that ranks run")
    parser.add_argument(
        "--hold-s", type=float, default=HOLD_S, help="seconds without generation and controller until exit"
    )
    parser.add_argument("--power-off", action="store_true", help="then power the machine off")
    parser.add_argument("--provider", choices=list(Provider), help="whose preemption notices to watch for")
    parser.add_argument(
        "--metadata-address",
        default=os.environ.get(METADATA),
        help="the metadata server, where it is not the provider's usual one",
    )
    limits = Limits()
    parser.add_argument("--hung-iterations", type=float, default=limits.iterations)
    parser.add_argument("--hung-training-s", type=float, default=limits.training_s)
    parser.add_argument("--hung-phase-s", type=float, default=limits.phase_s)
    parser.add_argument("--stop-s", type=float, default=limits.stop_s)
    parser.add_argument(
        "--shutdown-s",
        type=float,
        default=SHUTDOWN_S,
        help="with --provider or --plan: seconds for a last checkpoint once the system shuts down",
    )
    parser.add_argument("--plan", type=Path, help="as part of a job: the plan for its nodes")
    parser.add_argument("--group", help="with --plan: this node's group")
    parser.add_argument("--index", type=int, help="with --plan: this node's place in its group, from 0 on")
    parser.add_argument("--rendezvous", help="with --plan: HOST:PORT of the first node of the first group")
    parser.add_argument(
        "--join-s", type=float, default=JOIN_S, help="with --plan: seconds until all nodes must have come"
    )
    parser.add_argument("--echo", action="store_true", help="also write events to stdout")
    options = parser.parse_args()
    artefact = None
    if options.plan is not None:
        if None in (options.group, options.index, options.rendezvous):
            parser.error("--plan needs --group, --index and --rendezvous")
        try:
            artefact = Artefact.read(options.plan)
            options.node = artefact.node(options.group, options.index)
        except RendezvousError as error:
            print(f"sailor_runtime: {error}", file=sys.stderr)  # noqa: T201
            return 2
        # All nodes of a job get the same folder.
        options.home = options.home / options.node
    home = options.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    lock = os.open(home / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"sailor_runtime: another agent serves {home}", file=sys.stderr)  # noqa: T201
        return 1
    if not options.detach:
        return _serve(options, home, artefact)
    return _detach(options, home)


def _serve(options: argparse.Namespace, home: Path, artefact: Artefact | None = None) -> int:
    watch = None
    if options.provider is not None:
        watch = PreemptionWatch(Provider(options.provider), address=options.metadata_address)
    settings = Settings(
        home=home,
        node=options.node,
        rank_module=options.rank_module,
        hold_s=options.hold_s,
        limits=Limits(
            iterations=options.hung_iterations,
            training_s=options.hung_training_s,
            phase_s=options.hung_phase_s,
            stop_s=options.stop_s,
        ),
        preemption=watch,
        shutdown_s=options.shutdown_s,
        artefact=artefact,
        meeting=options.rendezvous or "",
        join_s=options.join_s,
        echo=options.echo,
    )
    reason = Agent(settings).run()
    if reason == "held" and options.power_off:
        power_off()
    return 0 if artefact is None or reason in ("finished", "requested") else 1


def _detach(options: argparse.Namespace, home: Path) -> int:
    """Run the agent in a separate session; the parent returns once the agent has reported in."""
    events = home / "agent.jsonl"
    before = events.stat().st_size if events.exists() else 0
    child = os.fork()
    if child > 0:
        os.waitpid(child, 0)
        deadline = time.monotonic() + _HELLO_TIMEOUT_S
        while time.monotonic() < deadline:
            if events.exists() and events.stat().st_size > before:
                return 0
            time.sleep(0.01)
        print(f"sailor_runtime: no agent has begun; see {home / 'logs' / 'agent.log'}", file=sys.stderr)  # noqa: T201
        return 1
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    (home / "logs").mkdir(exist_ok=True)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(home / "logs" / "agent.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(home)
    # Threads don't survive a fork, so the agent and its watch begin here.
    return _serve(options, home)


if __name__ == "__main__":
    sys.exit(main())
