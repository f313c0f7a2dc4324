"""`python -m sailor_runtime.training.optimizer.extensions NAME`: compile one of DeepSpeed's extensions before a run.

DeepSpeed compiles an extension at its first use, which takes a minute or more in every rank. Here nothing is compiled
while ranks start: an optimizer whose extension has not been built is refused.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from sailor_runtime.refusal import RefusedError

# By optimizer, if it needs one.
EXTENSIONS = {"cpu-adam": "cpu_adam", "fused-adam": "fused_adam"}


def require(optimizer: str) -> None:
    """Raise RefusedError if the extension of an optimizer has not been built on this node."""
    name = EXTENSIONS[optimizer]
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")
    if not any(folder.rglob(f"{name}/{name}.so")):
        raise RefusedError(
            f"optimizer {optimizer!r} needs DeepSpeed's extension {name}, which is not in {folder}; build it there "
            f"with 'TORCH_EXTENSIONS_DIR={folder} python -m sailor_runtime.training.optimizer.extensions {name}', "
            "or use 'adamw'"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.training.optimizer.extensions")
    parser.add_argument("name", choices=sorted(EXTENSIONS.values()))
    name = parser.parse_args().name
    if name == "cpu_adam":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.op_builder import CPUAdamBuilder, FusedAdamBuilder

    builder = {"cpu_adam": CPUAdamBuilder, "fused_adam": FusedAdamBuilder}[name]()
    if not builder.is_compatible(verbose=True):
        print(f"sailor_runtime: {name} can't be built on this node", file=sys.stderr)  # noqa: T201
        return 1
    builder.load()
    return 0


if __name__ == "__main__":
    sys.exit(main())
