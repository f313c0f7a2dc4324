"""Every example under examples/run on two nodes, interrupted in the middle; `make run-examples`.

On the local provider a process is killed; on a fake cloud (`--on gcp`, `--on aws`) a spot node gets its notice and is
taken away. `--only NAME` runs one. Prints a table; the tables are kept in benchmarks/results/run-any-code.md.
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
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import commit

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes
from sailor_cloud.testing.mock_cloud import MockCloud, mock_cloud

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "run"
PACKAGES = ("torch", "transformers", "accelerate", "peft", "lightning", "deepspeed")
PATIENCE_S = 400.0
# From the notice until the machine is gone, as on Google Cloud.
NOTICE_S = 30.0
SPOT = {
    Provider("gcp"): (["us-central1-a", "us-central1-b"], "n1-standard-8"),
    Provider("aws"): (["use1-az1", "use1-az2"], "p3.2xlarge"),
}
OPTIONS = ["--allow-stale", "--allow-doubtful", "--ssh-from", "203.0.113.7/32"]
KILL_AFTER = 14


def lines(path: Path) -> list[dict[str, Any]]:
    whole = path.read_text().rpartition("\n")[0] if path.is_file() else ""
    return [json.loads(line) for line in whole.splitlines() if line]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(run / "logs" / "events.jsonl") if event["event"] == kind]


def one(name: str, home: Path, cloud: MockCloud | None) -> dict[str, Any]:
    """Run an example to its end with an interruption in the middle; return what came of it."""
    job = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    # DeepSpeed builds an extension on its first use on processors, which takes minutes.
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR", str(Path.home() / ".cache" / "torch_extensions"))
    job |= {"workdir": str(EXAMPLES / name), "env": {"PAUSE_S": "0.5", "TORCH_EXTENSIONS_DIR": extensions}}
    if cloud is not None:
        job |= on_cloud(cloud)
    (home / "job.yaml").write_text(yaml.safe_dump(job))
    begun = time.monotonic()
    environment = {**os.environ, "SAILOR_CLOUD_HOME": str(home), **({} if cloud is None else cloud.environment)}
    program = str(Path(sys.executable).with_name("sailor-cloud"))
    command = [program, "up", str(home / "job.yaml"), "--yes", *([] if cloud is None else OPTIONS)]
    with (home / "log").open("w") as log:
        up = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        at, node, taken = None, "", 0.0
        while up.poll() is None and time.monotonic() - begun < PATIENCE_S:
            time.sleep(0.1)
            runs = sorted((home / "runs").iterdir()) if (home / "runs").is_dir() else []
            steps = events(runs[0], "step") if runs else []
            if at is None and steps and steps[-1]["step"] >= KILL_AFTER and events(runs[0], "checkpoint"):
                at, taken = steps[-1]["step"], time.monotonic() + NOTICE_S
                if cloud is None:
                    found = processes.of_run(runs[0].name)
                    os.kill([one for one in found if one.node.endswith("-1") and trains(one)][-1].pid, signal.SIGKILL)
                else:
                    node = sorted(cloud.billed())[-1]
                    cloud.announce_preemption(node)
            if node and time.monotonic() > taken:
                if node in cloud.billed():
                    cloud.preempt(node)
                node = ""
        if up.poll() is None:
            up.send_signal(signal.SIGINT)
        code = up.wait()
    if not (home / "runs").is_dir():
        raise SystemExit(f"{name} never began:\n{(home / 'log').read_text()}")
    [run] = (home / "runs").iterdir()
    left = len(processes.of_run(run.name)) if cloud is None else len(cloud.left_of(run.name))
    subprocess.run([program, "down", run.name], env=environment, capture_output=True)
    steps = events(run, "step")
    again = [event for event in steps if event["generation"] == 2]
    return {
        "example": name,
        "exit": code,
        "interrupted at": at,
        "continued from": again[0]["step"] - 1 if again else None,
        "last": steps[-1]["step"] if steps else None,
        "left": left,
        "seconds": round(time.monotonic() - begun),
    }


def on_cloud(cloud: MockCloud) -> dict[str, Any]:
    """Return what a job says to buy two spot nodes with a GPU each, which here are processes."""
    zones, instance_type = SPOT[cloud.provider]
    bought = {"provider": str(cloud.provider), "zones": zones, "markets": ["spot"], "accelerators": {"V100-16": 2}}
    account = {"gcp": {"project": cloud.project}} if cloud.provider is Provider("gcp") else {"image": cloud.image}
    return {
        "constraints": {"budget_usd": 60, "deadline": "2h"},
        "resources": [{**bought, "instance_types": [instance_type]}],
        "cloud": {"owner": "me@example.org", **account},
    }


def trains(found: processes.Process) -> bool:
    return "train.py" in found.command and not any(
        launcher in found.command for launcher in ("torchrun", "accelerate", "deepspeed", "bash")
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append")
    parser.add_argument("--on", choices=["local", *SPOT], default="local")
    options = parser.parse_args()
    rows = []
    for name in options.only or sorted(path.name for path in EXAMPLES.iterdir()):
        with ExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cloud = None
            if options.on != "local":
                cloud = stack.enter_context(mock_cloud(Provider(options.on), home / "cloud"))
            row = one(name, home, cloud)
            rows.append(row)
            if row["exit"] != 0:
                sys.stdout.write((home / "log").read_text()[-6000:] + "\n")
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
    write(rows, options.on)
    good = all(row["exit"] == 0 and row["last"] == 30 and row["continued from"] and not row["left"] for row in rows)
    return 0 if good else 1


def write(rows: list[dict[str, Any]], place: str) -> None:
    text = f"\ncommit {commit()}, {place}, two nodes, "
    text += ", ".join(f"{name} {version(name)}" for name in PACKAGES) + "\n\n"
    text += f"| {' | '.join(rows[0])} |\n|" + "---|" * len(rows[0]) + "\n"
    text += "".join(f"| {' | '.join(map(str, row.values()))} |\n" for row in rows)
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
