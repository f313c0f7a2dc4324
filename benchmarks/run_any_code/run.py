"""Every example under examples/run on two local nodes, with a process killed in the middle; `make run-examples`.

`--only NAME` runs one. Writes benchmarks/results/run-any-code.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import commit

from sailor_cloud.provision import processes

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "run"
RESULT = ROOT / "benchmarks" / "results" / "run-any-code.md"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "lightning", "deepspeed")
PATIENCE_S = 400.0
KILL_AFTER = 14


def lines(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0] if path.is_file() else ""
    return [json.loads(line) for line in whole.splitlines() if line]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(run / "logs" / "events.jsonl") if event["event"] == kind]


def one(name: str, home: Path) -> dict[str, Any]:
    """Run an example to its end with a kill in the middle; return what came of it."""
    job = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    # DeepSpeed builds an extension on its first use on processors, which takes minutes.
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR", str(Path.home() / ".cache" / "torch_extensions"))
    job |= {"workdir": str(EXAMPLES / name), "env": {"PAUSE_S": "0.5", "TORCH_EXTENSIONS_DIR": extensions}}
    (home / "job.yaml").write_text(yaml.safe_dump(job))
    begun, environment = time.monotonic(), {**os.environ, "SAILOR_CLOUD_HOME": str(home)}
    command = [str(Path(sys.executable).with_name("sailor-cloud")), "up", str(home / "job.yaml"), "--yes"]
    with (home / "log").open("w") as log:
        up = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        killed = None
        while up.poll() is None and time.monotonic() - begun < PATIENCE_S:
            time.sleep(0.1)
            runs = sorted((home / "runs").iterdir()) if (home / "runs").is_dir() else []
            if not runs or killed is not None:
                continue
            steps = events(runs[0], "step")
            if steps and steps[-1]["step"] >= KILL_AFTER and events(runs[0], "checkpoint"):
                victims = [
                    found for found in processes.of_run(runs[0].name) if found.node.endswith("-1") and trains(found)
                ]
                killed = steps[-1]["step"]
                os.kill(victims[-1].pid, signal.SIGKILL)
        if up.poll() is None:
            up.send_signal(signal.SIGINT)
        code = up.wait()
    if not (home / "runs").is_dir():
        raise SystemExit(f"{name} never began:\n{(home / 'log').read_text()}")
    [run] = (home / "runs").iterdir()
    subprocess.run([*command[:1], "down", run.name], env=environment, capture_output=True)
    told = events(run, "step")
    again = [event for event in told if event["generation"] == 2]
    return {
        "example": name,
        "exit": code,
        "killed at": killed,
        "saved": max((event["step"] for event in events(run, "checkpoint") if event["generation"] == 1), default=None),
        "went on from": again[0]["step"] - 1 if again else None,
        "last": told[-1]["step"] if told else None,
        "left": len(processes.of_run(run.name)),
        "seconds": time.monotonic() - begun,
    }


def trains(found: processes.Process) -> bool:
    return "train.py" in found.command and not any(
        launcher in found.command for launcher in ("torchrun", "accelerate", "deepspeed", "bash")
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    rows = []
    for name in options.only or sorted(path.name for path in EXAMPLES.iterdir()):
        with tempfile.TemporaryDirectory() as home:
            row = one(name, Path(home))
            rows.append(row)
            sys.stdout.write(f"{row}\n")
            if row["exit"] != 0:
                sys.stdout.write((Path(home) / "log").read_text()[-6000:] + "\n")
            sys.stdout.flush()
    good = all(row["exit"] == 0 and row["last"] == 30 and row["went on from"] and not row["left"] for row in rows)
    if not options.only:
        write(rows)
    return 0 if good else 1


def write(rows: list[dict[str, Any]]) -> None:
    text = "# Any code: the examples under examples/run, each with a process killed in the middle\n\n"
    text += f"`make run-examples`, commit {commit()}, 2 cores x86_64, local provider, two nodes. "
    text += "Packages: " + ", ".join(f"{name} {version(name)}" for name in PACKAGES) + ".\n\n"
    text += "Of 30 steps each; a training process on the second node gets SIGKILL after step 14 once a checkpoint has "
    text += "been copied, both nodes start the command again, and it loads its own checkpoint.\n\n"
    names = ("example", "exit", "killed at", "saved", "went on from", "last", "left", "seconds")
    text += "| " + " | ".join(names) + " |\n|" + "---|" * len(names) + "\n"
    for row in rows:
        cells = [f"{row[name]:.0f}" if name == "seconds" else str(row[name]) for name in names]
        text += "| " + " | ".join(cells) + " |\n"
    RESULT.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
