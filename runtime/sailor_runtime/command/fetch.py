"""`python -m sailor_runtime.command.fetch URL FOLDER`: copies a command's checkpoints from the run's bucket.

The protocol is that of `sailor_runtime.training.checkpoint.fetch`: it prints the size, waits for a line, copies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sailor_runtime.command.checkpoints import Checkpoints, StoreError, open_store
from sailor_runtime.object_store import leave


def main(url: str, folder: Path) -> int:
    try:
        saved = Checkpoints(folder, open_store(url), 0, "fetch")
        found = saved.complete()
        size = sum(size for files in found.values() for size, _ in files.values())
        sys.stdout.write(json.dumps({"checkpoint": "", "bytes": size}) + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline().strip():
            return 2
        if missing := found.keys() - set(saved.restore()):
            raise StoreError(f"{', '.join(sorted(missing))} in {url} is not what was written")
    except (StoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1], Path(sys.argv[2])))
