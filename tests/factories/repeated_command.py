"""sailor-cloud as a program that makes each plan once: a plan of the same job with the same options is a copy of it.

Programs that run it from PATH get the real command for everything else, and for a plan that fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

NAME = "sailor-cloud"


def install(folder: Path, command: Path) -> Path:
    """Write the program into a folder for PATH; its plans are kept beside it."""
    folder.mkdir(parents=True)
    program = folder / NAME
    line = f'exec "{sys.executable}" -ES "{Path(__file__).resolve()}" "{folder}" "{command}" "$@"'
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return folder


def main(folder: str, command: str, *words: str) -> int:
    if words[0] != "plan":
        os.execv(command, [command, *words])
    job, *options = words[1:]
    places = [Path(path) for option, path in pairwise(options) if option == "-o"]
    # Where a file lies says nothing about the plan in it; its ending says in which form.
    asked = [Path(word).suffix if Path(word) in places else word for word in options]
    key = hashlib.sha256(json.dumps([Path(job).read_text(), asked]).encode()).hexdigest()
    known = Path(folder) / f"{key}.json"
    if not known.exists():
        answer = subprocess.run([command, *words], capture_output=True, text=True)
        if answer.returncode:
            sys.stderr.write(answer.stderr)
            return answer.returncode
        known.write_text(json.dumps([answer.stdout, answer.stderr, [path.read_text() for path in places]]))
    out, err, written = json.loads(known.read_text())
    for path, text in zip(places, written, strict=True):
        path.write_text(text)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
