"""`python -m sailor_runtime.training.checkpoint.fetch URL FOLDER`: copies a bucket's newest checkpoint, verified.

Needs the extra `stores` and no torch. Prints what will be copied as one line of JSON, waits for a line that is not
empty, copies, and ends with 0. After an end with 1 or 2, the copy is not the checkpoint. Every file is verified by size
and SHA-256 before the checkpoint gets its name; an interrupted copy is started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

from sailor_runtime.manifest import DESCRIPTION, LATEST, FileSum, newest_whole
from sailor_runtime.object_store import Store, StoreError, leave
from sailor_runtime.training.checkpoint.durable import sync


def newest(store: Store) -> tuple[str, list[FileSum]]:
    """Return the name of the newest checkpoint and its files. Raises StoreError if there is none.

    If `latest` names one, no other is returned: the bucket is deleted after the copy.
    """
    latest: str | None = None
    with contextlib.suppress(FileNotFoundError):
        latest = store.read(LATEST).decode(errors="replace").strip()
    names = store.names()
    try:
        chosen = [latest] if latest in names else names
        return newest_whole(chosen, latest, lambda name: store.read(f"{name}/{DESCRIPTION}"))
    except ValueError as error:
        raise StoreError(f"there is no complete checkpoint in {store.url}: {str(error).splitlines()[0]}") from error


def fetch(store: Store, name: str, files: list[FileSum], folder: Path) -> Path:
    """Copy one checkpoint, and point `latest` at it. Raises StoreError if a file is not as written."""
    partial, final = folder / f".{name}.fetched", folder / name
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / DESCRIPTION).write_bytes(store.read(f"{name}/{DESCRIPTION}"))
    for file in files:
        if store.checksum(f"{name}/{file.name}", into=partial / file.name) != (file.size, file.sha256):
            raise StoreError(f"{store.url}/{name}/{file.name} is not what was written")
    for path in (*partial.iterdir(), partial):
        sync(path)
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    staged = folder / f"{LATEST}.new"
    staged.write_text(name)
    sync(staged)
    os.replace(staged, folder / LATEST)
    sync(folder)
    return final


def main(url: str, folder: Path) -> int:
    try:
        store = Store(url)
        name, files = newest(store)
        size = sum(file.size for file in files)
        sys.stdout.write(json.dumps({"checkpoint": name, "bytes": size}) + "\n")
        sys.stdout.flush()
        if not sys.stdin.readline().strip():
            return 2
        fetch(store, name, files, folder)
    except (StoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1], Path(sys.argv[2])))
