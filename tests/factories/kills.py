"""Storms over agents and ranks: a seed says what is harmed and when; a run must continue rightly or stop clearly."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from factories.buckets import google_bucket
from factories.kill_targets import Bucket, Folder, Node
from factories.run_specs import SHORT_TRAINING, TINY, PipelineShape, run_spec
from factories.running_agent import ROOT, is_gone

STEPS = 40
TRAINING = {"steps": STEPS, "dropout": 0.1, "gradient_clipping": 0.5, "learning_rate": 1e-3}
# How long a storm may take; some forty times what it takes on two free cores, since those may be shared.
LIMIT_S = float(os.environ.get("SAILOR_CHAOS_LIMIT_S", "280"))
TOLERANCE = 1e-10
_PATIENCE_S = 2.0
# Shapes, and the node of each rank where there are two nodes.
PLANS: tuple[tuple[tuple[PipelineShape, ...], str | None], ...] = (
    (((6, 2, ((0, 3, 1), (3, 6, 1))),), "01"),
    (((4, 2, ((0, 6, 1),)), (2, 2, ((0, 6, 1),))), "01"),
    (((3, 4, ((0, 6, 2),)),), None),
    (((3, 4, ((0, 6, 3),)),), None),
    (((4, 2, ((0, 6, 1),)), (2, 2, ((0, 2, 1), (2, 6, 1)))), "010"),
    (((12, 1, ((0, 6, 1),)),), None),
)


class Harm(StrEnum):
    """What may happen to a generation."""

    RANK = "rank killed in a step"
    RANK_SAVING = "rank killed while saving"
    RANK_HUNG = "rank stopped dead"
    RANK_JOINING = "rank killed before its first step"
    AGENT = "agent killed"
    AGENT_SAVING = "agent killed while saving"
    STORE_AWAY = "store out of reach until training stops"
    STORE_PAUSE = "store out of reach for a moment, then rank killed"
    DAMAGE = "rank killed, newest checkpoint damaged"
    NOTICE = "checkpoint asked for, then agent killed"


class Wrong(AssertionError):  # noqa: N818
    """Something that must never happen."""


@dataclass(slots=True)
class Outcome:
    """What came of a storm."""

    seed: int
    store: str
    harms: list[str]
    generations: int
    refusals: list[str]
    difference: float
    seconds: float


@dataclass(slots=True)
class Storm:
    """One run through the harms of a seed."""

    seed: int
    root: Path
    harms: Sequence[Harm]
    checkpoints: Folder | Bucket
    environ: dict[str, str]
    say: Callable[[str], None] = lambda text: None
    nodes: list[Node] = field(init=False)
    refusals: list[str] = field(default_factory=list)
    generation: int = 0
    saved: int = 0
    damaged: set[tuple[float, int]] = field(default_factory=set)
    _tag: str = field(default_factory=lambda: f"SAILOR_CHAOS={uuid.uuid4().hex}")
    _ranks: list[int] = field(default_factory=list)
    _dice: random.Random = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._dice = random.Random(f"chaos {self.seed}")
        name, value = self._tag.split("=")
        path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "tests")])
        environ = {**os.environ, **self.environ, name: value, "PYTHONPATH": path}
        self.nodes = [Node(self.root / f"node-{index}", environ) for index in range(2)]

    def run(self) -> Outcome:
        """Go through all harms and train to the end. Raises Wrong for what must never happen."""
        try:
            for harm in [*self.harms, None]:
                self._generation(harm)
            self._await(lambda: self._ended("finished"), "the end of training")
            difference = self._difference()
        finally:
            for node in self.nodes:
                node.kill()
        self._await(lambda: not self._alive(), "all processes to be gone", every_s=0.3)
        if difference > TOLERANCE:
            raise Wrong(f"seed {self.seed}: weights differ by {difference}")
        return Outcome(
            seed=self.seed,
            store=type(self.checkpoints).__name__.lower(),
            harms=[harm.value for harm in self.harms],
            generations=self.generation,
            refusals=self.refusals,
            difference=difference,
            seconds=time.monotonic() - self._started,
        )

    def _generation(self, harm: Harm | None) -> None:
        self.generation += 1
        shapes, places = self._dice.choice(PLANS)
        zero_stage = self._dice.choice((0, 1))
        spread = None if places is None else [f"node-{place}" for place in places]
        spec = run_spec(
            shapes,
            directory=self.root,
            training=TRAINING,
            node_of_rank=spread,
            zero_stage=zero_stage,
            generation=self.generation,
            plan_hash=f"hash-{self.generation}",
            checkpoint_every_s=0.1,
            checkpoint_directory=self.checkpoints.url,
        )
        used = [self.nodes[int(node.id[-1])] for node in spec.nodes]
        for node in used:
            node.ensure()
            self._await(lambda node=node: (node.home / "inbox").is_dir(), "an agent")
            (node.home / "spec.json").write_text(spec.to_json())
            node.command("start", self.generation, spec="spec.json", node=node.home.name)
        self.say(f"generation {self.generation}: {shapes} {places or ''} zero {zero_stage}: {harm or 'none'}")
        if harm is not Harm.RANK_JOINING:
            self._await(lambda: self._begun(used), "training")
            self._check_start()
        else:
            whole = spec.world_size
            self._await(lambda: sum(len(node.ranks()) for node in used) == whole, "ranks", every_s=0.3)
            self._pause(0.5)
        if harm is not None:
            self._ranks = [rank for node in used for rank in node.ranks()]
            self._inflict(harm, used)
            self._end(used)
            self._await(self._ranks_are_gone, f"the ranks to be gone after {harm}")
            if left := [rank for node in used for rank in node.ranks()]:
                raise Wrong(f"seed {self.seed}: {left} live on after {harm}")
            self._note_saved()

    def _begun(self, used: Sequence[Node]) -> bool:
        for node in used:
            if refused := node.of(self.generation, "refused", "rank_dead"):
                raise Wrong(f"seed {self.seed}: generation {self.generation} did not begin: {refused[0]}")
        return any(node.of(self.generation, "training") for node in used)

    def _check_start(self) -> None:
        [begun] = [e for node in self.nodes for e in node.of(self.generation, "training")]
        if begun["first_step"] < self.saved:
            raise Wrong(f"seed {self.seed}: continued from {begun['first_step']}, {self.saved} was saved")

    def _note_saved(self) -> None:
        found = [(e["ts"], e["step"]) for node in self.nodes for e in node.read() if e["event"] == "checkpoint"]
        whole = [(ts, step) for ts, step in found if (ts, step) not in self.damaged]
        self.saved = max(whole, default=(0.0, 0))[1]

    def _inflict(self, harm: Harm, used: Sequence[Node]) -> None:
        victim = self._dice.choice(list(used))
        if harm in (Harm.RANK_SAVING, Harm.AGENT_SAVING):
            self._await(lambda: self.checkpoints.saving() or self._over(used), "a save that runs")
        elif harm is not Harm.RANK_JOINING:
            self._await(lambda: self._saved_now(used) or self._over(used), "a first checkpoint")
            self._pause(0.3)
        match harm:
            case Harm.AGENT | Harm.AGENT_SAVING:
                victim.kill()
            case Harm.RANK_HUNG:
                self._signal(signal.SIGSTOP)
            case Harm.STORE_AWAY:
                self.checkpoints.away()
                self._await(lambda: self._over(used), "training to stop without its store")
                self._note_refusal(used)
                self.checkpoints.back()
            case Harm.STORE_PAUSE:
                self._note_saved()
                before = self.saved
                self.checkpoints.away()
                self._pause(0.15)
                self.checkpoints.back()
                self._await(lambda: self._saved_beyond(before) or self._over(used), "a save after the pause")
                self._signal(signal.SIGKILL)
            case Harm.NOTICE:
                self._note_saved()
                victim.command("checkpoint", self.generation)
                before = self.saved
                self._await(lambda: self._saved_beyond(before) or self._over(used), "the checkpoint asked for")
                victim.kill()
            case _:
                self._signal(signal.SIGKILL)
        if harm is Harm.DAMAGE:
            self._end(used)
            self._await(self._ranks_are_gone, "the ranks to be gone")
            self._note_saved()
            if self.saved:
                self.checkpoints.damage(self.saved)
                self.damaged |= {
                    (e["ts"], e["step"])
                    for node in self.nodes
                    for e in node.events
                    if e["event"] == "checkpoint" and e["step"] == self.saved
                }
                self._note_saved()

    def _end(self, used: Sequence[Node]) -> None:
        """Do as the controller does: once one agent has ended the generation or died, tell the others to."""
        self._await(lambda: self._over(used) or any(not node.alive for node in used), "an agent to notice")
        for node in used:
            if node.alive and not node.of(self.generation, "stopped"):
                node.command("stop", self.generation)

    def _ranks_are_gone(self) -> bool:
        return all(is_gone(rank) for rank in self._ranks)

    def _signal(self, number: signal.Signals) -> None:
        ranks = [rank for rank in self._ranks if not is_gone(rank)]
        if ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._dice.choice(ranks), number)

    def _saved_now(self, used: Sequence[Node]) -> bool:
        return any(node.of(self.generation, "checkpoint") for node in used)

    def _saved_beyond(self, step: int) -> bool:
        self._note_saved()
        return self.saved > step

    def _over(self, used: Sequence[Node]) -> bool:
        """Whether the generation has ended by itself, so that there is nothing left to harm."""
        return any(node.of(self.generation, "stopped") for node in used)

    def _note_refusal(self, used: Sequence[Node]) -> None:
        reasons = [e["reason"] for node in used for e in node.of(self.generation, "refused")]
        ended = [e["reason"] for node in used for e in node.of(self.generation, "stopped")]
        if not reasons and "finished" not in ended:
            raise Wrong(f"seed {self.seed}: training stopped without a word: {ended}")
        self.refusals += reasons[:1]

    def _ended(self, reason: str) -> bool:
        ended = [e["reason"] for node in self.nodes for e in node.of(self.generation, "stopped")]
        if any(other != reason for other in ended):
            raise Wrong(f"seed {self.seed}: the last generation ended with {ended}")
        return bool(ended)

    def _pause(self, most_s: float) -> None:
        time.sleep(self._dice.uniform(0.0, most_s))

    def _await(self, condition: Callable[[], bool], what: str, *, every_s: float = 0.02) -> None:
        while not condition():
            if time.monotonic() - self._started > LIMIT_S:
                tails = [e for node in self.nodes for e in node.read()[-4:]]
                raise Wrong(f"seed {self.seed}: {LIMIT_S:.0f} s are over, waiting for {what}: {tails}")
            time.sleep(every_s)

    def _alive(self) -> list[int]:
        """Return every process of this storm: agents, fork servers and ranks all inherit its tag."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
                    if not dead and self._tag.encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def _difference(self) -> float:
        import torch
        import torch.distributed.checkpoint as dcp

        from sailor_runtime.training.checkpoint.checkpoint import open_folder

        expected = _expected()
        folder = open_folder(self.checkpoints.url)
        name = f"step-{STEPS}"
        faults = folder.damage(name, 0, 1)
        if faults is not None:
            raise Wrong(faults)
        state = {f"model.{key}": torch.empty_like(value) for key, value in expected.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
            dcp.load(state, storage_reader=folder.reader(name), no_dist=True)
        return max((state[f"model.{key}"] - value).abs().max().item() for key, value in expected.items())


@cache
def _expected() -> dict[str, Any]:
    """Return the weights of an uninterrupted run in one process."""
    import torch

    from sailor_runtime.spec import ModelSpec, TrainingSpec
    from sailor_runtime.training import reference
    from sailor_runtime.training.data.samples import SyntheticSamples

    model, training = ModelSpec(**TINY), TrainingSpec(**{**SHORT_TRAINING, **TRAINING})
    samples = SyntheticSamples(model.vocab_size, training.sequence_length, training.seed)
    # Threads that wait for each other on shared processors take a hundred times as long.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reference.train(model, training, samples.read, steps=STEPS).weights
    finally:
        torch.set_num_threads(threads)


def harms_of(seed: int, kills: int) -> list[Harm]:
    """Return the harms of a seed; over successive seeds every kind comes equally often, with either store."""
    return [list(Harm)[(seed * kills + index) % len(Harm)] for index in range(kills)]


@contextlib.contextmanager
def storm(seed: int, root: Path, kills: int, say: Callable[[str], None] = lambda text: None) -> Iterator[Storm]:
    """Give a storm of a seed, with a folder or a bucket for its checkpoints."""
    patience = {"SAILOR_STORE_PATIENCE_S": str(_PATIENCE_S)}
    harms = harms_of(seed, kills)
    random.Random(f"order {seed}").shuffle(harms)
    if seed % 2 == 0:
        yield Storm(seed, root, harms, Folder(root / "checkpoints"), patience, say)
        return
    with google_bucket(root) as served:
        kept = {name: os.environ.get(name) for name in (served.environ | patience)}
        os.environ.update(served.environ | patience)
        try:
            yield Storm(seed, root, harms, Bucket(served), {**served.environ, **patience}, say)
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


if __name__ == "__main__":
    import tempfile

    for number in map(int, sys.argv[2:]):
        with tempfile.TemporaryDirectory() as folder, storm(number, Path(folder), int(sys.argv[1]), print) as one:
            print(one.run())  # noqa: T201
