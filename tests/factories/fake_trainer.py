"""A rank program without torch that speaks the whole protocol: joins, steps in lockstep, saves, resumes, stops.

What lies in the node's folder changes its behaviour: `fail_at` (a step) makes it raise there with the text of
`mistake`, `slow` (seconds) sets the
length of a step. Every rank of a world dies when one of the others does, as with torch.distributed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sailor_runtime.manifest import FileSum, encode
from sailor_runtime.object_store import Store, is_url, leave
from sailor_runtime.spec import RunSpec

STEP_S = 0.05


class World:
    """Rank 0 beats, the others answer; a lost connection ends whoever notices."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.rank = rank
        address = (spec.master_address, spec.master_port)
        self.peers: list[socket.socket] = []
        if rank == 0:
            with socket.create_server(address) as server:
                server.settimeout(30.0)
                while len(self.peers) < spec.world_size - 1:
                    self.peers.append(server.accept()[0])
        else:
            until = time.monotonic() + 30.0
            while not self.peers:
                try:
                    self.peers.append(socket.create_connection(address, timeout=30.0))
                except OSError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
        for peer in self.peers:
            peer.settimeout(60.0)

    def beat(self, flags: int) -> int:
        """Exchange flags; every rank gets those of all."""
        if self.rank == 0:
            for peer in self.peers:
                flags |= _receive(peer)
            for peer in self.peers:
                peer.sendall(bytes([flags]))
            return flags
        self.peers[0].sendall(bytes([flags]))
        return _receive(self.peers[0])


def _receive(peer: socket.socket) -> int:
    data = peer.recv(1)
    if not data:
        raise ConnectionError("Connection closed by peer")
    return data[0]


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--spec", "--rank", "--events", "--control", "--home"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    spec, rank, home = RunSpec.from_json(Path(options.spec).read_text()), int(options.rank), Path(options.home)
    with Path(options.events).open("a", buffering=1) as events:

        def say(event: str, **fields: object) -> None:
            events.write(json.dumps({"ts": time.time(), "event": event, **fields}) + "\n")

        say("progress", phase="starting")
        print(f"rank {rank} of generation {spec.generation} begins", file=sys.stderr)  # noqa: T201
        world = World(spec, rank)
        if rank == 0:
            say("data", unigram_entropy=5.5)
        _train(spec, world, home, Path(options.control), say)
    return 0


class Folder:
    """The newest step as a number in a file."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def newest(self) -> int:
        latest = self.directory / "latest"
        return int(latest.read_text()) if latest.is_file() else 0

    def save(self, step: int) -> str:
        staged = self.directory / "latest.new"
        staged.write_text(str(step))
        os.replace(staged, self.directory / "latest")
        return str(self.directory / f"step-{step}")


class Bucket:
    """Checkpoints as the runtime lays them out, without tensors."""

    def __init__(self, url: str) -> None:
        self.store = Store(url, patience_s=60.0)

    def newest(self) -> int:
        try:
            return int(self.store.read("latest").decode().removeprefix("step-"))
        except FileNotFoundError:
            return 0

    def save(self, step: int) -> str:
        files = {".metadata": b"", "__0_0": f"weights of step {step}".encode()}
        sums = []
        for name, content in files.items():
            self.store.write(f"step-{step}/{name}", content)
            sums.append(FileSum(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
        self.store.write(f"step-{step}/sailor.json", encode({"step": step}, sums).encode())
        self.store.write("latest", f"step-{step}".encode())
        return f"{self.store.url}/step-{step}"


def _train(spec: RunSpec, world: World, home: Path, control: Path, say: Callable[..., None]) -> None:
    directory = spec.checkpoint.directory
    place = Bucket(directory) if is_url(directory) else Folder(directory)
    step = place.newest()
    saved_at, stopped = time.monotonic(), False

    def save() -> None:
        if world.rank == 0:
            say("checkpoint", step=step, path=place.save(step))

    while step < spec.training.steps and not stopped:
        time.sleep(_number(home / "slow", STEP_S))
        if step + 1 == _number(home / "fail_at", -1.0):
            mistake = home / "mistake"
            raise RuntimeError(mistake.read_text() if mistake.is_file() else "the job's own mistake")
        wanted = json.loads(control.read_text()) if control.exists() else {"checkpoint": 0, "stop": False}
        due = world.rank == 0 and time.monotonic() - saved_at >= spec.checkpoint.every_s
        flags = world.beat((1 if due or wanted["checkpoint"] else 0) | (2 if wanted["stop"] else 0))
        step += 1
        if world.rank == 0:
            say("step", step=step, loss=5.0 / step, iteration_s=STEP_S)
        else:
            say("progress", phase="train", step=step)
        stopped = bool(flags & 2)
        if flags & 1 and not stopped:
            save()
            saved_at = time.monotonic()
    save()
    say("ended", reason="finished" if step >= spec.training.steps else "requested", step=step)


def _number(path: Path, default: float) -> float:
    return float(path.read_text()) if path.is_file() else default


if __name__ == "__main__":
    leave(main())
