"""A user's own layered module: a separate process builds it, counts its parameters and says what can't be cut."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Counted, Decoder, OwnDropout

_PROGRAM = "sailor_runtime.training.describe"
# Only shapes pass through the layers, so the length matters only to position tables.
_MOST_TOKENS = 128
# A module that takes longer to build hangs.
_TIMEOUT_S = 300.0
_SHOWN_LINES = 4


def with_module(sizes: Decoder, module: str, folder: Path) -> Decoder:
    """Return sizes with the real parameters of the module in `folder`, at each degree that can cut it.

    Time and activations are those of the sizes. Raises RequestError for a module that can't be built, or whose layers
    or hidden states differ from the sizes.
    """
    named = dataclasses.replace(sizes, name=module, module=module)
    counted, dropouts = _described(named, folder.absolute(), _written(folder))
    return dataclasses.replace(named, counted=counted, dropouts=dropouts)


def _written(folder: Path) -> tuple[tuple[Path, int], ...]:
    """Return when each Python file of a folder was written, without hidden ones."""
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(parent, name) for name in files if name.endswith(".py") and not name.startswith(".")]
        found += [(path, path.stat().st_mtime_ns) for path in paths if path.is_file()]
    return tuple(sorted(found))


@functools.lru_cache(maxsize=8)
def _described(
    sizes: Decoder, folder: Path, written: tuple[tuple[Path, int], ...]
) -> tuple[tuple[Counted, ...], tuple[OwnDropout, ...]]:
    """Build the module; `written` is in the cache key so that a changed module is built again."""
    model = {
        "model_type": sizes.family.value,
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size,
        "blocks": sizes.blocks,
        "heads": sizes.heads,
        "kv_heads": sizes.kv_heads,
        "ffn_size": sizes.ffn_size,
        "max_positions": sizes.max_positions,
        "embedding_size": sizes.embedding_size,
        "tied_head": sizes.tied_head,
        "module": sizes.module,
    }
    tokens = min(sizes.max_positions, _MOST_TOKENS)
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROGRAM, json.dumps(model), str(tokens)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except OSError as error:
        raise _refused(f"can't be built in {folder}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _refused(f"{sizes.module} was not built within {_TIMEOUT_S:.0f} s") from error
    last = "\n".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
    if done.returncode != 0:
        if "No module named" in last and any(name in last for name in ("torch", "sailor_runtime")):
            raise _refused(
                f"{sizes.module} is built before it is planned, which needs torch here: install '.[runtime]'"
            )
        raise _refused(f"{sizes.module} can't be built in {folder}:\n{last}")
    found = _answer(done.stdout)
    if found is None:
        raise _refused(f"{sizes.module} ends Python before it is built; it must not call sys.exit\n{last}".rstrip())
    if "problem" in found:
        raise _refused(found["problem"])
    counted = tuple(
        Counted(
            tp=int(tp),
            parameters=tuple(row["parameters"]),
            trainable=tuple(row["trainable"]),
            tied=row["tied"],
            tied_trainable=row["tied_trainable"],
        )
        for tp, row in found["degrees"].items()
    )
    dropouts = tuple(
        OwnDropout(text=f"{function} {probability:g} in {_layers(layers)}", replaced=replaced)
        for function, probability, layers, replaced in found.get("dropouts", [])
    )
    return counted, dropouts


def _layers(numbers: list[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"layer {first}"
    if numbers == list(range(first, last + 1)):
        return f"layers {first} to {last}"
    return f"layers {', '.join(map(str, numbers))}"


def _answer(printed: str) -> dict[str, Any] | None:
    """Return the program's answer from its output, which may also contain output of the user's code."""
    for line in reversed(printed.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and ("degrees" in found or "problem" in found):
            return found
    return None


def _refused(message: str) -> RequestError:
    return RequestError([Problem(path="model.module", message=message)])
