"""Whether focus-validator takes `sailor-cloud history --focus` for FOCUS 1.0.

Usage: python benchmarks/launch/focus.py PYTHON [FILE]

PYTHON is that of a virtual environment with `pip install focus-validator 'multimethod<1.12'` (416 MB, so no dependency
of ours). FILE is the CSV; without it, the ended runs of this machine are written and checked. Exits with 1 where a rule
fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    if len(sys.argv) < 2:
        print("SKIPPED: name the Python of an environment with focus-validator")
        return 0
    python = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(sys.argv[2]).absolute() if len(sys.argv) > 2 else _written(Path(folder))
        if not file.read_text():
            print("SKIPPED: no run has ended on this machine")
            return 0
        # It looks for its table of currencies in a path from the folder of its packages.
        found = subprocess.run(
            [python, "-c", "import focus_validator.rules as it; print(it.__path__[0])"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        command = [python, "-m", "focus_validator.main", "--data-file", file, "--validate-version", "1.0"]
        return subprocess.run(command, cwd=Path(found).parent.parent, check=False).returncode


def _written(folder: Path) -> Path:
    file = folder / "focus.csv"
    with file.open("w") as target:
        program = Path(sys.executable).parent / "sailor-cloud"
        subprocess.run([program, "history", "--focus"], stdout=target, check=True)
    return file


if __name__ == "__main__":
    sys.exit(main())
