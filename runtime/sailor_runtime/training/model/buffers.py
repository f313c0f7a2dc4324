"""Persistent buffers of a user's module, which its forward pass may change: running means, codebooks, balancing biases.

Such a value depends on how the batch is cut. It is that of one process only if each layer sees the whole batch once per
step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn


def persistent(root: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield the owner of each persistent buffer, its name there, and its name in `root`."""
    for prefix, part in root.named_modules():
        for name, _ in part.named_buffers(recurse=False):
            if name not in part._non_persistent_buffers_set:
                yield part, name, f"{prefix}.{name}" if prefix else name


class Buffers:
    """The persistent buffers of some layers, by their names in the whole model."""

    def __init__(self, root: nn.Module, built: nn.Module) -> None:
        """`built` is the whole model as the user's function returned it."""
        self._places = list(persistent(root))
        self._built = {name: built.get_buffer(name) for _, _, name in self._places}
        self._known = dict(self._built)

    def changed(self) -> dict[str, Tensor]:
        """Return copies of the buffers that differ from those that were built."""
        return self._differing(self._built)

    def moved(self) -> list[str]:
        """Return the names of the buffers that have changed since the last call."""
        found = self._differing(self._known)
        self._known |= found
        return sorted(found)

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Set buffers to saved values."""
        for part, leaf, name in self._places:
            if name in values:
                before = part.get_buffer(leaf)
                part._buffers[leaf] = values[name].to(before.device)
                self._known[name] = values[name]

    def _differing(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        now = {name: part.get_buffer(leaf).detach().cpu() for part, leaf, name in self._places}
        return {name: value.clone() for name, value in now.items() if not _same(value, known[name])}


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    other = other.to(one.dtype)
    # NaN differs from itself, and may mark elements that a forward pass replaces.
    return bool(((one == other) | ((one != one) & (other != other))).all())
