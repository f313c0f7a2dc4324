"""`python -m sailor_runtime.profile --task FILE --results FILE`: makes the measurements that the results lack.

Prints one line of JSON per finished measurement, {done, of, what}, and ends with the reason on stderr if something
can't be measured. An interrupt loses only the current measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor_runtime.profile.results import Results
from sailor_runtime.profile.task import ProfileTask, free_port, layer_spec

INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One world of ranks and the keys of the rows that it must produce."""

    kind: str
    tp: int
    microbatch_sizes: tuple[int, ...]
    ranks: tuple[int, ...]

    def key(self, microbatch_size: int | None) -> dict[str, Any]:
        return {"kind": self.kind, "tp": self.tp, "microbatch_size": microbatch_size}


class ProfileError(Exception):
    """A rank has ended with an error; the message is its output."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.profile")
    parser.add_argument("--task", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True, help="rows are appended to this file")
    options = parser.parse_args()
    task = ProfileTask.from_json(options.task.read_text(encoding="utf-8"))
    results = Results(options.results, task.key)
    # Either signal must also end its ranks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(task, results)
    except ProfileError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def run(task: ProfileTask, results: Results) -> None:
    """Make all missing measurements. Raises ProfileError."""
    wanted = measurements(task)
    total = sum(len(each.microbatch_sizes) or 1 for each in wanted)
    done = 0
    for each in wanted:
        keys = [each.key(size) for size in each.microbatch_sizes or (None,)]
        missing = [key for key in keys if not results.has(**key)]
        done += len(keys) - len(missing)
        if not missing:
            continue
        _report_progress(done, total, _title(each))
        for row in _world(task, each, tuple(key["microbatch_size"] for key in missing)):
            results.add(**each.key(row.pop("microbatch_size", None)), **row)
            done += 1
            _report_progress(done, total, _title(each))


def measurements(task: ProfileTask) -> list[Measurement]:
    sizes = tuple(sorted(task.microbatch_sizes))
    found = []
    for tp in task.tps:
        ranks = tuple(range(max(tp, task.together)))
        found.append(Measurement(kind="layers", tp=tp, microbatch_sizes=sizes, ranks=ranks))
    found.append(Measurement(kind="memory", tp=1, microbatch_sizes=sizes, ranks=(0,)))
    if task.link is not None:
        ends = (0, 1) if task.link.end is None else (task.link.end,)
        found.append(Measurement(kind="link", tp=1, microbatch_sizes=(), ranks=ends))
    return found


def _title(each: Measurement) -> str:
    return {"layers": f"layers at tp {each.tp}", "memory": "peak memory", "link": "link"}[each.kind]


def _report_progress(done: int, of: int, what: str) -> None:
    print(json.dumps({"done": done, "of": of, "what": what}), flush=True)  # noqa: T201


def _world(task: ProfileTask, each: Measurement, sizes: tuple[int | None, ...]) -> Iterator[dict[str, Any]]:
    """Run the ranks of a measurement and yield the output of the first. Raises ProfileError."""
    with tempfile.TemporaryDirectory(prefix="sailor-profile-") as name:
        folder, port = Path(name), free_port()
        specs = [
            layer_spec(task, tp=each.tp, microbatch_size=size or 1, directory=name, port=port)
            for size in (sizes if each.kind != "link" else (1,))
        ]
        if each.kind == "memory":
            specs = [dataclasses.replace(spec, model=task.model) for spec in specs]
        content: dict[str, Any] = {"kind": each.kind, "specs": [dataclasses.asdict(spec) for spec in specs]}
        if task.link is not None:
            link = task.link if task.link.end is not None else dataclasses.replace(task.link, port=port)
            content["link"] = dataclasses.asdict(link)
        file = folder / "task.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        processes = [_start(file, rank, folder) for rank in each.ranks]
        try:
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                yield json.loads(line)
            _check(processes, folder, each.ranks)
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()


def _start(file: Path, rank: int, folder: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / f"rank{rank}.err").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "sailor_runtime.profile.rank", str(file), str(rank)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def _check(processes: list[subprocess.Popen[str]], folder: Path, ranks: tuple[int, ...]) -> None:
    for rank, process in zip(ranks, processes, strict=True):
        if process.wait() != 0:
            stderr = (folder / f"rank{rank}.err").read_text().strip()
            # A traceback is long; its last line is the reason.
            raise ProfileError(stderr.splitlines()[-1] if stderr else f"rank {rank} ended with {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
