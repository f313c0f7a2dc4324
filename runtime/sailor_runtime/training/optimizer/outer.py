"""Islands that train separately, and combine their weights at intervals by an outer optimizer.

DiLoCo (Douillard et al., arXiv 2311.08105): an island's movement since the last meeting is a gradient. It is averaged
over islands by their samples, for SGD with Nesterov momentum.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.optimizer.gradients import GradientAllReduce
from sailor_runtime.training.optimizer.weights import MasterWeights, Piece
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.stage import StageModule

# As in DiLoCo's experiments.
LEARNING_RATE = 0.7
MOMENTUM = 0.9


def outer_atoms(spec: RunSpec) -> tuple[layout.Atom, ...]:
    """Return the atoms over all islands, () if there is only one; each island's movement is added once.

    Under ZeRO-1 each rank adds that of the pieces it owns, which differ.
    """
    islands = layout.islands(spec)
    if len(islands) == 1:
        return ()
    places = layout.places(spec)
    island_of = {pipeline: number for number, island in enumerate(islands) for pipeline in island}
    found = []
    for atom in layout.atoms_of(spec, range(len(spec.pipelines))):
        first = {island_of[places[rank].pipeline]: rank for rank in reversed(atom.holders)}
        contributors = atom.holders if spec.zero_stage > 0 else first.values()
        found.append(replace(atom, contributors=frozenset(contributors)))
    return tuple(found)


def is_due(spec: RunSpec, step: int) -> bool:
    """Return whether islands meet after step `step`, counted from 0: at every interval, and at the end."""
    every = spec.training.sync_every
    return every is not None and ((step + 1) % every == 0 or step + 1 == spec.training.steps)


class Outer:
    """The outer optimizer of one rank: its pieces at the last meeting of all islands, and their momentum."""

    def __init__(self, spec: RunSpec, world: World, module: StageModule, weights: MasterWeights, share: float) -> None:
        """`share`: this rank's island's share of the global batch."""
        self._module = module
        self._weights = weights
        self._share = share
        atoms = outer_atoms(spec)
        self._all_reduce = GradientAllReduce(
            world.rank, spec.model, atoms, module, world.exchange, world.background, in_place=False
        )
        self.start: list[Tensor] = []
        self.momentum: list[Tensor] = []
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        """Take the present weights as those on which all islands agree."""
        values = [piece.value.detach() for piece in self._weights.pieces]
        self.start = [value.clone() for value in values]
        self.momentum = [torch.zeros_like(value) for value in values]

    def state(self, piece: Piece) -> dict[str, Tensor]:
        """Return a piece's state for a checkpoint."""
        number = next(i for i, each in enumerate(self._weights.pieces) if each is piece)
        return {
            f"outer.{piece.parameter}.start": self.start[number],
            f"outer.{piece.parameter}.momentum": self.momentum[number],
        }

    @torch.no_grad()
    def step(self) -> None:
        """Move all islands' pieces to the outer optimizer's result; a collective."""
        module, pieces = self._module, self._weights.pieces
        # Gradients of the step are no longer needed, so their memory is reused for the movements.
        gradients = {name: module.gradient(name) for name in module.trained}
        for gradient in gradients.values():
            gradient.zero_()
        for piece, start in zip(pieces, self.start, strict=True):
            moved = (start - piece.value.detach()) * self._share
            self._weights.piece_view(gradients[piece.parameter], piece).copy_(moved)
        self._all_reduce.clear()
        self._all_reduce.finish()
        for piece, start, momentum in zip(pieces, self.start, self.momentum, strict=True):
            gradient = self._weights.piece_view(gradients[piece.parameter], piece).to(start.device)
            momentum.mul_(MOMENTUM).add_(gradient)
            start.sub_(gradient + MOMENTUM * momentum, alpha=LEARNING_RATE)
            piece.value.copy_(start)
