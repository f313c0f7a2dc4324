"""What a node runs before the ranks of a user's own module: once, and with its packages in the node's folder."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import threading
import venv
import zipfile
from pathlib import Path

import pytest

from factories.run_specs import run_spec
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import environment


def _spec(folder: Path, setup: str) -> RunSpec:
    (folder / "code").mkdir(exist_ok=True)
    spec = run_spec([(12, 1, [(0, 6, 1)])], directory=folder)
    return dataclasses.replace(spec, model=dataclasses.replace(spec.model, code="code", setup=setup))


def test_setup_runs_once_where_the_code_lies_while_other_ranks_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_LOOK_S", 0.01)
    spec = _spec(tmp_path, "echo $VIRTUAL_ENV >> ran")
    ranks = [threading.Thread(target=environment.set_up, args=(spec, tmp_path, lambda: None)) for _ in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert (tmp_path / "code" / "ran").read_text() == f"{tmp_path / 'packages'}\n"
    environment.set_up(_spec(tmp_path, "echo other >> ran"), tmp_path, lambda: None)
    assert (tmp_path / "code" / "ran").read_text().endswith("other\n"), "another setup runs again"


def test_a_setup_that_fails_says_how_and_is_tried_again(tmp_path):
    spec = _spec(tmp_path, "test -f there || exit 5")
    with pytest.raises(RefusedError, match="setup ended with exit code 5: test -f there"):
        environment.set_up(spec, tmp_path, lambda: None)
    (tmp_path / "code" / "there").touch()
    environment.set_up(spec, tmp_path, lambda: None)
    assert (tmp_path / "setup.done").exists()


def test_setup_brings_another_version_of_a_package_without_touching_the_one_that_is_there(tmp_path):
    outside = tmp_path / "outside"
    venv.create(outside, symlinks=True)
    [theirs] = outside.glob("lib/*/site-packages")
    pip = Path(importlib.util.find_spec("pip").origin).parents[1]
    (theirs / "pip.pth").write_text(f"{pip}\n")
    for version, folder in (("1.0", theirs), ("2.0", tmp_path)):
        with zipfile.ZipFile(tmp_path / f"thing-{version}-py3-none-any.whl", "w") as wheel:
            about = f"thing-{version}.dist-info"
            wheel.writestr("thing.py", f"version = {version!r}\n")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", f"thing.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
            if version == "1.0":
                wheel.extractall(folder)
    (outside / "bin" / "launch").write_text(f"#!{outside}/bin/python\nimport thing; print(thing.version)\n")
    (outside / "bin" / "launch").chmod(0o755)
    code = "import os, sys; from pathlib import Path; from sailor_runtime.packages import installing\n"
    code += "os.execvpe('bash', ['bash', '-c', sys.argv[2]], os.environ | installing(Path(sys.argv[1])))"
    run = f"set -e; cd {tmp_path}; launch\n"
    run += "pip install -q --no-index --no-deps thing-2.0-*.whl; launch"
    command = [outside / "bin" / "python", "-c", code, tmp_path, run]
    environ = {**os.environ, "PYTHONPATH": str(Path(environment.__file__).parents[2])}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.stdout.split() == ["1.0", "2.0"], done.stderr
    assert (theirs / "thing.py").read_text() == "version = '1.0'\n"
