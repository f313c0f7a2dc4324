"""Measures `sailor-cloud plan JOB` in a terminal, cold: seconds from process start to the first decision screen.

Usage: python benchmarks/planner/first_screen.py [--repeat 5] [-o FILE]. Jobs: those of `explain_time.py`. The first
screen is complete once the bar below it is drawn. Wall time is the least of the repeats, since other work on the
machine only adds to it; CPU time is of the same run. The scaled wall time is divided by the CPU seconds that
`reference_work.py` takes, the mean of a run before and a run after. Modules are compiled before, as pip does it. Exits
with 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import signal
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from explain_time import PROGRAM, jobs
from reference_work import reference_cpu_s
from time_and_gap import AS_OF, ROOT

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

_HEADS = ("job", "wall s", "CPU s", "scaled wall s", "aim")
# Scaled wall seconds, by the name of the job.
AIMS_S = {"gcp-a100-v100": 2.0, "seven-kinds": 5.0}
_LINES, _COLUMNS = 40, 120
# On the first screen, and on the bar below it.
_DECISION, _BAR = b"plan is chosen", b"searching for the best plan"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    rows = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        every = jobs(Path(folder))
        first_screen(every[0], compiled=folder)
        for job in every:
            rows.append(_row(job, repeat=chosen.repeat, compiled=folder))
            print(rows[-1], file=sys.stderr, flush=True)
    write("\n".join([measured_on(), *rows, ""]), chosen.output)
    sys.exit(1 if any("missed" in row for row in rows) else 0)


def complete(written: bytes) -> bool:
    """Return whether a terminal shows a whole decision screen."""
    return _BAR in written.partition(_DECISION)[2]


def first_screen(job: Path, *, compiled: str) -> tuple[float, float]:
    """Return the wall and CPU seconds until the first screen; `compiled` is a folder for compiled modules."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "TERM": "xterm-256color"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [PROGRAM, "plan", str(job), "--as-of", AS_OF]
    started = time.perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        os.chdir(ROOT)
        os.execve(PROGRAM, command, environment)
    written = b""
    while not complete(written):
        try:
            read = os.read(terminal, 65536)
        except OSError:
            read = b""
        if not read:
            raise SystemExit(f"{' '.join(command)} ended without a first screen:\n{written.decode()}")
        written += read
    wall_s = time.perf_counter() - started
    os.kill(process, signal.SIGKILL)
    _, _, usage = os.wait4(process, 0)
    os.close(terminal)
    return wall_s, usage.ru_utime + usage.ru_stime


def _row(job: Path, *, repeat: int, compiled: str) -> str:
    reference_s = reference_cpu_s()
    wall_s, cpu_s = min(first_screen(job, compiled=compiled) for _ in range(repeat))
    scaled_s = wall_s / ((reference_s + reference_cpu_s()) / 2.0)
    aim_s = AIMS_S.get(job.stem)
    aim = "–" if aim_s is None else f"{aim_s:g} s{'' if scaled_s <= aim_s else ', missed'}"
    return f"| {job.stem} | {wall_s:.2f} | {cpu_s:.2f} | {scaled_s:.2f} | {aim} |"


if __name__ == "__main__":
    main()
