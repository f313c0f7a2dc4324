"""`python -m sailor_runtime.training.fork_server FD SPEC RANK HOME`: imports torch once and forks ranks on request.

Requests are lines of JSON on the socket FD: {argv, log, cwd, env}. Answers are {forked: pid} and {exited: pid, status}.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import environment

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    descriptor, spec_path, rank, home = sys.argv[1:]
    agent = socket.socket(fileno=int(descriptor))
    spec = RunSpec.from_json(Path(spec_path).read_text())
    environment.prepare(spec, int(rank), Path(home))
    # torch 2.13 and deepspeed 0.19.8 warn about their own internals during import.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
    from sailor_runtime.training import trainer

    # Ranks then find the model's modules imported and its layers known; a rank itself refuses a model that can't be
    # cut.
    with contextlib.suppress(RefusedError):
        trainer.architecture_of(spec.model)
    # Imported objects live as long as their process: collectors of ranks need not examine them, so that their pages
    # stay shared.
    gc.freeze()
    _serve(agent)
    return 0


def _serve(agent: socket.socket) -> None:
    """Fork and reap until the agent has closed its end."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    unread = b""
    while True:
        readable, _, _ = select.select([agent, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            _reap(agent)
        if agent in readable:
            data = agent.recv(65_536)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                parent = os.getpid()
                child = os.fork()
                if child == 0:
                    for inherited in (agent, woken, wake):
                        inherited.close()
                    _run_as_rank(request, parent)
                agent.sendall(json.dumps({"forked": child}).encode() + b"\n")


def _reap(agent: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended = {"exited": pid, "status": os.waitstatus_to_exitcode(status)}
        agent.sendall(json.dumps(ended).encode() + b"\n")


def _run_as_rank(request: dict[str, Any], parent: int) -> NoReturn:
    """Run as the requested rank, as if this process had been started separately."""
    code = 1
    try:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        sys.argv = ["sailor_runtime.training", *request["argv"]]
        from sailor_runtime.training.__main__ import main as run_rank

        code = run_rank()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
