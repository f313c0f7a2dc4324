"""The part of the boot script that ends a node which no controller needs any more, with a stand-in for time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from sailor_cloud.resources import data_root

_MINUTES = """#!/bin/sh
minute=$(($(cat minute) + 1)); echo $minute > minute
case $minute in {events} {end}) kill $PPID ;; esac
"""


def minutes_until_the_end(folder: Path, events: dict[int, str], *, watched: int = 120) -> int | None:
    """Return the minute at which the node powers itself off, None for not within those `watched`."""
    template = (data_root() / "terraform/modules/placement/boot.sh.tftpl").read_text()
    found = re.search(r"<<'ORPHANED'\n(.*)^ORPHANED$", template, re.DOTALL | re.MULTILINE)
    assert found is not None
    (folder / "orphaned.sh").write_text(found[1].replace("cd /home ", f"cd {folder} "))
    (folder / "sailor").mkdir()
    (folder / "minute").write_text("0")
    happening = " ".join(f"{minute}) {command} ;;" for minute, command in events.items())
    programs = {
        "sleep": _MINUTES.format(events=happening, end=watched),
        "pgrep": "#!/bin/sh\ntest -e agent\n",
        "systemctl": '#!/bin/sh\necho "$@" > powered-off\n',
    }
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:/usr/bin:/bin"
    subprocess.run(["sh", "orphaned.sh"], cwd=folder, env={"PATH": path}, check=False, timeout=30)
    told = folder / "powered-off"
    assert not told.exists() or told.read_text() == "poweroff\n"
    return int((folder / "minute").read_text()) if told.exists() else None


@pytest.mark.parametrize(
    ("events", "end"),
    [
        pytest.param({}, 60, id="no controller ever comes"),
        pytest.param({20: "echo > sailor/controller"}, 50, id="a controller dies before it starts an agent"),
        pytest.param(
            {20: "echo > sailor/controller", 45: "rm sailor/controller; echo > sailor/controller"},
            75,
            id="words",
        ),
        pytest.param({20: "echo > sailor/controller; touch agent"}, None, id="an agent looks after the node itself"),
        pytest.param({5: "touch agent", 70: "rm agent"}, 99, id="an agent dies without a controller"),
    ],
)
def test_a_node_without_agent_and_controller_powers_itself_off(
    events: dict[int, str], end: int | None, tmp_path: Path
) -> None:
    assert minutes_until_the_end(tmp_path, events) == end
