"""What storms do harm to: checkpoints in a folder or a bucket, and agents with their ranks."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factories.buckets import BUCKET, GoogleBucket
from factories.running_agent import AGENT, children_of, ranks_of

_LIBC = ctypes.CDLL(None)
# Short enough to wait for, long enough for a step of ranks that share processors with others.
AGENT_OPTIONS = ("--hung-training-s", "8", "--hung-iterations", "1", "--hung-phase-s", "200", "--stop-s", "10")


@dataclass(slots=True)
class Folder:
    """A checkpoint folder that can be taken away, as an unmounted disk is."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    def away(self) -> None:
        self.path.rename(self.path.with_name("away"))
        self.path.write_text("not a folder")

    def back(self) -> None:
        self.path.unlink()
        self.path.with_name("away").rename(self.path)

    def saving(self) -> bool:
        return self.path.is_dir() and any(self.path.glob(".step-*.partial"))

    def damage(self, step: int) -> None:
        # A rank that had nothing to write leaves an empty file.
        victim = sorted(path for path in (self.path / f"step-{step}").glob("__*") if path.stat().st_size)[-1]
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)


@dataclass(slots=True)
class Bucket:
    """Checkpoints under gs://, in a stand-in that can refuse to answer."""

    served: GoogleBucket

    @property
    def url(self) -> str:
        return f"gs://{BUCKET}/run"

    def away(self) -> None:
        self.served.down = True

    def back(self) -> None:
        self.served.down = False

    def saving(self) -> bool:
        files = list(self.served.objects)
        whole = {name.split("/")[1] for name in files if name.endswith("sailor.json")}
        return any(name.split("/")[1] not in whole for name in files if "/step-" in name)

    def damage(self, step: int) -> None:
        victim = max(name for name, data in self.served.objects.items() if f"run/step-{step}/__" in name and data)
        data = bytearray(self.served.objects[victim])
        data[len(data) // 2] ^= 1
        self.served.store.objects[BUCKET, victim] = bytes(data)


def _die_with_parent() -> None:
    """End this agent when the storm is interrupted, so that nothing continues behind it."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of linux/prctl.h


@dataclass(slots=True)
class Node:
    """An agent process, its folder, and the events read so far."""

    home: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0
    _sent: int = 0

    def ensure(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.home.mkdir(exist_ok=True)
            command = [*AGENT, "--home", str(self.home), "--node", self.home.name, *AGENT_OPTIONS]
            self.process = subprocess.Popen(
                command, env=self.environ, stderr=subprocess.DEVNULL, preexec_fn=_die_with_parent
            )

    def read(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError), (self.home / "agent.jsonl").open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                # A killed agent may leave a torn line.
                with contextlib.suppress(ValueError):
                    self.events.append(json.loads(line))
        return self.events

    def of(self, generation: int, *kinds: str) -> list[dict[str, Any]]:
        return [e for e in self.read() if e["event"] in kinds and e["generation"] == generation]

    def command(self, name: str, generation: int, **details: Any) -> None:
        self._sent += 1
        (self.home / "inbox").mkdir(exist_ok=True)
        body = {"command": name, "generation": generation, "plan_hash": f"hash-{generation}", **details}
        partial = self.home / "inbox" / "partial"
        partial.write_text(json.dumps(body))
        partial.rename(self.home / "inbox" / f"{self._sent:06d}.json")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ranks(self) -> list[int]:
        if self.process is None or not self.alive:
            return []
        return [rank for child in children_of(self.process.pid) for rank in ranks_of(child)]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
